"""Shares of a GPU: what is set up for a claim so that each of its shares is held to its amount of memory."""

from __future__ import annotations

from dra_agent.device_setup.shares.setup import ShareConfig, ShareSetup

__all__ = ["ShareConfig", "ShareSetup"]

"""Shares of a GPU: the setup that limits each share of a claim to its amount of memory."""

from __future__ import annotations

from dra_agent.device_setup.shares.setup import ShareConfig, ShareSetup

__all__ = ["ShareConfig", "ShareSetup"]

"""MIG partitions that are created when a claim is prepared, and destroyed when it is released."""

from __future__ import annotations

from dra_agent.device_setup.mig.setup import MigConfig, MigSetup

__all__ = ["MigConfig", "MigSetup"]

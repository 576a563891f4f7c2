"""MIG partitions that are made when a claim for them is prepared, and destroyed when it is given back."""

from __future__ import annotations

from dra_agent.device_setup.mig.setup import MigConfig, MigSetup

__all__ = ["MigConfig", "MigSetup"]

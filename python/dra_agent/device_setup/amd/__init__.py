"""AMD GPUs in the compute partition mode that claims ask for: all claims of a GPU in one, changed when it is idle."""

from __future__ import annotations

from dra_agent.device_setup.amd.setup import AmdPartitionConfig, AmdPartitionSetup

__all__ = ["AmdPartitionConfig", "AmdPartitionSetup"]

"""AMD GPUs in the compute partition mode that claims ask for: all claims of a GPU in one, changed when it is idle."""

from __future__ import annotations

from dra_agent.device_setup.amd.parameters import AmdPartitionConfig
from dra_agent.device_setup.amd.setup import AmdPartitionSetup

__all__ = ["AmdPartitionConfig", "AmdPartitionSetup"]

"""AMD GPUs in the compute partition mode that claims ask for: all claims of a GPU in one, changed when it is idle."""

from __future__ import annotations

from dra_agent.setup.amd.parameters import AmdPartitionConfig
from dra_agent.setup.amd.setup import AmdPartitions

__all__ = ["AmdPartitionConfig", "AmdPartitions"]

"""Compute partition modes of AMD GPUs: all claims of a GPU use one mode, which changes only while the GPU is idle."""

from __future__ import annotations

from dra_agent.device_setup.amd.setup import AmdPartitionConfig, AmdPartitionSetup
from dra_agent.device_setup.vendor import SetupContext, VendorSetups

__all__ = ["AmdPartitionConfig", "AmdPartitionSetup", "make"]


def make(context: SetupContext) -> VendorSetups:
    """Create the set-up."""
    setup = AmdPartitionSetup(context.host, context.kernel, context.state_dir, changes=context.mode_changes)
    return VendorSetups(creating=(setup,))

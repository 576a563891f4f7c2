"""Compute partition modes of AMD GPUs: all claims of a GPU use one mode, which changes only while the GPU is idle."""

from __future__ import annotations

from dra_agent.device_setup.amd.setup import AmdPartitionConfig, AmdPartitionSetup

__all__ = ["AmdPartitionConfig", "AmdPartitionSetup"]

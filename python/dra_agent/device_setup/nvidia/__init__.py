"""The set-ups of NVIDIA GPUs: MIG partitions and time slices."""

from __future__ import annotations

from dra_agent.device_setup.mig import MigSetup
from dra_agent.device_setup.nvidia.nvml import SharedNvml
from dra_agent.device_setup.timeslice import TimeSliceSetup
from dra_agent.device_setup.vendor import SetupContext, VendorSetups


def make(context: SetupContext) -> VendorSetups:
    """Create the set-ups."""
    host = context.host
    return VendorSetups(
        creating=(MigSetup(host, context.library_timeout_s),),
        configuring=(TimeSliceSetup(lambda: host.driver_tool("nvidia-smi"), context.state_dir),),
        libraries=(SharedNvml(host.nvml, context.library_timeout_s),),
    )

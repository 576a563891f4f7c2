"""Divides the A100 of a simulated host."""

from __future__ import annotations

from dra_agent.host import Host
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_simulate import inject


def divide(host: Host, address: str = "0000:1a:00.0") -> None:
    """Enable MIG mode, and make two instances, one of them with two compute instances."""
    nvml = acquire(host.nvml_library, 60.0)
    try:
        nvml.start()
        bus_id = f"0000{address}".upper().encode()
        gpu = nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id)
        nvml.call("nvmlDeviceSetMigMode", gpu, 1)
        inject.reset(host.sysfs.parent, address)
        profile = nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", gpu, 2).id
        for slices in ((0, 0), (2,)):
            instance = nvml.call("nvmlDeviceCreateGpuInstance", gpu, profile)
            for number in slices:
                nvml.call("nvmlGpuInstanceCreateComputeInstance", instance, number)
    finally:
        nvml.close()

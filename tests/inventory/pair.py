"""Two GPUs that a test divides through NVML itself, as nvidia-smi and the set-up do."""

from __future__ import annotations

import ctypes
from typing import Any

from dra_agent.inventory.nvidia.nvml_client import NvmlClient
from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import GIB, H100_SXM
from dra_simulate.parts.nvidia import gpu

ADDRESS, OTHER = "0000:01:00.0", "0000:02:00.0"
NAME = "gpu-0000-01-00-0"
GPUS = tuple(gpu(address, H100_SXM, minor, machine="pair") for minor, address in enumerate((ADDRESS, OTHER)))
PAIR = Machine(
    "pair",
    "for tests",
    (NumaNode("0-3", 8 * GIB, (10,)),),
    (HostBridge("pci0000:00", 0, GPUS),),
    nvidia=NvidiaDriver("570.124.06", 12080),
)
ONE_G, TWO_G = 19, 14


def handle(library: NvmlClient, address: str = ADDRESS) -> Any:
    return library.call("nvmlDeviceGetHandleByPciBusId", address.encode(), about=address)


def make(library: NvmlClient, profile: int, start: int, size: int) -> int:
    """Make an instance with one compute instance; gives its number."""
    module, device = library.module, handle(library)
    place = module.c_nvmlGpuInstancePlacement_t(start, size)
    made = library.call("nvmlDeviceCreateGpuInstanceWithPlacement", device, profile, ctypes.byref(place), about=ADDRESS)
    library.call("nvmlGpuInstanceCreateComputeInstance", made, 0 if profile == ONE_G else 1, about=ADDRESS)
    return int(library.call("nvmlGpuInstanceGetInfo", made, about=ADDRESS).id)


def destroy(library: NvmlClient, number: int) -> None:
    made = library.call("nvmlDeviceGetGpuInstanceById", handle(library), number, about=ADDRESS)
    compute = library.call("nvmlGpuInstanceGetComputeInstanceById", made, 0, about=ADDRESS)
    library.call("nvmlComputeInstanceDestroy", compute, about=ADDRESS)
    library.call("nvmlGpuInstanceDestroy", made, about=ADDRESS)

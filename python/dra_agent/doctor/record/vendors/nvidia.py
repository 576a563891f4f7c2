"""A recording of NVIDIA GPUs: files of the driver in /proc, its nodes, nvidia-smi and the calls of NVML."""

from __future__ import annotations

from dra_agent.doctor.record.nvml_calls import NvmlRecorder
from dra_agent.doctor.record.tools import find_tool
from dra_agent.doctor.record.vendor import Tool, VendorRecording
from dra_agent.host import Host
from dra_agent.inventory.nvidia.describe import CONTROL, find_mps_control


def _programs(host: Host) -> tuple[str, ...]:
    found = [name for name in ("nvidia-smi", "nvidia-ctk") if find_tool(host, name) is not None]
    return (*found, *((CONTROL,) if find_mps_control(host) is not None else ()))


RECORDING = VendorRecording(
    sysfs=(
        "module/nvidia/version",
        # GPUs of systems on a chip, and what names the board.
        *(f"bus/platform/devices/{name}/driver@" for name in ("*.gpu", "*.g[a-z][0-9][0-9][a-z]")),
        *(f"devices/soc0/{name}" for name in ("family", "soc_id")),
    ),
    proc=(
        *("driver/nvidia/version", "driver/nvidia/params", "driver/nvidia/gpus/*/information"),
        *("driver/nvidia/gpus/*/numa_status", "driver/nvidia/gpus/*/power"),
        *("driver/nvidia/capabilities/*/*", "driver/nvidia/capabilities/*/mig/*/access"),
        *("driver/nvidia/capabilities/*", "driver/nvidia/capabilities/*/mig/*/*/access"),
        *("device-tree/compatible", "device-tree/model"),
        *("driver/nvidia-caps/*", "driver/nvidia-nvswitch/devices/*/information"),
    ),
    dev=("nvhost-gpu", "nvidia*", "nvidia-caps/*", "nvidia-caps-imex-channels/*"),
    tools=(Tool("nvidia-smi", ("-q", "-x"), "nvidia-smi.xml"),),
    driver_tools=frozenset({"nvidia-smi"}),
    programs=_programs,
    library=NvmlRecorder,
)

"""Which recipe serves a device: chosen by who drives it, then by family and vendor."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from dra_agent.cdi.edits.amd import amd_gpu
from dra_agent.cdi.edits.generic import passed_through, plain
from dra_agent.cdi.edits.intel_gpu import IntelGpu
from dra_agent.cdi.edits.network import network
from dra_agent.cdi.edits.nvidia import NvidiaGpu
from dra_agent.cdi.edits.provider import DeviceEdits, EditProvider
from dra_agent.cdi.registry import DEFAULT_DIRECTORIES
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.passthrough import PASSTHROUGH


class EditProviders:
    """Every recipe, for one host; safe to use from several threads."""

    def __init__(
        self, host: Host, *, directories: Sequence[Path] = DEFAULT_DIRECTORIES, ctk: Path | None = None
    ) -> None:
        """Take the CDI directories that the runtime reads, lowest priority first, and where nvidia-ctk lies."""
        self._nvidia_gpu = NvidiaGpu(host, directories, ctk)
        self._intel_gpu = IntelGpu(host)

    def edits(self, device: Device) -> DeviceEdits:
        """Say what a container needs of a device, now; RetryableError where the device cannot be used now."""
        return self._recipe(device)(device)

    def _recipe(self, device: Device) -> EditProvider:
        if PASSTHROUGH in device.identity:
            return passed_through
        if any(node.role in {"vfio", "vfio-control"} for node in device.nodes):
            return plain  # given to a virtual machine or a user space driver, whatever it is
        if device.family == "nic":
            return network
        if device.family == "gpu":
            by_vendor: dict[str, EditProvider] = {"nvidia": self._nvidia_gpu, "amd": amd_gpu, "intel": self._intel_gpu}
            return by_vendor.get(device.vendor, plain)
        return plain


def find_nvidia_ctk(host: Host) -> Path | None:
    """Find nvidia-ctk; None where it is missing, or where the host is simulated and the tool would see another one."""
    if host.dev != Path("/dev"):
        return None
    found = shutil.which("nvidia-ctk")
    return Path(found) if found else None

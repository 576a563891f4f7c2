"""Whether others give out the same devices here: device plugins and DRA drivers that leave a socket for the kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.examination import Examination
from dra_agent.doctor.finding import Finding, warning

_WORDS = {
    "nvidia": ("nvidia",),
    "amd": ("amd",),
    "intel": ("intel",),
    "habana": ("habana", "gaudi"),
    "xilinx": ("xilinx", "fpga"),
    "mellanox": ("rdma", "sriov", "mellanox"),
}
"""Parts of socket names by vendor: nvidia-gpu.sock, gpu.nvidia.com-reg.sock, amd.com_gpu."""


def check(examination: Examination) -> Iterator[Finding]:
    """Look at the kubelet's sockets; what only an API server knows cannot be seen."""
    if examination.inventory is None:
        return
    vendors = sorted({device.vendor for device in examination.inventory.devices})
    for folder, kind in (("device-plugins", "a device plugin"), ("plugins_registry", "a driver")):
        for path in _sockets(examination.kubelet_dir / folder, examination.driver):
            for vendor in vendors:
                if any(word in path.name for word in _WORDS.get(vendor, ())):
                    yield warning(
                        f"{kind} seems to give out {vendor} devices too: both could hand out the same one",
                        str(path),
                        "remove it here, or exclude the devices (inventory.exclude); if it is gone: its socket",
                    )
                    break


def _sockets(folder: Path, own: str) -> list[Path]:
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in found if path.name != "kubelet.sock" and own not in path.name and path.is_socket()]

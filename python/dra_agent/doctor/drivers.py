"""Whether others give out the same devices here: device plugins and DRA drivers.

They leave a socket for the kubelet; what only an API server knows is what the agent has found out and remembers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.examination import Examination
from dra_agent.doctor.finding import Finding, problem, warning
from dra_agent.neighbours import recall

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
    """Look at the kubelet's sockets, and at what the agent remembers."""
    yield from _found_by_the_agent(examination)
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


def _found_by_the_agent(examination: Examination) -> Iterator[Finding]:
    remembered = recall(examination.state_dir)
    for manager, devices in remembered.verdict.by_manager().items():
        count = f"{len(devices)} device{'' if len(devices) == 1 else 's'} of this node"
        if remembered.published:
            yield problem(
                f"gives out {count} too, and they are published all the same: each can be given to two pods",
                manager,
                'remove it here, exclude the devices, or set second_manager = "refuse"',
            )
        else:
            yield warning(
                f"gives out {count} too, so they are not published: {', '.join(devices)}",
                manager,
                "keep the two apart by node labels, or exclude the devices there or here (docs/neighbours.md)",
            )


def _sockets(folder: Path, own: str) -> list[Path]:
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in found if path.name != "kubelet.sock" and own not in path.name and path.is_socket()]

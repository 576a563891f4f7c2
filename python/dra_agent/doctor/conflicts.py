"""Finds devices that others advertise too: device plugins, DRA drivers and other agents of this product.

Each has a socket for the kubelet. Conflicts that only the API server shows are read from the agent's state file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dra_agent.conflicts import load_conflicts
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, problem, warning

_WORDS = {
    "nvidia": ("nvidia",),
    "amd": ("amd",),
    "intel": ("intel",),
    "habana": ("habana", "gaudi"),
    "xilinx": ("xilinx", "fpga"),
    "mellanox": ("rdma", "sriov", "mellanox"),
}
"""Parts of socket names by vendor: nvidia-gpu.sock, gpu.nvidia.com-reg.sock, amd.com_gpu."""


def check_conflicts(context: CheckContext) -> Iterator[Finding]:
    """Check the kubelet's sockets and the conflicts that the agent saved."""
    yield from _found_by_the_agent(context)
    yield from _other_agents(context)
    if context.inventory is None:
        return
    vendors = sorted({device.vendor for device in context.inventory.devices})
    for folder, kind in (("device-plugins", "a device plugin"), ("plugins_registry", "a driver")):
        for path in _sockets(context.kubelet_dir / folder, context.driver):
            for vendor in vendors:
                if any(word in path.name for word in _WORDS.get(vendor, ())):
                    yield warning(
                        f"{kind} seems to advertise {vendor} devices too: both could allocate the same device",
                        str(path),
                        "remove it from this node, or exclude the devices "
                        "(inventory.exclude); if it was removed already: its socket",
                    )
                    break


def _found_by_the_agent(context: CheckContext) -> Iterator[Finding]:
    saved = load_conflicts(context.state_dir)
    for manager, devices in saved.conflicts.by_manager().items():
        count = f"{len(devices)} device{'' if len(devices) == 1 else 's'} of this node"
        if saved.published:
            yield problem(
                f"advertises {count} too, and they are still published: each can be allocated to two pods",
                manager,
                'remove it here, exclude the devices, or set second_manager = "refuse"',
            )
        else:
            yield warning(
                f"advertises {count} too, so they are not published: {', '.join(devices)}",
                manager,
                "separate the two by node labels, or exclude the devices in one (docs/how-to/devices/conflicts.md)",
            )


def _other_agents(context: CheckContext) -> Iterator[Finding]:
    own = _withheld(context.state_dir)
    for other in context.other_agents:
        where = (
            f"driver {context.driver} (state directory {context.state_dir}) and "
            f"driver {other.driver} (state directory {other.state_dir}, pid {other.pid})"
        )
        hint = "stop one, or give each its own devices with inventory.exclude (docs/how-to/devices/conflicts.md)"
        if other.devices is None:
            message = (
                "cannot determine if these two agents of this host manage the same devices: the other did not respond"
            )
            yield warning(message, where, "run `dra-agent doctor` as root")
        elif other.devices:
            withheld = _withheld(other.state_dir)
            both = [name for name in other.devices if name not in own and name not in withheld]
            message = f"two agents of this host manage {', '.join(other.devices)}"
            if both:
                named = ", ".join(both) if len(both) < len(other.devices) else "them"
                message = f"{message}; both publish {named}, and the second claim for a device fails at prepare"
                yield problem(message, where, hint)
            else:
                yield warning(f"{message}; each device is published by the agent that was first", where, hint)


def _withheld(state_dir: Path) -> set[str]:
    """Name the devices that the agent of a state directory does not publish, because another manager has them."""
    saved = load_conflicts(state_dir)
    return set() if saved.published else set(saved.conflicts.managers)


def _sockets(folder: Path, own: str) -> list[Path]:
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in found if path.name != "kubelet.sock" and own not in path.name and path.is_socket()]

"""Finds devices that others advertise too: device plugins, DRA drivers and other agents of this product.

Each has a socket for the kubelet. Conflicts that only the API server shows are read from the agent's state file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dra_agent.conflicts import load_conflicts
from dra_agent.conflicts.managers import DRIVERS, SOCKET_WORDS, KnownDriver, covers
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, problem, warning
from dra_agent.inventory.model import Device


def check_conflicts(context: CheckContext) -> Iterator[Finding]:
    """Check the kubelet's sockets and the conflicts that the agent saved."""
    yield from _found_by_the_agent(context)
    yield from _other_agents(context)
    if context.inventory is None:
        return
    devices = context.inventory.devices
    for path in _sockets(context.kubelet_dir / "plugins_registry", context.driver):
        row = next((row for row in DRIVERS if path.name.startswith((f"{row.name}-", f"{row.name}.sock"))), None)
        if found := _of_vendor(path.name, devices) if row is None else _of_driver(row, devices):
            yield _socket_warning("a driver", found, path)
    for path in _sockets(context.kubelet_dir / "device-plugins", context.driver):
        if found := _of_vendor(path.name, devices):
            yield _socket_warning("a device plugin", found, path)


def _socket_warning(kind: str, devices: str, path: Path) -> Finding:
    return warning(
        f"{kind} seems to advertise {devices} devices too: both could allocate the same device",
        str(path),
        "remove it from this node, or exclude the devices (inventory.exclude); if it was removed already: its socket",
    )


def _of_driver(row: KnownDriver, devices: Sequence[Device]) -> str:
    return " and ".join(sorted({device.vendor for device in devices if covers(row.covers, device)}))


def _of_vendor(socket: str, devices: Sequence[Device]) -> str:
    vendors = sorted({device.vendor for device in devices})
    return next((vendor for vendor in vendors if any(word in socket for word in SOCKET_WORDS.get(vendor, ()))), "")


def _found_by_the_agent(context: CheckContext) -> Iterator[Finding]:
    saved = load_conflicts(context.state_dir)
    for group in saved.conflicts.groups():
        message = str(group).removeprefix(f"{group.manager} ")
        if saved.published:
            yield problem(
                f"{message}, and they are still published: each can be allocated to two pods",
                group.manager,
                'remove it here, exclude the devices, or set second_manager = "refuse"',
            )
        else:
            yield warning(
                f"{message}, so they are not published: {', '.join(group.names)}",
                group.manager,
                "separate the two by node labels, or exclude the devices in one (docs/how-to/devices/conflicts.md)",
            )
    for manager in saved.conflicts.unjudged:
        yield warning(
            "advertises devices for this node and is not judged: nothing shows whether they are devices of this host",
            manager,
            "if it manages devices that dra-agent publishes, exclude them (inventory.exclude)",
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

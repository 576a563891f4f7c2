"""Checks of the devices, their drivers and nodes, and of the permissions that the agent needs."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from dra_agent.claimable.drivers import DISPLAY_VENDORS
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.doctor.vendor_driver import driver_of
from dra_agent.inventory.model import Device, DeviceNode, Exclusion
from dra_agent.inventory.vendors import GPU_VENDORS
from dra_agent.topology import DeviceKind, Topology

_LOG = "check the kernel log (dmesg)"
_CURES = {
    "gpu-lost": "drain the node and reset or power-cycle the GPU",
    "reset-required": "drain the GPU, then reset it (nvidia-smi --gpu-reset)",
    "row-remap-failed": "have the GPU replaced",
    "link-down": "check cable, transceiver and switch port",
}
VFIO = "vfio-pci"
_SEVERITIES = {
    "unusable-driver": problem,
    "unsupported-platform": warning,
    "no-driver": warning,
    "no-node": warning,
    "node-unknown": problem,
    "incomplete-nodes": problem,
    "unreadable": problem,
    "no-iommu-group": warning,
    "iommu-group": warning,
    "vfio-noiommu": warning,
    "user-space-driver": warning,
}
"""For exclusions that are likely not meant; the others say what is as it should be."""


def check_devices(context: CheckContext) -> Iterator[Finding]:
    """Check the problems of the scan, and the driver and NUMA node of each device."""
    if context.failure is not None:
        yield problem(context.failure, "scan", "fix this first: the other checks find no devices")
    topology, inventory = context.topology, context.inventory
    if topology is not None:
        for scanned in topology.problems:
            yield warning(scanned.message, scanned.where, "the device is ignored; check it with lspci -vv")
        yield from _driver_versions(topology, context)
        yield from _numa(topology)
    if inventory is None:
        return
    for found in inventory.problems:
        make = problem if found.severity == "error" else warning
        yield make(found.message, found.where, found.hint or "")
    for device in inventory.devices:
        if device.health == "unhealthy":
            reason = device.health_reason or "is unhealthy"
            causes = [taint.key.partition("/")[2] for taint in device.taints]
            yield problem(reason, device.name, "; ".join(_CURES[c] for c in causes if c in _CURES) or _LOG)
    for exclusion in inventory.excluded_by_reason():
        yield _exclusion(exclusion, topology)
    count = len(inventory.devices)
    yield ok(f"{count} device{'' if count == 1 else 's'} can be claimed")


def _exclusion(exclusion: Exclusion, topology: Topology | None) -> Finding:
    message = f"not published ({exclusion.code}): {exclusion.reason}"
    function = topology.by_address.get(exclusion.pci_address or "") if topology is not None else None
    # The display of a management controller without a driver is nothing to repair.
    is_display = function is not None and function.kind is DeviceKind.GPU and function.vendor_id in DISPLAY_VENDORS
    make = None if is_display else _SEVERITIES.get(exclusion.code)
    return ok(message, exclusion.name) if make is None else make(message, exclusion.name, exclusion.hint)


def _driver_versions(topology: Topology, context: CheckContext) -> Iterator[Finding]:
    bound = {device.driver for device in topology.devices}
    for driver in (driver_of(vendor.name) for vendor in GPU_VENDORS.values()):
        version = driver.version
        if version is not None and version.driver in bound and not (context.host.proc / version.path).exists():
            file = str(context.host.proc / version.path)
            yield warning("the driver has GPUs but no version in procfs", file, version.hint)


def _numa(topology: Topology) -> Iterator[Finding]:
    if len(topology.numa_nodes) < 2:
        return
    unknown = [device.pci_address for device in topology.relevant if device.numa_node is None]
    if unknown:
        yield warning(
            f"{len(unknown)} devices have no known NUMA node, so claims cannot place work near them",
            ", ".join(unknown[:4]) + (", ..." if len(unknown) > 4 else ""),
            "update the firmware (its _PXM entries), or expose NUMA to this virtual machine",
        )


def check_device_nodes(context: CheckContext) -> Iterator[Finding]:
    """Check each device node once, also if several devices need it."""
    inventory = context.inventory
    if inventory is None:
        return
    needed: dict[str, tuple[DeviceNode, list[Device]]] = {}
    for device in inventory.devices:
        for node in device.nodes:
            needed.setdefault(node.path, (node, []))[1].append(device)
    wrong = 0
    for node, devices in needed.values():
        for finding in _node(context, node, devices):
            wrong += 1
            yield finding
    if needed and not wrong:
        yield ok(f"{len(needed)} device nodes are there")


def _node(context: CheckContext, node: DeviceNode, devices: list[Device]) -> Iterator[Finding]:
    path = Path(node.host_path)
    users = devices[0].name + (f" and {len(devices) - 1} more" if len(devices) > 1 else "")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        yield problem(f"is missing; {users} cannot be used", str(path), _node_hint(node, devices[0]))
        return
    except OSError as error:
        yield problem(f"cannot be checked: {error.strerror}", str(path), "run the doctor as root")
        return
    # Simulated hosts have plain files where they may not make device nodes.
    if not context.simulated and not stat.S_ISCHR(mode):
        yield problem(f"is not a character device; {users} cannot be used", str(path), _node_hint(node, devices[0]))


def _node_hint(node: DeviceNode, device: Device) -> str:
    if (hint := driver_of(device.vendor).node_hint(node.role)) is not None:
        return hint
    if node.role.startswith("vfio"):
        return "load the vfio-pci module, and bind the device to it"
    return "reload the device's driver; udev makes the node"


def check_permissions(context: CheckContext) -> Iterator[Finding]:
    """Check the user and the socket."""
    if context.user == 0:
        yield ok("runs as root")
    else:
        yield warning(
            f"runs as user {context.user}, which may lack permissions",
            "user",
            "run it as root, as the service does",
        )
    path = context.state_dir / context.socket_name
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        yield warning(f"cannot be checked: {error.strerror}", str(path), "run the doctor as root")
        return
    yield from _socket(path, mode)


def _socket(path: Path, mode: int) -> Iterator[Finding]:
    if not stat.S_ISSOCK(mode):
        yield problem("is not a socket", str(path), "remove it, and restart the agent")
        return
    if mode & 0o077:
        yield problem(
            f"others than its owner can reach it (mode {stat.S_IMODE(mode):o})", str(path), f"chmod 600 {path}"
        )
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2.0)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            yield warning("no agent listens there", str(path), "start the agent; it takes the place of the old socket")
        except OSError as error:
            yield warning(f"cannot be reached: {error.strerror or error}", str(path), "run the doctor as root")
        else:
            yield ok("the agent listens", str(path))

"""Whether every device has the nodes in /dev that a container needs."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem
from dra_agent.inventory import Device, DeviceNode


def check(examination: CheckContext) -> Iterator[Finding]:
    """Look at each node once, also where several devices need it."""
    inventory = examination.inventory
    if inventory is None:
        return
    needed: dict[str, tuple[DeviceNode, list[Device]]] = {}
    for device in inventory.devices:
        for node in device.nodes:
            needed.setdefault(node.path, (node, []))[1].append(device)
    wrong = 0
    for node, devices in needed.values():
        for finding in _node(examination, node, devices):
            wrong += 1
            yield finding
    if needed and not wrong:
        yield ok(f"{len(needed)} device nodes are there")


def _node(examination: CheckContext, node: DeviceNode, devices: list[Device]) -> Iterator[Finding]:
    path = Path(node.host_path)
    users = devices[0].name + (f" and {len(devices) - 1} more" if len(devices) > 1 else "")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        yield problem(f"is missing; {users} cannot be used", str(path), _todo(node, devices[0]))
        return
    except OSError as error:
        yield problem(f"cannot be looked at: {error.strerror}", str(path), "run the doctor as root")
        return
    # Simulated hosts have plain files where they may not make device nodes.
    if not examination.simulated and not stat.S_ISCHR(mode):
        yield problem(f"is no character device; {users} cannot be used", str(path), _todo(node, devices[0]))


def _todo(node: DeviceNode, device: Device) -> str:
    if device.vendor == "nvidia":
        return "run `nvidia-modprobe -u -c 0` (also at boot), or start nvidia-persistenced"
    if node.role == "kfd":
        return "load the amdgpu module (`modprobe amdgpu`)"
    if node.role.startswith("vfio"):
        return "load the vfio-pci module, and bind the device to it"
    return "reload the device's driver; udev makes the node"

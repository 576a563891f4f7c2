"""Checks the links /dev/char/MAJOR:MINOR, by which systemd looks up the devices of a container.

A container runtime that has systemd manage cgroups names the devices of a container by these paths (DeviceAllow=). A
device that systemd cannot find there is not part of the rules, which systemd applies again at each daemon-reload. udev
makes the links for devices that the kernel reports, and NVIDIA's driver reports none of its nodes
(opencontainers/runc#3842, NVIDIA/nvidia-docker#1730).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, warning
from dra_agent.doctor.runtimes import without_device_links
from dra_agent.doctor.vendor_driver import driver_of
from dra_agent.host import Host
from dra_agent.inventory.model import Device, DeviceNode

_SHOWN = 3
"""Nodes that a finding names."""


def check_device_links(context: CheckContext) -> Iterator[Finding]:
    """Check the link of each device node once; nothing where no udev makes links at all."""
    inventory, folder = context.inventory, context.host.dev / "char"
    if inventory is None or not folder.is_dir():
        return
    nodes = {node.path: (node, device) for device in inventory.devices for node in device.nodes}
    linked = _Links(context.host)
    missing = [(node, device) for node, device in nodes.values() if not linked.has(Path(node.host_path))]
    if not missing:
        if nodes:
            yield ok(f"{len(nodes)} device nodes have their links", str(folder))
        return
    names = ", ".join(node.path for node, _ in missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
    message = f"{len(missing)} of {len(nodes)} device nodes have no link there ({names})"
    reason = without_device_links(context)
    if reason is not None:
        yield ok(f"{message}, and need none: {reason}", str(folder))
        return
    yield warning(
        f"{message}: where systemd manages cgroups, `systemctl daemon-reload` takes them from running containers",
        str(folder),
        "; ".join(dict.fromkeys(_hint(context, node, device) for node, device in _one_of_each_vendor(missing))),
    )


class _Links:
    """The links of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._files: set[tuple[int, int]] | None = None

    def has(self, path: Path) -> bool:
        """Whether a node has a link with its number that leads to a node of this number; a missing node needs none."""
        try:
            status = path.stat()
        except OSError:
            return True  # of `check_device_nodes`
        if not stat.S_ISCHR(status.st_mode):
            # Simulated hosts have plain files where they may not make device nodes; these have no number.
            return (status.st_dev, status.st_ino) in self._targets()
        found = self._target(_number(status))
        return found is not None and stat.S_ISCHR(found.st_mode) and found.st_rdev == status.st_rdev

    def _targets(self) -> set[tuple[int, int]]:
        if self._files is None:
            found = (self._target(entry.name) for entry in (self._host.dev / "char").iterdir())
            self._files = {(status.st_dev, status.st_ino) for status in found if status is not None}
        return self._files

    def _target(self, name: str) -> os.stat_result | None:
        """Return what a link leads to; an absolute one stays below the host's /dev, wherever the agent sees that."""
        link = self._host.dev / "char" / name
        try:
            target = str(link.readlink())
            return (self._host.dev_path(target) if target.startswith("/dev/") else link).stat()
        except OSError:
            return None


def _number(status: os.stat_result) -> str:
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def _one_of_each_vendor(missing: list[tuple[DeviceNode, Device]]) -> Iterator[tuple[DeviceNode, Device]]:
    yield from {device.vendor: (node, device) for node, device in reversed(missing)}.values()


def _hint(context: CheckContext, node: DeviceNode, device: Device) -> str:
    tool = driver_of(device.vendor).link_command
    if not tool:
        return "let udev make them: `udevadm trigger --action=add`, and check systemd-udevd if they stay missing"
    when = "now, and at each boot before containers start"
    if context.commands.find(tool[0]) is not None:
        return f"run `{' '.join(tool)}` {when}"
    root, path = context.host.driver_root, Path(node.host_path)
    number = _number(status) if stat.S_ISCHR((status := path.stat()).st_mode) else "MAJOR:MINOR"
    seen = node.host_path if root is None else root.on_host(node.host_path)
    return f"link each node, {when}: `ln -sf {seen} {context.host.dev / 'char' / number}` for the first of them"

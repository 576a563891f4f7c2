"""Processes that have device nodes open, from /proc: unbinding a driver would break them, or hang until they exit.

Only processes that are visible to the agent are found. If it does not see all processes of the host, a device is never
reported as unused, and is not changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.process_visibility import TODO, hidden_processes_reason


@dataclass(frozen=True, slots=True)
class FileHolder:
    """A process that has a node open."""

    pid: int
    name: str
    node: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid}) has {self.node} open"


def require_unused(host: Host, nodes: Sequence[str], where: str, why: str = "") -> None:
    """Reject a driver change while a process uses the device; RetryableError names the process, or why it is unknown.

    `why` starts the message: "it is in mode SPX and in use".
    """
    prefix = f"{why}: " if why else ""
    if users := processes_holding(host, nodes):
        named = "; ".join(map(str, users[:5]))
        raise RetryableError(prefix + named, where=where, hint="stop them; the agent retries")
    if nodes and (hidden := hidden_processes_reason(host)):
        message = f"cannot determine if a process has {nodes[0]} open: {hidden}"
        raise RetryableError(prefix + message, where=where, hint=TODO)


def processes_holding(host: Host, nodes: Iterable[str]) -> list[FileHolder]:
    """Return the processes that have one of the nodes ("/dev/nvidia0") open, except for the agent's own."""
    node_by_identity = {identity: node for node in nodes if (identity := _identity(host.dev_path(node))) is not None}
    if not node_by_identity:
        return []
    found = []
    prefixes = ("/dev/", f"{host.dev}/")
    for process in host.proc.iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        opened = {node_by_identity[one] for one in _open_files(process, prefixes) if one in node_by_identity}
        found += [FileHolder(int(process.name), _name(process), node) for node in sorted(opened)]
    return sorted(found, key=lambda holder: holder.pid)


def nodes_of(host: Host, address: str, minor: str | None = None) -> list[str]:
    """Return the device nodes of a function's driver; those of NVIDIA are not in /sys and are found by minor number."""
    folder = host.sysfs / "bus/pci/devices" / address
    nodes = [f"/dev/nvidia{minor}"] if minor is not None and minor.isdecimal() else []
    try:
        below = os.walk(folder.resolve(strict=True))
    except OSError:
        return nodes
    for where, folders, files in below:
        # Functions behind a bridge are separate: directories with an address.
        folders[:] = [name for name in folders if ":" not in name and name not in {"power", "msi_irqs"}]
        if "dev" in files and "uevent" in files:
            nodes += _uevent_nodes(Path(where) / "uevent")
    return sorted(set(nodes))


def _uevent_nodes(uevent: Path) -> list[str]:
    try:
        lines = uevent.read_text().splitlines()
    except OSError:
        return []
    return [f"/dev/{line.removeprefix('DEVNAME=')}" for line in lines if line.startswith("DEVNAME=")]


def _open_files(process: Path, prefixes: tuple[str, str]) -> Iterable[tuple[str, int, int]]:
    try:
        files = list((process / "fd").iterdir())
    except OSError:
        return  # it has exited, or the agent may not read it
    for file in files:
        try:
            # Compared by name first: stat of a file on a failed server could block indefinitely.
            if file.readlink().as_posix().startswith(prefixes) and (identity := _identity(file)) is not None:
                yield identity
        except OSError:
            continue


def _identity(path: Path) -> tuple[str, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISCHR(status.st_mode):
        return ("device", status.st_rdev, 0)
    return ("file", status.st_dev, status.st_ino)  # represents a device node on a simulated host


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "a process"

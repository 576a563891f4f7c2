"""Processes that have device nodes open, from /proc: a change would break them, or hang until they exit.

A device is compared by its kind and number: a container has its own nodes, and any process can make another one. Only
processes that are visible to the agent are found. If it does not see all processes of the host, cannot read the files
of one, or has not read them in time, a device is never reported as unused, and is not changed.

A process that has mapped memory of a device and closed its file is not found: /proc/PID/maps waits for a lock that the
process itself can hold.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.vendors import gpu_vendor
from dra_agent.processes.file_tables import file_tables
from dra_agent.processes.open_file import FileIdentity, device_identity, identity_of
from dra_agent.processes.stat import process_ids, read_stat
from dra_agent.processes.visibility import hidden_processes_reason, permission_hint

SEARCH_TIMEOUT_S = 30.0
"""Seconds for the open files of all processes. On a busy host, 190 processes with 1,900 files take 0.12 s of CPU."""
_WITHOUT_PATH = ("socket:[", "pipe:[", "anon_inode:")
"""Of the link of an open file (proc(5)). The path of a device node begins with a slash."""
_BLOCK = "block"
"""The class of all block devices; those of any other are character devices (Linux, drivers/base/devtmpfs.c)."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of a function's driver."""

    path: str
    """As containers see it: "/dev/nvidia0"."""
    number: tuple[int, int] | None = None
    """Major and minor number, where the kernel shows it elsewhere than in /dev."""
    is_block: bool = False
    """Of which kind the number is."""

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class FileHolder:
    """A process that has a node open."""

    pid: int
    name: str
    node: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid}) has {self.node} open"


@dataclass(frozen=True, slots=True)
class FileHolders:
    """Who has nodes open, of all processes that are visible, except for the agent."""

    found: Sequence[FileHolder]
    """By process and node."""
    unread: Mapping[int, str]
    """Processes whose open files cannot be read, with the reason."""
    unsearched: int = 0
    """Processes whose open files were not all read in time."""
    available_s: float = SEARCH_TIMEOUT_S
    """Seconds that the search had."""


class _LateError(Exception):
    """The time for the search is over."""


def require_unused(
    host: Host,
    nodes: Sequence[DeviceNode],
    where: str,
    deadline: Deadline,
    why: str = "",
    *,
    drop_in: str = "devices.conf",
) -> None:
    """Reject a change while a process uses the device; RetryableError names the process, or why it is unknown.

    `why` starts the message: "it is in mode SPX and in use"; `drop_in` permits the search. It takes at most
    SEARCH_TIMEOUT_S, ends at the deadline, and takes a little more for the file that is read then.
    """
    prefix = f"{why}: " if why else ""
    holders = processes_holding(host, nodes, deadline)
    refuse_holders(holders, where, prefix)
    hidden = hidden_processes_reason(host) if nodes else ""
    if not hidden and holders.unread:
        pid, reason = min(holders.unread.items())
        hidden = f"the agent cannot read the open files of process {pid} ({reason})"
    if hidden:
        message = f"cannot determine if a process has {nodes[0]} open: {hidden}"
        raise RetryableError(prefix + message, where=where, hint=permission_hint(drop_in))


def refuse_holders(holders: FileHolders, where: str, prefix: str = "") -> None:
    """Raise RetryableError for processes that have a node open, or that were not searched in time."""
    if holders.found:
        named = "; ".join(map(str, holders.found[:5]))
        raise RetryableError(prefix + named, where=where, hint="stop them; the agent retries")
    if holders.unsearched:
        number = "1 process" if holders.unsearched == 1 else f"{holders.unsearched} processes"
        raise RetryableError(
            f"{prefix}cannot determine if it is in use: the agent has not read the open files of {number} within "
            f"{holders.available_s:.3g} s",
            where=where,
            hint="end processes with very many threads or open files; the agent retries",
        )


def processes_holding(host: Host, nodes: Iterable[DeviceNode], deadline: Deadline) -> FileHolders:
    """Return the processes that have one of the nodes open, by any path, except for the agent.

    The search ends at the deadline, and after SEARCH_TIMEOUT_S. Raises RetryableError if /proc cannot be read.
    """
    node_by_identity = {identity: node.path for node in nodes for identity in _identities(host, node)}
    found: list[FileHolder] = []
    unread: dict[int, str] = {}
    pids = sorted(listed_processes(host)) if node_by_identity else []
    deadline = deadline.capped(SEARCH_TIMEOUT_S)
    available_s = deadline.remaining()
    for number, pid in enumerate(pids):
        if pid == os.getpid():
            continue
        opened: set[str] = set()
        try:
            for one in _open_files(host.proc, pid, deadline):
                if one in node_by_identity:
                    opened.add(node_by_identity[one])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has exited
        except _LateError:
            found += _holders(host, pid, opened)
            return FileHolders(found, unread, len(pids) - number, available_s)
        except OSError as error:
            unread[pid] = error.strerror or str(error)
            continue
        found += _holders(host, pid, opened)
    return FileHolders(found, unread)


def listed_processes(host: Host) -> list[int]:
    """Return the processes of the host that are visible. Raises RetryableError."""
    try:
        return process_ids(host.proc)
    except OSError as error:
        raise _unreadable(host.proc, error) from error


def _unreadable(path: Path, error: OSError) -> RetryableError:
    reason = error.strerror or str(error)
    return RetryableError(f"cannot determine what uses devices: {reason}", where=str(path), hint="the agent retries")


def _holders(host: Host, pid: int, nodes: Iterable[str]) -> list[FileHolder]:
    return [FileHolder(pid, _name(host.proc / str(pid)), node) for node in sorted(nodes)]


def device_nodes(host: Host, device: Device) -> list[DeviceNode]:
    """Return the device nodes of a device's driver: those of its function, and those that are not in /sys."""
    nodes = function_nodes(host, device.pci_address)
    vendor, minor = gpu_vendor(device.vendor), device.identity.get("minor", "")
    if vendor is not None and vendor.numbered_nodes is not None and minor.isdecimal():
        prefix, major = vendor.numbered_nodes
        nodes.append(DeviceNode(f"{prefix}{minor}", (major, int(minor))))
    return nodes


def function_nodes(host: Host, address: str) -> list[DeviceNode]:
    """Return the device nodes of a function's driver that are in /sys, in the order of their paths.

    Raises RetryableError if they cannot be read: without them, a device would be reported as unused.
    """
    folder = host.sysfs / "bus/pci/devices" / address
    nodes: list[DeviceNode] = []

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile
            raise _unreadable(folder, error) from error

    try:
        folder = folder.resolve(strict=True)
    except OSError as error:
        failed(error)
        return nodes
    for where, folders, files in os.walk(folder, onerror=failed):
        # Functions behind a bridge are separate: directories with an address.
        folders[:] = [name for name in folders if ":" not in name and name not in {"power", "msi_irqs"}]
        if "dev" in files and "uevent" in files:
            nodes += _uevent_nodes(Path(where) / "uevent")
    return sorted(set(nodes), key=str)


def class_node(host: Host, class_: str, name: str, path: str) -> DeviceNode:
    """Return the device node at a path, of a device by its class and name: "drm", "renderD128"."""
    number = None
    with suppress(OSError):
        number = _number(*(host.sysfs / "class" / class_ / name / "dev").read_text().strip().partition(":")[::2])
    return DeviceNode(path, number, class_ == _BLOCK)


def _number(major: str, minor: str) -> tuple[int, int] | None:
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _uevent_nodes(uevent: Path) -> list[DeviceNode]:
    try:
        lines = uevent.read_text().splitlines()
    except FileNotFoundError:
        return []  # removed meanwhile
    except OSError as error:
        if error.errno == errno.ENODEV:
            return []  # being removed
        raise _unreadable(uevent, error) from error
    values = dict(line.partition("=")[::2] for line in lines)
    number = _number(values.get("MAJOR", ""), values.get("MINOR", ""))
    is_block = (uevent.parent / "subsystem").resolve().name == _BLOCK
    return [DeviceNode(f"/dev/{values['DEVNAME']}", number, is_block)] if "DEVNAME" in values else []


def _identities(host: Host, node: DeviceNode) -> set[FileIdentity]:
    """Return what an open file of the node can be; NVIDIA's driver may have its nodes in another directory."""
    found = {device_identity(*node.number, is_block=node.is_block)} if node.number is not None else set()
    for path in (host.dev_path(node.path), host.driver_node(node.path)):
        with suppress(OSError):
            found.add(identity_of(path))
    return found


def _open_files(proc: Path, pid: int, deadline: Deadline) -> Iterable[FileIdentity]:
    """Yield what a process has open. Raises _LateError after the deadline."""

    def check() -> None:
        if not deadline.remaining():
            raise _LateError

    check()
    for table in file_tables(proc, pid, check):
        try:
            with os.scandir(table / "fd") as files:
                for file in files:
                    check()
                    # Closed meanwhile, or on a file system that is not for root (FUSE) or does not respond: no device
                    # node.
                    with suppress(OSError):
                        if _may_be_node(file.path):
                            yield identity_of(file.path)
        except (FileNotFoundError, ProcessLookupError):
            continue  # this thread has ended
        except PermissionError:
            # A first thread that has ended has no files, and what is left of it belongs to root.
            stat = read_stat(pid, proc)
            if stat is not None and stat.state != "Z":
                raise


def _may_be_node(link: str) -> bool:
    """Whether an open file can be a device node, without the cost of reading what it is."""
    try:
        return not os.readlink(link).startswith(_WITHOUT_PATH)  # noqa: PTH115 - many files
    except OSError as error:
        # A path can be longer than the kernel returns; on a simulated host it can be a file.
        return error.errno in (errno.ENAMETOOLONG, errno.EINVAL)


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "a process"

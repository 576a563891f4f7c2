"""Open files of DRM drivers, from /proc/PID/fdinfo: the busy time of each kind of engine, by client.

The format is that of Linux, Documentation/gpu/drm-usage-stats.rst. Only the fields that utilization needs are decoded.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from dra_agent.processes.file_tables import file_tables

MAX_FDINFO_BYTES = 16 << 10
"""Bytes of one file; xe writes about 1 KiB."""
MAX_PROCESSES = 1024
"""Of one pod. Each further table of open files of a process counts as a process. What a pod has more leaves the claims
of other pods known."""
MAX_THREADS = 65_536
"""Of the processes of one pod: each is compared with others, to find further tables."""
MAX_FILES = 16_384
"""Open files of the processes of one pod."""
COMPUTING = {
    "amdgpu": frozenset({"gfx", "compute"}),
    "i915": frozenset({"render", "compute"}),
    "xe": frozenset({"rcs", "ccs"}),
}
"""By driver: engines that compute, and do not only copy or encode (amdgpu_fdinfo.c; Documentation/gpu/i915.rst;
Documentation/gpu/xe/xe-drm-usage-stats.rst)."""
_LISTS_IDLE_ENGINES = frozenset({"i915", "xe"})
"""amdgpu leaves out engines that a client has not used."""
_NODES = "/dev/dri/"
_FIELD = re.compile(r"(drm-[a-z0-9-]{1,60}):[ \t]*(\S{1,40})(?: ?([A-Za-z]{1,8}))?[ \t]*")
_NUMBER = re.compile(r"[0-9]{1,20}")
_OLD_AMDGPU = re.compile(r"^pdev:\s", re.MULTILINE)
"""amdgpu of Linux 5.14 to 5.18, which has percentages in another format."""
_DMA_BUF = re.compile(r"^exp_name:\t", re.MULTILINE)
"""A buffer, and no client. The line after this one has a name that a process chooses, with line breaks
(drivers/dma-buf/dma-buf.c, dma_buf_show_fdinfo)."""


class UncountedError(Exception):
    """It is not known how long engines worked for a process."""


class Engine(msgspec.Struct, frozen=True):
    """Counters of one kind of engine for one client."""

    busy: int
    """Nanoseconds, or cycles where `total` has those that passed."""
    total: int | None = None
    capacity: int = 1
    """Number of engines of the kind."""


class Client(msgspec.Struct, frozen=True):
    """One open file of DRM."""

    driver: str
    address: str
    """Of the PCI function."""
    id: int
    """Unique for this function."""
    engines: dict[str, Engine]
    """Those that compute."""


def parse(text: str) -> Client | None:
    """Decode the text of a file; None if it is not a file of a driver in COMPUTING.

    Raises:
        UncountedError: The driver does not count by client.
        ValueError: It is not in the format.
    """
    if _DMA_BUF.search(text):
        return None
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("drm-"):
            continue
        found = _FIELD.fullmatch(line)
        if found is not None:  # others are of keys that are not read
            fields[found[1]] = found[2]
    driver, address = fields.get("drm-driver", ""), fields.get("drm-pdev", "")
    if driver not in COMPUTING:
        if _OLD_AMDGPU.search(text):
            raise UncountedError("this version of amdgpu does not count by client")
        return None
    if "drm-client-id" not in fields or not address:
        raise UncountedError(f"{driver} does not count by client")
    engines: dict[str, Engine] = {}
    for kind in COMPUTING[driver]:
        capacity = _number(fields, f"drm-engine-capacity-{kind}")
        if capacity == 0:
            raise ValueError(f"drm-engine-capacity-{kind} is 0")
        busy, total = _number(fields, f"drm-cycles-{kind}"), _number(fields, f"drm-total-cycles-{kind}")
        if busy is None or total is None:
            busy, total = _number(fields, f"drm-engine-{kind}"), None
        if busy is not None:
            engines[kind] = Engine(busy, total, 1 if capacity is None else capacity)
    if not engines and driver in _LISTS_IDLE_ENGINES:
        raise UncountedError(f"{driver} does not count for this GPU")
    return Client(driver, address, _number(fields, "drm-client-id") or 0, engines)


class DrmReader:
    """Reads the clients of processes, within the limits of one reading."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._processes: Counter[str] = Counter()
        self._threads: Counter[str] = Counter()
        self._files: Counter[str] = Counter()

    def clients(self, pid: int, pod: str) -> list[Client]:
        """Return the clients that a process has open, each as often as it has it.

        `pod` is that of the process, or another name of processes that have limits together.

        Raises:
            OSError: It has exited (FileNotFoundError, ProcessLookupError), or cannot be read.
            UncountedError: Its driver does not count by client, or it is beyond the limits.
            ValueError: A file is not in the format.
        """
        found = []
        for table in file_tables(self._proc, pid, lambda: self._count_thread(pod)):
            self._processes[pod] += 1
            if self._processes[pod] > MAX_PROCESSES:
                raise UncountedError(f"its pod has more than {MAX_PROCESSES} processes and threads with own files")
            try:
                found += self._clients_in(table, pod)
            except (FileNotFoundError, ProcessLookupError):
                if table.name == str(pid):
                    raise
        return found

    def _count_thread(self, pod: str) -> None:
        self._threads[pod] += 1
        if self._threads[pod] > MAX_THREADS:
            raise UncountedError(f"the processes of its pod have more than {MAX_THREADS} threads")

    def _clients_in(self, table: Path, pod: str) -> list[Client]:
        found = []
        for descriptor in numeric_entries(table / "fd"):
            self._files[pod] += 1
            if self._files[pod] > MAX_FILES:
                raise UncountedError(f"the processes of its pod have more than {MAX_FILES} files open")
            try:
                target = _target(table / "fd" / descriptor)
                if not target.startswith("/"):
                    continue  # a socket, a pipe or another file without a name
                with (table / "fdinfo" / descriptor).open("rb") as file:
                    content = file.read(MAX_FDINFO_BYTES + 1)
            except FileNotFoundError:
                continue  # closed meanwhile
            if len(content) > MAX_FDINFO_BYTES:
                if target.startswith(_NODES):
                    raise UncountedError(f"fdinfo of {target} has more than {MAX_FDINFO_BYTES} bytes")
                continue
            text = content.decode(errors="replace")
            client = parse(text)
            if client is not None:
                found.append(client)
            elif target.startswith(_NODES) and "drm-driver" not in text:
                raise UncountedError(f"the driver of {target} does not count by client")
        return found


def _target(link: Path) -> str:
    try:
        return link.readlink().as_posix()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return "/"  # fdinfo names the driver of a file with any path


def numeric_entries(folder: Path) -> Iterable[str]:
    """Return the entries of a folder of /proc that are numbers."""
    # An iterator, so that a process with many files does not take as much memory here.
    return (path.name for path in folder.iterdir() if path.name.isdecimal())


def _number(fields: Mapping[str, str], name: str) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None or int(text) >= 1 << 64:
        raise ValueError(f"{name} is {text!r}, not a number")
    return int(text)

"""Takes a resource away from running processes for a while: threads, descriptors, memory, the disk, a read stderr.

The limits are those of the kernel (setrlimit(2)), changed from outside while the process runs. It does not limit
the threads of root, so an agent of root runs as another user that may read and write every file.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import permissions
from dra_agent.processes.tree import descendants
from faults.disk import Disk, Fault

UID = 64_999
"""The user of the agents of root. Nobody else's."""
PIPE_BYTES = 4096
"""Capacity of the pipe of a log: the smallest, so that it is full after some lines."""
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _AMBIENT_RAISE = 4, 8, 47, 2
_CAPABILITIES = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of linux/capability.h."""


def leave_root() -> None:
    """Become UID, with the permission to read and write every file, also in child processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    permissions.keep_ignoring()
    for capability in _CAPABILITIES:
        libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability, 0, 0)
    # Otherwise /proc of this process belongs to root.
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def give_away(folder: Path) -> None:
    """Have the files of root belong to UID: access(2) does not heed the capabilities of other users."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, UID, UID, follow_symlinks=False)


VARIABLE = "FAULTS_SHORTAGE"
"""Has the name of the resource that a new process lacks from its start."""
PATCH = "from faults.shortage import begin_process\nbegin_process()\n"
"""The first statements of an agent's process."""


def begin_process() -> None:
    """Leave root, and lack what the environment names."""
    if os.geteuid() == 0:
        leave_root()
    if (name := os.environ.pop(VARIABLE, "")) in LIMITS:
        kind, value = LIMITS[name]
        _, hard = resource.getrlimit(_RESOURCES[kind])
        resource.setrlimit(_RESOURCES[kind], (value(os.getpid()), hard))


def lowest_free_descriptor(pid: int) -> int:
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(used) + 1) if number not in used)


def _mapped_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


_RESOURCES = {"nproc": resource.RLIMIT_NPROC, "nofile": resource.RLIMIT_NOFILE, "as": resource.RLIMIT_AS}
LIMITS: dict[str, tuple[str, Callable[[int], int]]] = {
    "threads": ("nproc", lambda pid: 1),
    "descriptors": ("nofile", lowest_free_descriptor),
    "memory": ("as", _mapped_bytes),
}
"""The limit of each resource, and the value at which a process gets no more than it has."""
RESOURCES = (*LIMITS, "disk", "stderr")


def limit(name: str, pids: Iterable[int]) -> None:
    """Give these processes no more than they have. One that has ended needs nothing."""
    kind, value = LIMITS[name]
    for pid in pids:
        with suppress(FileNotFoundError):
            _set_soft_limit(pid, kind, str(value(pid)))


def release(name: str, pids: Iterable[int]) -> None:
    """Give these processes as much as this process has."""
    kind, _ = LIMITS[name]
    soft = resource.getrlimit(_RESOURCES[kind])[0]
    for pid in pids:
        _set_soft_limit(pid, kind, "unlimited" if soft == resource.RLIM_INFINITY else str(soft))


def _set_soft_limit(pid: int, kind: str, soft: str) -> None:
    # Root needs CAP_SYS_RESOURCE to change the limits of another user, which that user does not need.
    user = UID if os.geteuid() == 0 else None
    with suppress(FileNotFoundError):
        if user is not None and Path(f"/proc/{pid}").stat().st_uid != user:
            return  # a process that has just begun: it has its own limits from its start
    command = ["prlimit", "--pid", str(pid), f"--{kind}={soft}:"]
    done = subprocess.run(
        command, user=user, group=user, cwd="/", env={"PATH": os.defpath}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 and Path(f"/proc/{pid}").exists():
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


FULL = Fault("ENOSPC-sticky", 28, sticky=True)


class Log:
    """A pipe whose reader writes a file, and can stop to read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._may_read = threading.Event()
        self._may_read.set()
        self._threads: list[threading.Thread] = []

    def open(self) -> int:
        """Return the end to write to, for one process; the caller closes its copy."""
        ours, theirs = os.pipe()
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        thread = threading.Thread(target=self._read, args=[ours], name="log")
        thread.start()
        self._threads.append(thread)
        return theirs

    def stop_reading(self) -> None:
        self._may_read.clear()

    def read_again(self) -> None:
        self._may_read.set()

    def text(self) -> str:
        return self._path.read_text(errors="replace") if self._path.exists() else ""

    def close(self) -> None:
        """Wait until every writer has closed its end."""
        self.read_again()
        for thread in self._threads:
            thread.join()

    def _read(self, pipe: int) -> None:
        with open(pipe, "rb", buffering=0) as source, self._path.open("ab", buffering=0) as target:
            while self._may_read.wait() and (data := source.read(PIPE_BYTES)):
                target.write(data)


class Shortages:
    """Takes away and gives back the resources of the processes that `pid` returns, of their disk and their log."""

    def __init__(self, pid: Callable[[], int | None], disk: Disk, log: Log) -> None:
        self._pid, self._disk, self._log = pid, disk, log
        self.current = ""
        """The resource that is taken away now."""

    def begin(self, name: str) -> None:
        """Take away one of RESOURCES."""
        self.current = name
        if name == "disk":
            self._disk.arm(0, FULL)
        elif name == "stderr":
            self._log.stop_reading()
        elif (pid := self._pid()) is not None:
            limit(name, [pid, *descendants(pid)])

    def end(self, name: str) -> None:
        """Give it back."""
        self.current = ""
        if name == "disk":
            self._disk.repair()
        elif name == "stderr":
            self._log.read_again()
        elif (pid := self._pid()) is not None:
            release(name, [pid, *descendants(pid)])

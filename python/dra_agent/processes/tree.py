"""The processes below one process. Those whose parents have ended become children of a subreaper (prctl(2))."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

from dra_agent.processes.stat import ProcessStat, process_ids, read_stat

_PR_SET_CHILD_SUBREAPER = 36


def set_subreaper(*, on: bool = True) -> None:
    """Have this process adopt what is started below it. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def descendants(root: int, proc: Path = Path("/proc")) -> dict[int, ProcessStat]:
    """Return the processes below `root` that have not ended."""
    found: dict[int, ProcessStat] = {}
    children: dict[int, list[int]] = {}
    for pid in process_ids(proc):
        with suppress(OSError, ValueError):
            if (stat := read_stat(pid, proc)) is not None:
                found[pid] = stat
                children.setdefault(stat.parent, []).append(pid)
    below: dict[int, ProcessStat] = {}
    pending = [root]
    while pending:
        for pid in children.get(pending.pop(), ()):
            pending.append(pid)
            if not found[pid].has_ended:
                below[pid] = found[pid]
    return below


def send_signal(number: int, root: int) -> None:
    """Send a signal to each process below `root`; one that has ended meanwhile gets none."""
    for pid, stat in descendants(root).items():
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            with suppress(OSError, ValueError):
                current = read_stat(pid)
                if current is not None and current.started == stat.started:
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def reap(*, block: bool = False) -> tuple[dict[int, int], bool]:
    """Wait for children that have ended; returns their exit codes by pid, and whether other children remain.

    With `block`, wait until none remains.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = os.waitstatus_to_exitcode(status)

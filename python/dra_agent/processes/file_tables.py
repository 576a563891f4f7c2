"""The tables of open files of a process: threads usually share one, and any of them may have another.

/proc/PID/fd shows the table of the first thread only. It is empty after that thread has ended, while others run; and a
thread has another table after unshare(CLONE_FILES).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

_KCMP = {"x86_64": 312, "aarch64": 272}
"""System call numbers (kcmp(2)), which libraries do not wrap."""
_KCMP_FILES = 2
_SAME, _LESS = 0, 1


def file_tables(proc: Path, pid: int, each_thread: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Return a directory with `fd` and `fdinfo` for each table of a process, the first thread's first.

    Where the kernel does not compare tables, each thread counts as having its own. A thread that starts meanwhile may
    be missed.

    Arguments:
        proc: The directory of processes.
        pid: The process.
        each_thread: Called for each further thread before its table is compared; an exception of it ends the search.

    Raises:
        OSError: The process has exited (FileNotFoundError, ProcessLookupError), or its threads cannot be listed.
    """
    process = proc / str(pid)
    yield process
    tables = _Tables(is_real=proc == Path("/proc"))
    tables.add(pid)
    try:
        with os.scandir(process / "task") as threads:
            for thread in threads:
                if thread.name.isdecimal() and thread.name != str(pid):
                    each_thread()
                    if tables.add(int(thread.name)):
                        yield process / "task" / thread.name
    except FileNotFoundError:
        if not process.is_dir():
            raise
        # a simulated process has no threads


class _Tables:
    """Threads with different tables, in the order of the kernel: a process may have thousands of tables."""

    def __init__(self, *, is_real: bool) -> None:
        """`is_real`: the threads are those of this machine."""
        self._compare = _comparison() if is_real else None
        self._sorted: list[int] = []

    def add(self, thread: int) -> bool:
        """Return whether no earlier thread is known to have the same table."""
        if self._compare is None:
            return True
        low, high = 0, len(self._sorted)
        while low < high:
            middle = (low + high) // 2
            order = self._compare(thread, self._sorted[middle])
            if order == _SAME:
                return False
            if order < 0:  # one of them has ended, or may not be compared
                return True
            low, high = (low, middle) if order == _LESS else (middle + 1, high)
        self._sorted.insert(low, thread)
        return True


class _Comparison:
    def __init__(self, number: int) -> None:
        self._number = number
        self._call = ctypes.CDLL(None).syscall
        self._call.restype = ctypes.c_long
        self._call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong]

    def __call__(self, one: int, other: int) -> int:
        """Return the order of the tables of two threads, _SAME for one table, -1 if it is not known."""
        return int(self._call(self._number, one, other, _KCMP_FILES, 0, 0))


def _comparison() -> _Comparison | None:
    number = _KCMP.get(os.uname().machine)
    return None if number is None else _Comparison(number)

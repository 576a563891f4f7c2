"""The state and start time of a process, from /proc/PID/stat (proc(5)).

`environ` and `cmdline` are not read here: they wait for a lock that the process itself can hold (see environment.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_STATE, _PARENT, _THREADS, _START_TIME = 0, 1, 17, 19
"""Positions after the name, from 0."""


class ProcessStat(NamedTuple):
    """One process at one moment."""

    state: str
    """"R", "S", "Z" and others; that of the first thread."""
    parent: int
    threads: int
    """Those that run, and the first, until its parent has waited for it."""
    started: int
    """Clock ticks since boot: distinguishes it from another process with the same PID."""

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie. A process whose first thread has ended is not, while other threads run."""
        return self.state in {"Z", "X"} and self.threads <= 1


def read_stat(pid: int, proc: Path = Path("/proc")) -> ProcessStat | None:
    """Return the state of a process; None if it does not exist.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not in the format.
    """
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may contain any characters.
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _START_TIME:
        raise ValueError(f"stat of process {pid} has {len(fields)} fields after the name")
    return ProcessStat(fields[_STATE], int(fields[_PARENT]), int(fields[_THREADS]), int(fields[_START_TIME]))


def start_time(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not exist, or cannot be read."""
    try:
        stat = read_stat(pid, proc)
    except (OSError, ValueError):
        return None
    return None if stat is None else stat.started


def process_ids(proc: Path = Path("/proc")) -> list[int]:
    """Return the processes that exist. Raises OSError."""
    return [int(path.name) for path in proc.iterdir() if path.name.isdecimal()]

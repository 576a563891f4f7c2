"""Processes that were started with a variable, from /proc/PID/environ (proc(5)).

A process that has overwritten its environment is not found, and none that was started without the variable. The kernel
waits for a lock that the process itself can hold: a search that waits too long is given up, and its thread remains.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dra_agent.processes.stat import process_ids
from dra_agent.threads import start_thread

SEARCH_TIMEOUT_S = 10.0
"""Seconds for the environments of all processes, which are in memory."""


class _Search:
    def __init__(self, variable: str) -> None:
        self._variable = variable.encode()
        self._pids = sorted(process_ids())
        self.found: list[int] = []
        self.current = 0
        """The process whose environment is being read."""

    def run(self) -> None:
        for pid in self._pids:
            self.current = pid
            if self._variable in _environment(pid).split(b"\0"):
                self.found.append(pid)


def processes_with(variable: str) -> list[int]:
    """Return the processes that were started with this NAME=VALUE, of those whose environment may be read.

    Raises:
        TimeoutError: The environment of a process was not read in time.
        OSError: The processes cannot be listed.
    """
    search = _Search(variable)
    thread = start_thread("environments", search.run)
    thread.join(SEARCH_TIMEOUT_S)
    if thread.is_alive():
        raise TimeoutError(
            f"the environment of process {search.current} is not readable within {SEARCH_TIMEOUT_S:.0f} s"
        )
    return search.found


def _environment(pid: int) -> bytes:
    """Return it as the first thread shows that has not ended; empty if it cannot be read."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
        for thread in threads:
            with suppress(OSError):
                if content := (Path(thread.path) / "environ").read_bytes():
                    return content
    return b""

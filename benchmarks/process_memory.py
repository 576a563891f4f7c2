"""Memory of a process and its children, from /proc."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PAGE_BYTES = 4096
ENTRY_BYTES = 8
PRESENT = 1 << 63
FRAME = (1 << 55) - 1
"""Bits of an entry of /proc/PID/pagemap (Linux, Documentation/admin-guide/mm/pagemap.rst)."""


def rollup(pid: int) -> dict[str, float]:
    """Return MiB by field for one process; see proc_pid_smaps_rollup(5)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for file in lists for child in file.read_text().split()]
    return [pid, *(member for child in children for member in family(int(child)))]


def pages_once_mib(pids: Iterable[int]) -> float:
    """Return the resident MiB of processes, with each page counted once, also if other programs share it.

    That is what a cgroup is charged which first uses the files of the program. PermissionError without CAP_SYS_ADMIN,
    because the kernel hides the frames then.
    """
    frames: set[int] = set()
    for pid in pids:
        with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                first, last = (int(address, 16) // PAGE_BYTES for address in line.split()[0].split("-"))
                entries = array("Q")
                with suppress(OSError, OverflowError):  # the vsyscall page is above all addresses of a process
                    pagemap.seek(first * ENTRY_BYTES)
                    entries.frombytes(pagemap.read((last - first) * ENTRY_BYTES))
                frames.update(entry & FRAME for entry in entries if entry & PRESENT)
    if frames <= {0}:
        raise PermissionError("the frames of /proc/PID/pagemap are hidden: run the benchmark as root")
    return len(frames) * PAGE_BYTES / (1 << 20)

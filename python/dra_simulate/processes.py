"""Processes of a simulated host, as /proc shows them: their cgroup, and the clients of DRM that they have open."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from dra_simulate.tree import replace_file

CLOCK_TICKS_AT_START = 100
"""When a process started, in clock ticks since boot, unless it is given."""


def run(root: Path, pid: int, cgroup: str, *, name: str = "train", started: int = CLOCK_TICKS_AT_START) -> None:
    """Add a process in a cgroup ("kubepods.slice/..."), or replace it. `started` is in clock ticks since boot."""
    folder = root / "proc" / str(pid)
    for below in ("fd", "fdinfo"):
        (folder / below).mkdir(parents=True, exist_ok=True)
    replace_file(folder / "comm", f"{name}\n".encode())
    replace_file(folder / "cgroup", f"0::/{cgroup}\n".encode())
    # Fields 4 to 21 of proc(5) are not of interest.
    replace_file(folder / "stat", f"{pid} ({name}) S {'0 ' * 18}{started} 0\n".encode())


def end(root: Path, pid: int) -> None:
    """Remove a process; does nothing if there is none."""
    shutil.rmtree(root / "proc" / str(pid), ignore_errors=True)


def open_drm(
    root: Path,
    pid: int,
    descriptor: int,
    driver: str,
    address: str,
    client: int,
    engines: Mapping[str, int | tuple[int, int]],
    *,
    capacity: Mapping[str, int] | None = None,
) -> None:
    """Let a process have a client of a DRM driver open, with the busy time of its engines; replaces its counters.

    A number is in nanoseconds (amdgpu, i915), a pair is the busy and all cycles (xe).
    """
    folder = root / "proc" / str(pid)
    lines = ["pos:\t0", "flags:\t02100002", f"drm-driver:\t{driver}", f"drm-client-id:\t{client}"]
    lines.append(f"drm-pdev:\t{address}")
    for kind, value in engines.items():
        if isinstance(value, tuple):
            lines += [f"drm-cycles-{kind}:\t{value[0]}", f"drm-total-cycles-{kind}:\t{value[1]}"]
        else:
            lines.append(f"drm-engine-{kind}:\t{value} ns")
    lines += [f"drm-engine-capacity-{kind}:\t{number}" for kind, number in (capacity or {}).items()]
    link = folder / "fd" / str(descriptor)
    if not link.is_symlink():
        link.symlink_to("/dev/dri/renderD128")
    replace_file(folder / "fdinfo" / str(descriptor), ("\n".join(lines) + "\n").encode())


def close_drm(root: Path, pid: int, descriptor: int) -> None:
    """Close a file of a process."""
    folder = root / "proc" / str(pid)
    (folder / "fd" / str(descriptor)).unlink(missing_ok=True)
    (folder / "fdinfo" / str(descriptor)).unlink(missing_ok=True)

"""Removes the remains of a cluster, also of a killed one: processes, containers, mounts, cgroups, files.

No process is killed by name: a process belongs to a cluster by its environment, which its children inherit, or by the
cgroup of a container that the cluster's runc manages.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

from .process import owned, until

CGROUPS = Path("/sys/fs/cgroup")
CNI_RESULTS = Path("/var/lib/cni/results")
CONTAINER_LOGS = Path("/var/log/containers")


def clear(directory: Path) -> None:
    """Remove everything of the cluster in `directory`."""
    until(lambda: not _kill(owned(directory)), f"no process of {directory} is left")
    containers = [path.name for path in directory.glob("*/runc/k8s.io/*")]
    until(lambda: not _kill(_members(containers)), f"no container of {directory} is left")
    for bootstrap in directory.glob("*/c/io.containerd.runtime.v2.task/k8s.io/*/bootstrap.json"):
        # Shims listen below /run, independent of containerd's state directory.
        with contextlib.suppress(OSError, ValueError, KeyError):
            Path(json.loads(bootstrap.read_text())["address"].removeprefix("unix://")).unlink()
    for mount in _mounts(directory):
        subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True)
    for path in _cgroups(containers):
        with contextlib.suppress(OSError):
            path.rmdir()
    for container in containers:
        for file in CNI_RESULTS.glob(f"*-{container}-*"):
            file.unlink(missing_ok=True)
    for link in _entries(CONTAINER_LOGS):
        if link.is_symlink() and str(link.readlink()).startswith(f"{directory}/"):
            link.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def _members(containers: list[str]) -> list[int]:
    members: set[int] = set()
    for path in _cgroups(containers):
        with contextlib.suppress(OSError):
            members |= {int(line) for line in (path / "cgroup.procs").read_text().split()}
    # A process of another pid namespace is shown as 0.
    return sorted(members - {0, os.getpid()})


def _kill(pids: list[int]) -> bool:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        # Children of this process remain zombies, with an empty environment, until they are waited for.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(pids)


def _cgroups(containers: list[str]) -> list[Path]:
    """Deepest first, in every hierarchy: with cgroup v1 there is one per controller."""
    hierarchies = [CGROUPS, *(path for path in _entries(CGROUPS) if path.is_dir() and not path.is_symlink())]
    roots = [hierarchy / "k8s.io" / container for hierarchy in hierarchies for container in containers]
    return [Path(top) for root in roots for top, _, _ in os.walk(root, topdown=False)]


def _mounts(directory: Path) -> list[Path]:
    """Latest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [Path(point) for point in reversed(points) if point.startswith(f"{directory}/")]


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []

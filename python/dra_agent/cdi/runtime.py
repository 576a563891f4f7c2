"""Runs a container with CDI devices by podman or ctr, and prints such command lines.

Only for the command line tool: the agent itself starts no containers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_agent.cdi.registry import is_default
from dra_agent.command import inherited_environment
from dra_agent.path_search import find_program

_TIMEOUT_S = 30.0
# Debian's podman reads only the default CDI directories, and crun 1.8 fails if the unified cgroup hierarchy has
# controllers. A temporary mount namespace works around both.
NAMESPACE_SCRIPT = """
umount /sys/fs/cgroup/unified 2>/dev/null
if [ -n "$0" ]; then mkdir -p /run/cdi && mount --bind "$0" /run/cdi || exit 125; fi
exec "$@"
"""
_LIMITED = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""For hosts that do not let a process raise its limits."""
_WITHOUT_CGROUPS = ("--runtime", "crun", "--cgroups=disabled", *_LIMITED)
"""For such hosts that also use both cgroup versions; runc cannot run without cgroups."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A command that runs a container with CDI devices."""

    name: str
    wrapper: tuple[str, ...]
    run: tuple[str, ...]

    def command(self, ids: Sequence[str], rootfs: Path, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` in a temporary container on a root file system."""
        devices = [argument for name in ids for argument in ("--device", name)]
        target = ["--rootfs", str(rootfs)]
        if self.name == "ctr":
            target.append(f"dra-agent-{os.getpid()}")
        return [*self.wrapper, *self.run, *devices, *target, *argv]


def find(rootfs: Path, cdi_directory: Path) -> tuple[Runtime | None, list[str]]:
    """Find a runtime that can start a container; the list has the errors of the others.

    `cdi_directory` has the specs: it is added to the runtime's configuration unless it is a default.
    """
    reasons: list[str] = []
    for runtime in _candidates(cdi_directory):
        reason = _failure_of(runtime, rootfs)
        if reason is None:
            return runtime, reasons
        reasons.append(f"{' '.join(runtime.run)}: {reason}")
    if not reasons:
        reasons.append("neither podman nor ctr is installed")
    return None, reasons


def command_lines(ids: Sequence[str], image: str = "IMAGE") -> list[str]:
    """Return command lines for users to start a container with a claim's devices."""
    devices = " ".join(f"--device {name}" for name in ids)
    return [f"podman run --rm {devices} {image}", f"ctr run --rm {devices} {image} NAME"]


def make_rootfs(path: Path) -> Path | None:
    """Create a root file system with busybox only; None if no static busybox is installed."""
    busybox = find_program("busybox")
    if busybox is None or _is_dynamic(busybox):
        return None
    for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
        (path / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(busybox, path / "bin" / "busybox")
    return path


def _candidates(cdi_directory: Path) -> Iterator[Runtime]:
    reads_directory = is_default(cdi_directory)
    unshare = find_program("unshare")
    in_namespace: tuple[str, ...] = ()
    if unshare is not None and os.geteuid() == 0:
        bound = "" if reads_directory else str(cdi_directory.resolve())
        in_namespace = (str(unshare), "--mount", "/bin/sh", "-c", NAMESPACE_SCRIPT, bound)
    if podman := find_program("podman"):
        run = (str(podman), "run", "--rm", "--network=none")
        wrappers = ([()] if reads_directory else []) + ([in_namespace] if in_namespace else [])
        flags = [(), _LIMITED, *([_WITHOUT_CGROUPS] if find_program("crun") else [])]
        for wrapper in wrappers:
            for more in flags:
                yield Runtime("podman", wrapper, (*run, *more))
    if ctr := find_program("ctr"):
        ctr_run = (str(ctr), "run", "--rm")
        if reads_directory:
            yield Runtime("ctr", (), ctr_run)
        elif in_namespace:
            yield Runtime("ctr", in_namespace, ctr_run)


def _failure_of(runtime: Runtime, rootfs: Path) -> str | None:
    command = runtime.command([], rootfs, ["/bin/busybox", "true"])
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=inherited_environment(),
        )
    except subprocess.TimeoutExpired:
        return f"did not start a container within {_TIMEOUT_S:g} s"
    except OSError as error:
        return str(error.strerror)
    if result.returncode == 0:
        return None
    lines = result.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {result.returncode}"


def _is_dynamic(program: Path) -> bool:
    """Return whether a program needs a loader (an ELF segment of type PT_INTERP), which a bare container lacks."""
    data = program.read_bytes()
    offset = int.from_bytes(data[32:40], "little")
    size, count = int.from_bytes(data[54:56], "little"), int.from_bytes(data[56:58], "little")
    headers = (data[offset + index * size : offset + index * size + 4] for index in range(count))
    return any(int.from_bytes(header, "little") == 3 for header in headers)

"""Container runtimes on this host that take CDI ids by hand: which one works, and the command lines for a claim.

For demonstrations and checks only. The agent itself starts no container: that is the kubelet's or the operator's doing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_agent.cdi.registry import is_default

_TIMEOUT_S = 30.0
# Debian's podman reads no other CDI directories than the usual ones, and crun 1.8 starts nothing where the second
# cgroup hierarchy has controllers: both are arranged in a mount namespace that ends with the container.
_ARRANGED = """
umount /sys/fs/cgroup/unified 2>/dev/null
if [ -n "$0" ]; then mkdir -p /run/cdi && mount --bind "$0" /run/cdi || exit 125; fi
exec "$@"
"""
_CONFINED = ("--runtime", "crun", "--cgroups=disabled", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""For hosts that let no process raise its limits and that mix both cgroup versions."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A way to run a container with CDI devices that was tried on this host and works."""

    name: str
    wrapper: tuple[str, ...]
    run: tuple[str, ...]

    def command(self, ids: Sequence[str], rootfs: Path, argv: Sequence[str]) -> list[str]:
        """Give the command line that runs `argv` in a throw-away container on a root file system."""
        devices = [word for name in ids for word in ("--device", name)]
        target = ["--rootfs", str(rootfs)]
        if self.name == "ctr":
            target.append(f"dra-agent-{os.getpid()}")
        return [*self.wrapper, *self.run, *devices, *target, *argv]


def find(rootfs: Path, cdi_directory: Path) -> tuple[Runtime | None, list[str]]:
    """Find a runtime that starts a container now; the list says why the others did not.

    `cdi_directory` is where the specs are: runtimes are made to see it where it is not one that they read anyway.
    """
    reasons: list[str] = []
    for runtime in _candidates(cdi_directory):
        reason = _reason_not_to(runtime, rootfs)
        if reason is None:
            return runtime, reasons
        reasons.append(f"{' '.join(runtime.run)}: {reason}")
    if not reasons:
        reasons.append("neither podman nor ctr is installed")
    return None, reasons


def command_lines(ids: Sequence[str], image: str = "IMAGE") -> list[str]:
    """Give the command lines with which an operator starts a container on a claim."""
    devices = " ".join(f"--device {name}" for name in ids)
    return [f"podman run --rm {devices} {image}", f"ctr run --rm {devices} {image} NAME"]


def make_rootfs(path: Path) -> Path | None:
    """Make a root file system that holds busybox alone; None where no static busybox is installed."""
    busybox = shutil.which("busybox")
    if busybox is None or _is_dynamic(Path(busybox)):
        return None
    for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
        (path / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(busybox, path / "bin" / "busybox")
    return path


def _candidates(cdi_directory: Path) -> Iterator[Runtime]:
    usual = is_default(cdi_directory)
    unshare = shutil.which("unshare")
    arranged: tuple[str, ...] = ()
    if unshare is not None and os.geteuid() == 0:
        arranged = (unshare, "--mount", "sh", "-c", _ARRANGED, "" if usual else str(cdi_directory.resolve()))
    if podman := shutil.which("podman"):
        run = (podman, "run", "--rm", "--network=none")
        if usual:
            yield Runtime("podman", (), run)
            yield Runtime("podman", (), (*run, *_CONFINED))
        if arranged:
            yield Runtime("podman", arranged, run)
            yield Runtime("podman", arranged, (*run, *_CONFINED))
    if ctr := shutil.which("ctr"):
        ctr_run = (ctr, "run", "--rm")
        if usual:
            yield Runtime("ctr", (), ctr_run)
        elif arranged:
            yield Runtime("ctr", arranged, ctr_run)


def _reason_not_to(runtime: Runtime, rootfs: Path) -> str | None:
    command = runtime.command([], rootfs, ["/bin/busybox", "true"])
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"did not start a container within {_TIMEOUT_S:g} s"
    except OSError as error:
        return str(error.strerror)
    if result.returncode == 0:
        return None
    lines = result.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {result.returncode}"


def _is_dynamic(program: Path) -> bool:
    """Tell whether a program asks for a loader (an ELF segment of type PT_INTERP), which a bare container lacks."""
    data = program.read_bytes()
    offset = int.from_bytes(data[32:40], "little")
    size, count = int.from_bytes(data[54:56], "little"), int.from_bytes(data[56:58], "little")
    headers = (data[offset + index * size : offset + index * size + 4] for index in range(count))
    return any(int.from_bytes(header, "little") == 3 for header in headers)

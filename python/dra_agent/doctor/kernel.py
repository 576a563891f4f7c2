"""What the kernel offers: its version, the cgroup version, and limits on device memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, warning


def check(examination: CheckContext) -> Iterator[Finding]:
    """Look at procfs and at the root of the cgroups."""
    release = _text(examination.host.proc / "sys/kernel/osrelease")
    if release:
        yield ok(f"Linux {release}")
    root = examination.host.sysfs / "fs/cgroup"
    controllers = _text(root / "cgroup.controllers")
    if controllers is not None:
        # The dmem controller limits device memory per container: Linux 6.14, cgroup v2 only.
        has = "dmem" in controllers.split()
        yield ok("device memory can be limited (dmem)" if has else "no dmem controller: device memory is not limited")
    elif root.is_dir():
        yield warning(
            "cgroup version 1: kubelets from v1.35 on refuse to start, and limits on device memory are missing",
            str(root),
            "boot with systemd.unified_cgroup_hierarchy=1",
        )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None

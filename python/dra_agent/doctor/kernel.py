"""Checks of the running kernel: its version, its cgroups, and its protection of directories that users share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, warning

_LINK_PROTECTION = {
    "protected_symlinks": "a symbolic link of another user in a shared directory such as /tmp is followed",
    "protected_hardlinks": "a user can create hard links to files that the user can neither read nor write",
}
"""Settings in /proc/sys/fs (kernel.org, admin-guide/sysctl/fs), and what is possible where one is 0."""


def check_kernel(context: CheckContext) -> Iterator[Finding]:
    """Check procfs and the root cgroup."""
    release = _text(context.host.proc / "sys/kernel/osrelease")
    if release:
        yield ok(f"Linux {release}")
    yield from _link_protection(context.host.proc / "sys/fs")
    root = context.host.sysfs / "fs/cgroup"
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


def _link_protection(directory: Path) -> Iterator[Finding]:
    for name, risk in _LINK_PROTECTION.items():
        if _text(directory / name) == "0":
            yield warning(
                f"fs.{name} is 0: {risk}, which local users can use against programs of root",
                str(directory / name),
                f"sysctl -w fs.{name}=1, and set it in /etc/sysctl.d",
            )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None

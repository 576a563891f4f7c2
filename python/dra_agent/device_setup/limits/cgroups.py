"""The unified cgroup hierarchy of a host, and names in it that come from elsewhere."""

from __future__ import annotations

from pathlib import Path

from dra_agent.errors import PermanentError, RetryableError

_LONGEST = 4096


def hierarchy(sysfs: Path) -> Path:
    """Find where the hierarchy is mounted; RetryableError where there is none."""
    for root in (sysfs / "fs/cgroup", sysfs / "fs/cgroup/unified"):
        if (root / "cgroup.controllers").exists():
            return root
    raise RetryableError(
        "the host has no unified cgroup hierarchy (version 2)", where=str(sysfs / "fs/cgroup"), hint="boot with it"
    )


def check_cgroup(root: Path, name: str) -> Path:
    """Give the folder of a cgroup below the root; PermanentError for the root itself and what is none."""
    parts = name.split("/")
    if len(name) > _LONGEST or not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise PermanentError("is no path of a container's cgroup", where=repr(name[:200]))
    folder = root.joinpath(*parts)
    if not folder.is_dir() or folder.resolve() != root.resolve().joinpath(*parts):
        raise PermanentError("is no cgroup of this host", where=str(folder))
    return folder

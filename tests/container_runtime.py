"""A container runtime of this machine, for tests that start containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.cdi.runtime import Runtime, find, make_rootfs


def require_runtime(folder: Path) -> tuple[Runtime, Path, Path]:
    """Return a runtime, a root file system and the CDI directory that it reads; skip the test without a runtime."""
    rootfs = make_rootfs(folder / "rootfs")
    if rootfs is None:
        pytest.skip("a static busybox for the container is not installed")
    cdi = folder / "cdi"
    cdi.mkdir()
    runtime, reasons = find(rootfs, cdi)
    if runtime is None:
        pytest.skip(f"no container runtime works here: {'; '.join(reasons)}")
    return runtime, rootfs, cdi

"""Where the test cluster cannot run, `make cluster` says in one line what is missing, and leaves no trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster.kube import build, prerequisites

TESTS = Path(__file__).resolve().parents[1]


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    # No program is on PATH, and none is built.
    environment = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "cluster.kube", "up"],
        cwd=TESTS,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    (said,) = run.stderr.splitlines()
    for lacking in ("Go 1.26 or newer", "apt-get install runc", "openssl", "iproute2"):
        assert lacking in said
    assert ("root" in said) == (os.geteuid() != 0)
    assert not (tmp_path / "dra-agent-cluster").exists()


def test_the_cache_is_named_after_the_versions() -> None:
    versions = {module.name: module.version() for module in build.modules()}
    assert versions.keys() == {"etcd", "containerd", "kubernetes", "helm"}
    name = build.directory().name
    assert all(f"{module}-{version}" in name for module, version in versions.items())


def test_a_dynamic_busybox_does_not_do(tmp_path: Path) -> None:
    dynamic, static = tmp_path / "dynamic", tmp_path / "static"
    dynamic.write_bytes(b"\x7fELF" + b"\0" * 60 + b"/lib64/ld-linux-x86-64.so.2\0")
    static.write_bytes(b"\x7fELF" + b"\0" * 60)
    assert not prerequisites._is_static(dynamic)
    assert prerequisites._is_static(static)

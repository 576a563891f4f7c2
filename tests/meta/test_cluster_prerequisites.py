"""`make cluster` lists all missing prerequisites of the test cluster in one line and changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster.kube import build, prerequisites

TESTS = Path(__file__).resolve().parents[1]


def test_all_missing_prerequisites_are_reported_at_once(tmp_path: Path) -> None:
    # PATH has no binary, and none is built.
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
    (message,) = run.stderr.splitlines()
    for missing in ("Go 1.26 or newer", "apt-get install runc", "openssl", "iproute2"):
        assert missing in message
    assert ("root" in message) == (os.geteuid() != 0)
    assert not (tmp_path / "dra-agent-cluster").exists()


def test_the_cache_directory_has_the_versions_in_its_name() -> None:
    versions = {module.name: module.version() for module in build.modules()}
    assert versions.keys() == {"etcd", "containerd", "kubernetes", "helm"}
    name = build.directory().name
    assert all(f"{module}-{version}" in name for module, version in versions.items())


def test_a_dynamically_linked_busybox_is_refused(tmp_path: Path) -> None:
    dynamic, static = tmp_path / "dynamic", tmp_path / "static"
    dynamic.write_bytes(b"\x7fELF" + b"\0" * 60 + b"/lib64/ld-linux-x86-64.so.2\0")
    static.write_bytes(b"\x7fELF" + b"\0" * 60)
    assert not prerequisites.is_static(dynamic)
    assert prerequisites.is_static(static)

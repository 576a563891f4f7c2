"""The binaries of an image are those of its own build, and are checked before they are shipped."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.rendering import ROOT
from dra_agent import __version__

HOOK = Path("dra_agent/device_setup/lib/dra-agent-hook")
FAKE = Path("dra_simulate/lib/libnvidia-ml.so.1")
EXTENSION = Path("dra_agent/_native.abi3.so")
BUILT = {"dra-agent-hook": HOOK, "libnvidia_ml.so": FAKE, "lib_native.so": EXTENSION}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Cargo's outputs: the binaries that `make build` has put into the packages."""
    folder = tmp_path / "target/dist"
    folder.mkdir(parents=True)
    for name, path in BUILT.items():
        shutil.copy(ROOT / "python" / path, folder / name)
    return folder.parent


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Packages that came with foreign binaries."""
    folder = tmp_path / "python"
    for path in (HOOK, FAKE, EXTENSION, HOOK.with_name("old-hook"), Path("dra_agent/_native.cpython-39.so")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("foreign\n")
    return folder


def install(target: Path, packages: Path) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, "-m", "deploy.image.binaries"]
    command += ["--target", target, "--python", packages]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_foreign_binaries_of_the_context_are_replaced(target: Path, packages: Path) -> None:
    done = install(target, packages)
    assert done.returncode == 0, done.stderr
    found = {path.relative_to(packages) for path in packages.rglob("*") if path.is_file()}
    assert found == set(BUILT.values())
    for name, path in BUILT.items():
        assert (packages / path).read_bytes() == (target / "dist" / name).read_bytes()
    assert (packages / HOOK).stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#!/bin/sh\n", "not a 64-bit ELF file"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\x08\x00" + bytes(100), "is for ELF machine 8"),
    ],
)
def test_a_file_that_is_not_a_binary_of_this_machine_ends_the_build(
    target: Path, packages: Path, content: bytes, message: str
) -> None:
    (target / "dist/dra-agent-hook").write_bytes(content)
    done = install(target, packages)
    assert done.returncode == 1
    assert message in done.stderr


def test_a_dynamic_hook_ends_the_build(target: Path, packages: Path) -> None:
    shutil.copy(sys.executable, target / "dist/dra-agent-hook")
    done = install(target, packages)
    assert done.returncode == 1
    assert "must be static" in done.stderr


def test_a_hook_of_another_version_ends_the_build(target: Path, packages: Path) -> None:
    hook = target / "dist/dra-agent-hook"
    content = hook.read_bytes()
    version = f"dra-agent-hook {__version__}\n".encode()
    assert version in content
    hook.write_bytes(content.replace(version, version.replace(b"0", b"9")))
    done = install(target, packages)
    assert done.returncode == 1
    assert "and the version is" in done.stderr


def test_a_missing_binary_ends_the_build(target: Path, packages: Path) -> None:
    (target / "dist/libnvidia_ml.so").unlink()
    done = install(target, packages)
    assert done.returncode == 1
    assert "libnvidia_ml.so" in done.stderr

"""The packages of the local base of images are recorded and compared."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from deploy.image import bases, packages
from deploy.image import build as build_module
from deploy.image.build import ARCHITECTURES, build
from deploy.image.buildah import Buildah, BuildError
from deploy.image.packages import Package

from deploy.rendering import ROOT

A, B = "a" * 64, "b" * 64
INDEX = f"""\
Package: gcc
Architecture: amd64
Version: 4:12.2.0-3
Description: a compiler
 Version: no field, because it is indented
SHA256: {A}

Package: gcc
Architecture: amd64
Version: 4:12.2.0-4
SHA256: {B}

Package: adduser
Architecture: all
Version: 3.134
SHA256: {B}
"""
FOUND = [Package("adduser", "3.134", "all", B), Package("gcc", "4:12.2.0-3", "amd64", A)]


def test_the_hash_is_that_of_the_installed_version() -> None:
    assert packages.installed("gcc 4:12.2.0-3 amd64\nadduser 3.134 all\n", INDEX) == FOUND
    with pytest.raises(ValueError, match=r"gcc 4:11 is not in the index"):
        packages.installed("gcc 4:11 amd64\n", INDEX)


def test_recorded_packages_are_read_as_they_were_written(tmp_path: Path) -> None:
    lock = tmp_path / "base.lock"
    packages.write(reversed(FOUND), lock)
    assert packages.read(lock) == FOUND
    packages.check(FOUND, lock)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (FOUND[1:], "adduser is missing"),
        ([*FOUND, Package("perl", "5", "amd64", A)], "perl is not recorded"),
        ([FOUND[0], Package("gcc", "4:12.2.0-4", "amd64", B)], "gcc is 4:12.2.0-4 amd64 instead of 4:12.2.0-3 amd64"),
        ([FOUND[0], FOUND[1]._replace(sha256=B)], "gcc 4:12.2.0-3 has another SHA-256"),
        ([package._replace(architecture="arm64") for package in FOUND], "base.lock has no packages for arm64"),
        ([*FOUND, *(Package(f"p{number}", "1", "amd64", A) for number in range(9))], "p4 is not recorded, and 4 more"),
    ],
)
def test_other_packages_end_the_build(found: list[Package], message: str, tmp_path: Path) -> None:
    lock = tmp_path / "base.lock"
    packages.write(FOUND, lock)
    with pytest.raises(ValueError, match=re.escape(message)):
        packages.check(found, lock)


@pytest.mark.parametrize(("machine", "architecture"), ARCHITECTURES.items())
def test_the_packages_of_each_architecture_are_recorded(machine: str, architecture: str) -> None:
    recorded = packages.read(packages.LOCK.with_name(packages.LOCKS[machine]))
    assert set(bases.INCLUDED.split(",")) <= {package.name for package in recorded}
    assert all(re.fullmatch(r"[0-9a-f]{64}", package.sha256) for package in recorded)
    assert {package.architecture for package in recorded} == {architecture, "all"}


def test_the_base_is_named_by_its_packages_and_the_toolchain_by_its_version() -> None:
    assert bases.BASE.partition(":") == ("localhost/dra-agent-base", ":", f"bookworm-{packages.digest()[:12]}")
    assert bases.RUST.rpartition(":")[2] == bases.TOOLCHAIN


def test_the_build_of_the_image_installs_nothing_on_the_local_base() -> None:
    text = (ROOT / "deploy/Containerfile").read_text()
    checked, installed = (
        re.search(pattern, text) for pattern in (r"dpkg-query --show (.+?) ", r"--no-install-recommends (.+?) \\")
    )
    assert checked and installed
    needed = re.search(r"dpkg-query --show (.*) \\\n \|\| \{ apt-get update", text)
    assert needed is not None and needed[1] == installed[1]
    assert set(installed[1].split()) <= set(bases.INCLUDED.split(","))


def test_the_local_images_that_a_build_names_are_created_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Storage:
        def has(self, image: str) -> bool:
            return image in made

    for function, name in (("create_base", bases.BASE), ("create_rust", bases.RUST)):
        monkeypatch.setattr(bases, function, lambda _, name=name: made.append(name))
    storage = cast("Buildah", Storage())
    bases.create(["docker.io/library/python@sha256:0", ""], storage)
    assert made == []
    bases.create([bases.RUST], storage)
    bases.create([bases.BASE, bases.RUST], storage)
    assert made == [bases.RUST, bases.BASE]
    bases.create([bases.BASE], storage, replace=True)
    assert made == [bases.RUST, bases.BASE, bases.BASE]


def test_a_machine_without_mmdebstrap_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.image.bases", "--update-lock"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "mmdebstrap is not installed" in done.stderr


@pytest.mark.parametrize(
    ("base", "rust", "policy"),
    [
        (bases.BASE, bases.RUST, "--pull=never"),
        ("", "", "--pull=false"),
        (bases.BASE, "", "--pull=false"),
        ("registry.example.com/python@sha256:0", bases.RUST, "--pull=false"),
    ],
)
def test_bases_of_a_registry_are_pulled_if_they_are_missing(base: str, rust: str, policy: str, tmp_path: Path) -> None:
    """buildah(1): `false` pulls an image that is not present, `never` ends with an error."""
    commands: list[tuple[str, ...]] = []

    class Stopped:
        def run(self, *command: str) -> str:
            commands.append(command)
            raise BuildError("stopped")

    with pytest.raises(BuildError):
        build(
            cast("Buildah", Stopped()),
            ROOT,
            tmp_path,
            variant="plain",
            arguments={"BASE": base, "RUST": rust},
            epoch=0,
            fresh=False,
        )
    assert [flag for flag in commands[0] if flag.startswith("--pull")] == [policy]


def test_make_image_creates_only_the_local_bases_that_it_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used: list[set[str]] = []
    monkeypatch.setattr(build_module, "Buildah", lambda: None)
    monkeypatch.setattr(bases, "create", lambda names, _: used.append(set(names)))
    monkeypatch.setattr(build_module, "build", lambda *_, **__: tmp_path)
    for arguments in ([], ["--base", "", "--rust", ""]):
        monkeypatch.setattr(sys, "argv", ["build", *arguments])
        assert build_module.main() == 0
    assert used == [{bases.BASE, bases.RUST}, {""}]

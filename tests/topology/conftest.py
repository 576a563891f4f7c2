"""Recorded machines for tests that only read them. Each is unpacked once."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import RECORDED

Machine = Callable[[str], Path]


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The root of a recorded machine by its name; read-only. Skips if the recordings are not available."""
    unpacked: dict[str, Path] = {}

    def unpack(name: str) -> Path:
        archive = RECORDED / f"{name}.tar.xz"
        if not archive.exists():
            pytest.skip(f"recorded machine {name} is not available ({archive})")
        if name not in unpacked:
            folder = tmp_path_factory.mktemp(name)
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter=_readable)
            unpacked[name] = folder
        return unpacked[name]

    return unpack


def _readable(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """Make recorded files readable: some modes of sysfs deny it."""
    del path
    return member.replace(mode=(member.mode or 0) | (0o700 if member.isdir() else 0o400))

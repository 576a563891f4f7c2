"""Programs are found in the directories of PATH, and only there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dra_agent.path_search import find_program


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return two folders, which are PATH in this order after one that does not exist."""
    found = [tmp_path / "first", tmp_path / "second"]
    for folder in found:
        folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (tmp_path / "missing", *found))))
    return found


def put(folder: Path, *, mode: int = 0o755) -> Path:
    program = folder / "tool"
    program.touch()
    program.chmod(mode)
    return program


def test_the_first_one_in_path_is_found(folders: list[Path]) -> None:
    first, second = map(put, folders)
    assert find_program("tool") == first
    first.unlink()
    assert find_program("tool") == second


def test_what_cannot_be_executed_is_skipped(folders: list[Path]) -> None:
    put(folders[0], mode=0o644)
    assert find_program("tool") is None
    program = put(folders[1])
    assert find_program("tool") == program


def test_a_folder_is_not_a_program(folders: list[Path]) -> None:
    (folders[0] / "tool").mkdir()
    assert find_program("tool") is None


@pytest.mark.parametrize("path", ["", os.pathsep])
def test_an_empty_entry_is_not_the_current_directory(
    path: str, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folders[0])
    monkeypatch.chdir(folders[0])
    monkeypatch.setenv("PATH", path)
    assert find_program("tool") is None


@pytest.mark.parametrize("name", ["sh", "no-such-program"])
def test_it_finds_what_the_standard_library_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (os.defpath, None):
        if path is None:
            monkeypatch.delenv("PATH")
        else:
            monkeypatch.setenv("PATH", path)
        found = shutil.which(name)
        assert find_program(name) == (None if found is None else Path(found))

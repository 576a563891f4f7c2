"""Small files are replaced whole, with the mode asked for, and nothing is left behind where that fails."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from dra_agent import atomic_file


def test_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    atomic_file.write(path, b"old")
    atomic_file.write(path, b"new", durable=True)
    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_mode_holds_whatever_the_umask_is(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        atomic_file.write(tmp_path / "file", b"", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_durable_syncs_the_file_before_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "intent", []

    def fsync(handle: int) -> None:
        seen.append((Path(f"/proc/self/fd/{handle}").readlink().name, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    atomic_file.write(path, b"x", durable=True)
    assert [there for _, there in seen] == [False, True]
    assert seen[0][0].startswith(".intent.")
    assert seen[1][0] == tmp_path.name
    seen.clear()
    assert atomic_file.remove(path, durable=True)
    assert seen == [(tmp_path.name, False)]


def test_refusal_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    atomic_file.write(path, b"old")

    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        atomic_file.write(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, bytes(data[:3])))
    atomic_file.write(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_two_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [letter * 50_000 for letter in (b"a", b"b")]
    atomic_file.write(path, contents[0])

    def write_often(data: bytes) -> None:
        for _ in range(50):
            atomic_file.write(path, data)

    writers = [threading.Thread(target=write_often, args=(data,)) for data in contents]
    for writer in writers:
        writer.start()
    try:
        while any(writer.is_alive() for writer in writers):
            assert atomic_file.read(path, 100_000) in contents
    finally:
        for writer in writers:
            writer.join()


def test_reads_plain_files_of_a_reasonable_size_only(tmp_path: Path) -> None:
    atomic_file.write(tmp_path / "file", b"12345")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert atomic_file.read(tmp_path / "file", 5) == b"12345"
    for name, most, reason in (
        ("file", 4, "larger than 4 bytes"),
        ("link", 5, "symbolic links"),
        ("pipe", 5, "not a plain file"),
    ):
        with pytest.raises(OSError, match=reason):
            atomic_file.read(tmp_path / name, most)


def test_damaged_files_are_kept_under_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for number in (1, 2):
        atomic_file.write(path, str(number).encode())
        aside = atomic_file.quarantine(path)
        assert aside.name == f"file.corrupt-{number}"
        assert aside.read_bytes() == str(number).encode()
    assert not path.exists()
    assert not atomic_file.remove(path)


def test_leftovers_of_a_dead_writer_are_removed_and_those_of_a_living_one_are_not(tmp_path: Path) -> None:
    left, being_written = tmp_path / ".a.json.12-0.tmp", tmp_path / ".b.json.13-1.tmp"
    others = [tmp_path / name for name in (".a.json", "a.json.12-0.tmp", ".a.tmp", ".a.json.12-0.tmp.bak", "data")]
    for path in (left, being_written, *others):
        path.touch()
    (tmp_path / ".link.1-1.tmp").symlink_to(tmp_path / "data")
    with being_written.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert atomic_file.remove_leftovers(tmp_path) == [left]
        assert being_written.exists()
    assert atomic_file.remove_leftovers(tmp_path) == [being_written]
    assert all(path.exists() for path in others)
    assert atomic_file.remove_leftovers(tmp_path / "not there") == []


def test_writers_and_a_remover_of_leftovers_do_not_disturb_each_other(tmp_path: Path) -> None:
    done = threading.Event()

    def remove() -> None:
        while not done.is_set():
            atomic_file.remove_leftovers(tmp_path)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for number in range(2000):
            atomic_file.write(tmp_path / "file", str(number).encode())
            assert (tmp_path / "file").read_bytes() == str(number).encode()
    finally:
        done.set()
        remover.join()

"""Small files are replaced atomically, with the requested mode, and a failure leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from dra_agent import atomic_file


def test_write_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    atomic_file.write(path, b"old")
    atomic_file.write(path, b"new", durable=True)
    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_mode_is_independent_of_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        atomic_file.write(tmp_path / "file", b"", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_durable_write_syncs_file_before_and_folder_after_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "intent", []

    def fsync(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").readlink().name, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    atomic_file.write(path, b"x", durable=True)
    assert [exists for _, exists in synced] == [False, True]
    assert synced[0][0].startswith(".intent.")
    assert synced[1][0] == tmp_path.name
    synced.clear()
    assert atomic_file.remove(path, durable=True)
    assert synced == [(tmp_path.name, False)]


def test_a_failed_write_keeps_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, bytes(data[:3])))
    atomic_file.write(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_concurrent_writes_are_never_mixed(tmp_path: Path) -> None:
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


def test_read_accepts_regular_files_of_limited_size_only(tmp_path: Path) -> None:
    atomic_file.write(tmp_path / "file", b"12345")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert atomic_file.read(tmp_path / "file", 5) == b"12345"
    for name, max_bytes, reason in (
        ("file", 4, "larger than 4 bytes"),
        ("link", 5, "symbolic links"),
        ("pipe", 5, "not a plain file"),
    ):
        with pytest.raises(OSError, match=reason):
            atomic_file.read(tmp_path / name, max_bytes)


def test_damaged_files_are_quarantined_under_unique_names(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for number in (1, 2):
        atomic_file.write(path, str(number).encode())
        quarantined = atomic_file.quarantine(path)
        assert quarantined.name == f"file.corrupt-{number}"
        assert quarantined.read_bytes() == str(number).encode()
    assert not path.exists()
    assert not atomic_file.remove(path)


def test_leftovers_are_removed_unless_their_writer_lives(tmp_path: Path) -> None:
    leftover, being_written = tmp_path / ".a.json.12-0.tmp", tmp_path / ".b.json.13-1.tmp"
    others = [tmp_path / name for name in (".a.json", "a.json.12-0.tmp", ".a.tmp", ".a.json.12-0.tmp.bak", "data")]
    for path in (leftover, being_written, *others):
        path.touch()
    (tmp_path / ".link.1-1.tmp").symlink_to(tmp_path / "data")
    with being_written.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert atomic_file.remove_leftovers(tmp_path) == [leftover]
        assert being_written.exists()
    assert atomic_file.remove_leftovers(tmp_path) == [being_written]
    assert all(path.exists() for path in others)
    assert atomic_file.remove_leftovers(tmp_path / "missing") == []


def test_writers_and_leftover_removal_run_concurrently(tmp_path: Path) -> None:
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

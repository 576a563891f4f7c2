"""The file whose being there is a notice."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dra_agent.reclaim.signal import Signal, SourceError
from dra_agent.reclaim.signals.file import FileSource
from eventually import DEADLINE_S, eventually

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reclaim"


def poll(path: Path) -> Sequence[Signal]:
    return asyncio.run(FileSource(path, now=lambda: NOW).poll())


def test_no_file_is_no_notice(path: Path) -> None:
    assert poll(path) == ()


@pytest.mark.parametrize("text", ["", "\n", "{}"])
def test_an_empty_file_is_a_notice(path: Path, text: str) -> None:
    path.write_text(text)
    (reading,) = poll(path)
    assert (reading.kind, reading.deadline, reading.sticky) == ("notice", None, False)


def test_a_file_can_say_more(path: Path) -> None:
    path.write_text(
        '{"kind": "hint", "deadline": "2026-01-31T13:00:00+01:00", "event": "lease-7", "what": "lease ends"}'
    )
    assert poll(path) == (Signal("file", "hint", "lease-7", "lease ends", NOW, False, ""),)


@pytest.mark.parametrize(
    ("deadline", "seconds", "doubt"),
    [
        ("2026-01-31T11:00:00Z", 0, "has passed"),
        ("2096-01-31T11:00:00Z", 30, "too far"),
        ("2026-01-31T12:01:00Z", 60, ""),
    ],
)
def test_its_deadline_is_believed_within_reason(path: Path, deadline: str, seconds: int, doubt: str) -> None:
    path.write_text(f'{{"deadline": "{deadline}"}}')
    (reading,) = poll(path)
    assert reading.deadline == NOW + timedelta(seconds=seconds) and doubt in reading.deadline_note


@pytest.mark.parametrize(
    "text",
    [
        "now!",
        "[]",
        '{"kind": "clear"}',
        '{"deadline": "soon"}',
        '{"dedline": "x"}',
        '{"kind": 1}',
        "\xff\xff",
        "{}" * 4096,
    ],
)
def test_what_is_not_understood_is_unknown(path: Path, text: str) -> None:
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SourceError):
        poll(path)


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o620])
def test_a_file_that_others_can_write_is_not_believed(path: Path, mode: int) -> None:
    path.write_text("")
    path.chmod(mode)
    with pytest.raises(SourceError, match="written by others"):
        poll(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_file_of_somebody_else_is_not_believed(path: Path) -> None:
    path.write_text("")
    os.chown(path, 12345, 12345)
    with pytest.raises(SourceError, match="written by others"):
        poll(path)


def test_a_link_a_pipe_and_a_directory_are_not_read(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="cannot be read"):
        poll(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SourceError, match="not a regular file"):
        poll(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(SourceError, match="not a regular file"):
        poll(path)


def test_the_longest_file_is_read(path: Path) -> None:
    path.write_text("{}" + " " * 4094)
    assert len(poll(path)) == 1
    path.write_text("{}" + " " * 4095)
    with pytest.raises(SourceError, match="longer than 4096 bytes"):
        poll(path)


def test_no_file_is_too_large_to_be_refused(path: Path) -> None:
    """A tebibyte that takes no room, and a file that is written to for as long as it is read."""
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SourceError, match="longer than 4096 bytes"):
        poll(path)
    path.write_bytes(b"")
    ended = threading.Event()

    def grow() -> None:
        with path.open("ab", buffering=0) as file:
            while not ended.is_set():
                file.write(b" " * 1024)
                if file.tell() > 64 << 20:
                    file.truncate(0)  # the tests' files are in memory

    def refused() -> bool:
        try:
            poll(path)
        except SourceError as error:
            return "longer than 4096 bytes" in str(error)
        return False

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        eventually(refused)
    finally:
        ended.set()
        writer.join(DEADLINE_S)

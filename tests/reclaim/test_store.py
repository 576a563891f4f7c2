"""The state on disk."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dra_agent.errors import RetryableError
from dra_agent.reclaim.notice import State, apply
from dra_agent.reclaim.reading import Reading
from dra_agent.reclaim.store import FILE, StateFile

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOTICED = apply(State("boot-1"), Reading("aws.spot", "notice", "e", "w", NOW, lasting=True), NOW)


def test_a_notice_survives_a_restart_of_the_agent(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    assert StateFile(tmp_path).load("boot-1") == NOTICED
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_restart_of_the_host_ends_it(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    assert StateFile(tmp_path).load("boot-2") == State("boot-2")


def test_there_is_nothing_at_first(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    assert file.load("boot-1") == State("boot-1") and file.problem is None


def test_a_file_torn_at_any_byte_is_set_aside(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    whole = (tmp_path / FILE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:length])
        file = StateFile(tmp_path)
        assert file.load("boot-1") == State("boot-1") and file.problem is not None
        assert (tmp_path / f"{FILE}.corrupt-{length + 1}").read_bytes() == whole[:length]


@pytest.mark.parametrize(
    "text",
    [b"\xff\xff", b"[]", b'{"version": 2, "state": {"boot": "boot-1"}}', b'{"version": 1, "state": {"bot": ""}}'],
)
def test_what_is_no_state_is_set_aside(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)
    file = StateFile(tmp_path)
    assert file.load("boot-1") == State("boot-1") and file.problem is not None
    file.save(NOTICED)
    assert StateFile(tmp_path).load("boot-1") == NOTICED


def test_what_was_left_of_a_save_that_was_cut_off_is_no_state(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    (tmp_path / f"{FILE}.new-1").write_bytes(b'{"version"')
    assert StateFile(tmp_path).load("boot-1") == NOTICED
    StateFile(tmp_path).save(State("boot-1"))
    assert StateFile(tmp_path).load("boot-1") == State("boot-1")


def test_a_disk_that_cannot_be_written_says_so_and_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StateFile(tmp_path).save(NOTICED)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RetryableError, match="No space left"):
        StateFile(tmp_path).save(State("boot-1"))
    assert StateFile(tmp_path).load("boot-1") == NOTICED

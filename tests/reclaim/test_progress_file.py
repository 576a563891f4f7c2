"""The file that keeps the progress of a drain over a restart: the identity of its notice, and durability."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dra_agent.clock import STEP
from dra_agent.reclaim.progress_file import PROGRESS_FILE as FILE
from dra_agent.reclaim.progress_file import ProgressFile, SavedProgress
from logged import logged_by

NOTICED = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("offset", "same"),
    [
        (timedelta(), True),
        (STEP - timedelta(microseconds=1), True),
        (timedelta(microseconds=1) - STEP, True),
        (STEP, False),
        (-STEP, False),
    ],
)
def test_a_notice_is_recognized_within_the_clock_tolerance(tmp_path: Path, offset: timedelta, same: bool) -> None:
    ProgressFile(tmp_path, "boot").save(SavedProgress("boot", NOTICED, reported={"notice": "said"}))
    loaded = ProgressFile(tmp_path, "boot").load(NOTICED + offset)
    assert loaded.noticed == NOTICED + offset, "the time of the caller"
    assert loaded.reported == ({"notice": "said"} if same else {})


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    claim = {"uid": "u", "namespace": "ns", "name": "c", "seen": "2026-01-31T12:00:01Z"}
    kept = {"boot": "boot", "noticed": "2026-01-31T12:00:00Z", "told": {"notice": "n", "kept": "k"}, "claims": [claim]}
    (tmp_path / "reclaim-claims.json").write_text(json.dumps({"version": 1, "kept": kept}))
    loaded = ProgressFile(tmp_path, "boot").load(NOTICED)
    assert loaded.reported == {"notice": "n", "not_released": "k"}
    assert [(one.uid, one.seen - NOTICED) for one in loaded.claims] == [("u", timedelta(seconds=1))]


def test_a_full_disk_is_logged_once_until_a_save_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, progress = ProgressFile(tmp_path, "boot"), SavedProgress("boot", NOTICED)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for failures in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            file.save(progress)
            file.save(progress)
        assert len(logged_by(caplog, "dra_agent.reclaim")) == failures
        file.save(progress)


def test_a_notice_of_another_boot_is_a_different_one(tmp_path: Path) -> None:
    ProgressFile(tmp_path, "boot").save(SavedProgress("boot", NOTICED, reported={"notice": "said"}))
    assert ProgressFile(tmp_path, "next boot").load(NOTICED) == SavedProgress("next boot", NOTICED)


def test_progress_is_on_disk_before_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reclaimed host may lose power at any moment."""
    synced: list[str] = []
    fsync = os.fsync

    def record_fsync(handle: int) -> None:
        synced.append(os.fspath(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record_fsync)
    ProgressFile(tmp_path, "boot").save(SavedProgress("boot", NOTICED))
    assert [path for path in synced if f".{FILE}." in path] and os.fspath(tmp_path.resolve()) in synced


def test_an_agent_without_leadership_writes_nothing(tmp_path: Path) -> None:
    ProgressFile(tmp_path, "boot", is_leader=lambda: False).save(SavedProgress("boot", NOTICED))
    assert not (tmp_path / FILE).exists()

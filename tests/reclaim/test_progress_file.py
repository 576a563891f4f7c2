"""The file that keeps what became of claims over a restart: whose notice it is about, and when it is on disk."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dra_agent.clock import STEP
from dra_agent.reclaim.state_file import PROGRESS_FILE as FILE
from dra_agent.reclaim.state_file import ProgressFile, SavedProgress

NOTICED = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("by", "same"),
    [
        (timedelta(), True),
        (STEP - timedelta(microseconds=1), True),
        (timedelta(microseconds=1) - STEP, True),
        (STEP, False),
        (-STEP, False),
    ],
)
def test_a_notice_is_known_again_within_what_reading_two_clocks_takes(
    tmp_path: Path, by: timedelta, same: bool
) -> None:
    ProgressFile(tmp_path, "boot").save(SavedProgress("boot", NOTICED, reported={"notice": "said"}))
    found = ProgressFile(tmp_path, "boot").load(NOTICED + by)
    assert found.noticed == NOTICED + by, "as the caller has it"
    assert found.reported == ({"notice": "said"} if same else {})


def test_another_boot_s_notice_is_another_one(tmp_path: Path) -> None:
    ProgressFile(tmp_path, "boot").save(SavedProgress("boot", NOTICED, reported={"notice": "said"}))
    assert ProgressFile(tmp_path, "next boot").load(NOTICED) == SavedProgress("next boot", NOTICED)


def test_what_is_kept_is_on_disk_before_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is taken away loses its power at any moment."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.fspath(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    ProgressFile(tmp_path, "boot").save(SavedProgress("boot", NOTICED))
    assert [path for path in synced if f".{FILE}." in path] and os.fspath(tmp_path.resolve()) in synced


def test_an_agent_that_was_replaced_writes_nothing(tmp_path: Path) -> None:
    ProgressFile(tmp_path, "boot", is_leader=lambda: False).save(SavedProgress("boot", NOTICED))
    assert not (tmp_path / FILE).exists()

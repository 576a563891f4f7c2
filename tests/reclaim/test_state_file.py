"""The state on disk."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from dra_agent.errors import RetryableError
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import MAX_PAST_EVENTS, ReclaimState, apply, dismiss
from dra_agent.reclaim.state_file import STATE_FILE as FILE
from dra_agent.reclaim.state_file import StateFile
from fake_clock import FakeTime

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOTICED = apply(ReclaimState("boot-1"), Signal("aws.spot", "notice", "e", "w", NOW, sticky=True), NOW)


def test_a_notice_survives_a_restart_of_the_agent(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    assert StateFile(tmp_path).load("boot-1") == NOTICED
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_restart_of_the_host_ends_it(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    assert StateFile(tmp_path).load("boot-2") == ReclaimState("boot-2")


def reading(once: Literal["", "id", "word"], event: str = "e", deadline: datetime | None = NOW) -> Signal:
    return Signal("azure", "notice", event, "w", deadline, once=once)


def rebooted(tmp_path: Path, state: ReclaimState, *, days: float = 0.0, time: FakeTime | None = None) -> ReclaimState:
    """What the next boot begins with."""
    time = time or FakeTime()
    StateFile(tmp_path, time.clock()).save(state)
    time.pass_(days * 86400)
    return StateFile(tmp_path, time.clock()).load("boot-2")


def test_an_event_that_was_acted_on_is_not_acted_on_again_after_the_reboot(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    acted = apply(ReclaimState("boot-1"), reading("id"), now)
    fresh = rebooted(tmp_path, acted)
    assert fresh.phase == "none" and not fresh.active
    assert apply(fresh, reading("id"), now).phase == "none"
    assert apply(fresh, reading("id", deadline=None), now).phase == "none", "Azure's Started has no time"
    assert apply(fresh, reading("id", "another"), now).phase == "notice"
    # Not only over one boot, and not only until its source is silent about it for a moment.
    silent = apply(fresh, Signal("azure", "clear", "e", "w"), now)
    StateFile(tmp_path).save(silent)
    third = StateFile(tmp_path).load("boot-3")
    assert apply(third, reading("id"), now).phase == "none"


def test_an_event_that_is_put_off_until_later_is_a_new_one(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    fresh = rebooted(tmp_path, apply(ReclaimState("boot-1"), reading("id", deadline=now), now))
    assert apply(fresh, reading("id", deadline=now + timedelta(minutes=5)), now).phase == "none"
    assert apply(fresh, reading("id", deadline=now + timedelta(days=1)), now).phase == "notice"


def test_what_an_operator_declared_void_stays_so_after_a_reboot(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    void = dismiss(apply(ReclaimState("boot-1"), reading("id"), now), now)
    assert apply(rebooted(tmp_path, void), reading("id"), now).phase == "none"


def test_a_hint_whose_time_passed_with_the_reboot_is_over(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    for deadline, phase in ((now - timedelta(days=2), "none"), (now + timedelta(days=2), "notice")):
        hint = msgspec.structs.replace(reading("id", deadline=deadline), kind="hint")
        fresh = rebooted(tmp_path, apply(ReclaimState("boot-1"), hint, now))
        assert apply(fresh, reading("id", deadline=None), now).phase == phase


def test_a_word_is_over_until_its_source_has_said_another(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    fresh = rebooted(tmp_path, apply(ReclaimState("boot-1"), reading("word", "TRUE"), now))
    assert apply(fresh, reading("word", "TRUE"), now).phase == "none"
    cleared = apply(fresh, Signal("azure", "clear", "TRUE", ""), now)
    assert apply(cleared, reading("word", "TRUE"), now).phase == "notice"


def test_a_standing_state_counts_again_after_a_reboot(tmp_path: Path) -> None:
    """An Auto Scaling group that ends the instance, or a file: they still say so."""
    now = datetime.now(UTC)
    assert (
        apply(rebooted(tmp_path, apply(ReclaimState("boot-1"), reading(""), now)), reading(""), now).phase == "notice"
    )


def test_events_that_are_over_are_bounded_in_number_and_age(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    state = ReclaimState("boot-1")
    for number in range(MAX_PAST_EVENTS + 10):
        state = apply(state, reading("id", str(number)), now)
    kept = rebooted(tmp_path, state).past
    assert [one.event for one in kept] == [str(number) for number in range(10, MAX_PAST_EVENTS + 10)]
    assert rebooted(tmp_path, state, days=91).past == ()


def test_there_is_nothing_at_first(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    assert file.load("boot-1") == ReclaimState("boot-1") and file.problem is None


def test_a_file_torn_at_any_byte_is_set_aside(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    whole = (tmp_path / FILE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:length])
        file = StateFile(tmp_path)
        assert file.load("boot-1") == ReclaimState("boot-1") and file.problem is not None
        assert (tmp_path / f"{FILE}.corrupt-{length + 1}").read_bytes() == whole[:length]


@pytest.mark.parametrize(
    "text",
    [b"\xff\xff", b"[]", b'{"version": 2, "state": {"boot": "boot-1"}}', b'{"version": 1, "state": {"bot": ""}}'],
)
def test_what_is_no_state_is_set_aside(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)
    file = StateFile(tmp_path)
    assert file.load("boot-1") == ReclaimState("boot-1") and file.problem is not None
    file.save(NOTICED)
    assert StateFile(tmp_path).load("boot-1") == NOTICED


def test_what_was_left_of_a_save_that_was_cut_off_is_no_state(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    (tmp_path / f"{FILE}.new-1").write_bytes(b'{"version"')
    assert StateFile(tmp_path).load("boot-1") == NOTICED
    StateFile(tmp_path).save(ReclaimState("boot-1"))
    assert StateFile(tmp_path).load("boot-1") == ReclaimState("boot-1")


def test_a_disk_that_cannot_be_written_says_so_and_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StateFile(tmp_path).save(NOTICED)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RetryableError, match="No space left"):
        StateFile(tmp_path).save(ReclaimState("boot-1"))
    assert StateFile(tmp_path).load("boot-1") == NOTICED

"""The state file of reclaims."""

from __future__ import annotations

import json
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


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """A rolling update starts with the file of the older agent: names on the disk never change."""
    reading = {"source": "aws.spot", "kind": "notice", "event": "e", "what": "w", "lasting": True}
    held = {"reading": {**reading, "deadline": "2026-01-31T12:00:00Z", "doubt": "d"}, "since": "2026-01-31T11:00:00Z"}
    state = {
        "boot": "boot-1",
        "held": [{**held, "silent": "2026-01-31T11:30:00Z"}],
        "noticed": "2026-01-31T11:00:00Z",
        "dismissed": [["file", "x"]],
        "past": [{"source": "aws.spot", "event": "e", "boot": "boot-0", "at": 5.0}],
    }
    (tmp_path / "reclaim.json").write_text(json.dumps({"version": 1, "state": state}))
    loaded = StateFile(tmp_path).load("boot-1")
    (active,) = loaded.active
    expected = Signal("aws.spot", "notice", "e", "w", NOW, sticky=True, deadline_note="d")
    assert (active.signal, active.silent_since) == (expected, NOW - timedelta(minutes=30))
    assert (loaded.phase, loaded.dismissed, loaded.past[0].event) == ("notice", (("file", "x"),), "e")


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    file = StateFile(tmp_path)
    assert file.load("boot-1") == ReclaimState("boot-1")
    assert file.problem is not None and str(tmp_path / FILE) in file.problem and "cannot be read" in file.problem


def test_a_reboot_of_the_host_ends_a_notice(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    assert StateFile(tmp_path).load("boot-2") == ReclaimState("boot-2")


def signal(once: Literal["", "id", "word"], event: str = "e", deadline: datetime | None = NOW) -> Signal:
    return Signal("azure", "notice", event, "w", deadline, once=once)


def rebooted(tmp_path: Path, state: ReclaimState, *, days: float = 0.0, time: FakeTime | None = None) -> ReclaimState:
    """Return the state with which the next boot begins."""
    time = time or FakeTime()
    StateFile(tmp_path, time.clock()).save(state)
    time.pass_(days * 86400)
    return StateFile(tmp_path, time.clock()).load("boot-2")


def test_an_event_handled_before_a_reboot_is_not_handled_again(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    handled = apply(ReclaimState("boot-1"), signal("id"), now)
    fresh = rebooted(tmp_path, handled)
    assert fresh.phase == "none" and not fresh.active
    assert apply(fresh, signal("id"), now).phase == "none"
    assert apply(fresh, signal("id", deadline=None), now).phase == "none", "Started events of Azure have no time"
    assert apply(fresh, signal("id", "another"), now).phase == "notice"
    # This also holds after a second reboot, and after its source was silent about it.
    silent = apply(fresh, Signal("azure", "clear", "e", "w"), now)
    StateFile(tmp_path).save(silent)
    third = StateFile(tmp_path).load("boot-3")
    assert apply(third, signal("id"), now).phase == "none"


def test_a_postponed_event_is_a_new_one(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    fresh = rebooted(tmp_path, apply(ReclaimState("boot-1"), signal("id", deadline=now), now))
    assert apply(fresh, signal("id", deadline=now + timedelta(minutes=5)), now).phase == "none"
    assert apply(fresh, signal("id", deadline=now + timedelta(days=1)), now).phase == "notice"


def test_a_dismissed_event_stays_dismissed_after_a_reboot(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    dismissed = dismiss(apply(ReclaimState("boot-1"), signal("id"), now), now)
    assert apply(rebooted(tmp_path, dismissed), signal("id"), now).phase == "none"


def test_a_hint_whose_time_passed_before_the_reboot_is_over(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    for deadline, phase in ((now - timedelta(days=2), "none"), (now + timedelta(days=2), "notice")):
        hint = msgspec.structs.replace(signal("id", deadline=deadline), kind="hint")
        fresh = rebooted(tmp_path, apply(ReclaimState("boot-1"), hint, now))
        assert apply(fresh, signal("id", deadline=None), now).phase == phase


def test_a_value_is_over_until_its_source_reports_another(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    fresh = rebooted(tmp_path, apply(ReclaimState("boot-1"), signal("word", "TRUE"), now))
    assert apply(fresh, signal("word", "TRUE"), now).phase == "none"
    cleared = apply(fresh, Signal("azure", "clear", "TRUE", ""), now)
    assert apply(cleared, signal("word", "TRUE"), now).phase == "notice"


def test_a_persistent_signal_counts_again_after_a_reboot(tmp_path: Path) -> None:
    """Covers an Auto Scaling group that terminates the instance, and a signal file."""
    now = datetime.now(UTC)
    assert apply(rebooted(tmp_path, apply(ReclaimState("boot-1"), signal(""), now)), signal(""), now).phase == "notice"


def test_past_events_are_bounded_in_number_and_age(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    state = ReclaimState("boot-1")
    for number in range(MAX_PAST_EVENTS + 10):
        state = apply(state, signal("id", str(number)), now)
    past = rebooted(tmp_path, state).past
    assert [event_.event for event_ in past] == [str(number) for number in range(10, MAX_PAST_EVENTS + 10)]
    assert rebooted(tmp_path, state, days=91).past == ()


def test_without_a_file_the_state_is_empty(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    assert file.load("boot-1") == ReclaimState("boot-1") and file.problem is None


def test_a_file_truncated_at_any_byte_is_quarantined(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    content = (tmp_path / FILE).read_bytes()
    for length in range(len(content)):
        (tmp_path / FILE).write_bytes(content[:length])
        file = StateFile(tmp_path)
        assert file.load("boot-1") == ReclaimState("boot-1") and file.problem is not None
        assert (tmp_path / f"{FILE}.corrupt-{length + 1}").read_bytes() == content[:length]


@pytest.mark.parametrize(
    "text",
    [b"\xff\xff", b"[]", b'{"version": 2, "state": {"boot": "boot-1"}}', b'{"version": 1, "state": {"bot": ""}}'],
)
def test_a_malformed_file_is_quarantined(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)
    file = StateFile(tmp_path)
    assert file.load("boot-1") == ReclaimState("boot-1") and file.problem is not None
    file.save(NOTICED)
    assert StateFile(tmp_path).load("boot-1") == NOTICED


def test_a_temporary_file_of_an_interrupted_save_is_ignored(tmp_path: Path) -> None:
    StateFile(tmp_path).save(NOTICED)
    (tmp_path / f"{FILE}.new-1").write_bytes(b'{"version"')
    assert StateFile(tmp_path).load("boot-1") == NOTICED
    StateFile(tmp_path).save(ReclaimState("boot-1"))
    assert StateFile(tmp_path).load("boot-1") == ReclaimState("boot-1")


def test_a_failed_save_raises_an_error_and_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StateFile(tmp_path).save(NOTICED)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RetryableError, match="No space left"):
        StateFile(tmp_path).save(ReclaimState("boot-1"))
    assert StateFile(tmp_path).load("boot-1") == NOTICED

"""GCP, against a server whose questions wait for a change."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from dra_agent.reclaim.settings import GcpSignals
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.signals.gcp import POLL_INTERVAL_S, GcpSource
from dra_agent.reclaim.signals.polling import JITTER, PollSchedule
from fake_clock import FakeTime
from reclaim.metadata.gcp import FakeGcp
from reclaim.recording_sink import Listener, is_due, listen, quick

PREEMPTED = "/computeMetadata/v1/instance/preempted"


def source(gcp: FakeGcp, pace: type[PollSchedule] | None = None) -> GcpSource:
    return GcpSource(
        gcp.endpoint,
        preemption=timedelta(seconds=30),
        maintenance=timedelta(seconds=60),
        lead=timedelta(seconds=300),
        pace=pace or quick,
    )


def gpu_host(gcp: FakeGcp) -> GcpSource:
    hour = timedelta(hours=1)
    return GcpSource(gcp.endpoint, preemption=hour, maintenance=hour, lead=timedelta(seconds=300), pace=quick)


def test_a_preemption_ends_a_waiting_question_at_once(gcp: FakeGcp) -> None:
    t0 = 0.0

    async def story(listener: Listener) -> None:
        nonlocal t0
        await listener.until(lambda: gcp.waiting == 2)
        t0 = gcp.set(preempted="TRUE")
        await listener.until(lambda: listener.now("gcp.preempted"))

    heard = listen(source(gcp), story)
    (reading,) = heard.now("gcp.preempted") or ()
    assert (reading.kind, reading.sticky) == ("notice", True)
    assert is_due(reading.deadline, 30, datetime.fromtimestamp(t0, UTC))
    # It was the waiting question that was answered: none was put anew about the old value.
    old = f"last_etag={gcp.etag('FALSE')}"
    assert sum(asked.path.startswith(PREEMPTED) and old in asked.path for asked in gcp.asked) == 1
    assert not heard.failures


def test_a_word_is_one_event_for_as_long_as_it_is_said(gcp: FakeGcp) -> None:
    """It has no id of its own: what ended under this word is over until the word has changed."""
    gcp.set(preempted="TRUE")

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("gcp.preempted"))

    (reading,) = listen(source(gcp), story).now("gcp.preempted") or ()
    assert (reading.event, reading.once) == ("TRUE", "word")


def test_while_nothing_changes_nothing_is_asked(gcp: FakeGcp) -> None:
    async def story(listener: Listener) -> None:
        await listener.until(lambda: gcp.waiting == 2)
        await asyncio.sleep(0.3)

    listen(source(gcp), story)
    assert len(gcp.asked) == 4
    assert "last_etag=" in gcp.asked[-1].path and "wait_for_change=true" in gcp.asked[-1].path


def test_a_change_between_two_questions_is_not_missed(gcp: FakeGcp) -> None:
    """The value changes after an answer and before the next question: its etag is old, so it does not wait."""

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("gcp.preempted") == ())
        gcp.set(preempted="TRUE")
        await listener.until(lambda: listener.now("gcp.preempted"))

    assert listen(source(gcp, PollSchedule), story).notices()


def test_the_deadline_stays_where_it_was_first_seen(gcp: FakeGcp) -> None:
    gcp.set(preempted="TRUE", no_etag=True)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: len(listener.seen_.get("gcp.preempted", [])) > 5)

    assert len({reading.deadline for reading in listen(source(gcp), story).notices()}) == 1


def test_without_etags_it_is_asked_again_and_again(gcp: FakeGcp) -> None:
    gcp.set(no_etag=True)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: len(listener.seen_.get("gcp.preempted", [])) > 3)
        gcp.set(preempted="TRUE")
        await listener.until(lambda: listener.notices())

    listen(source(gcp), story)
    assert all("wait_for_change" not in asked.path for asked in gcp.asked)


@pytest.mark.parametrize(
    ("event", "kind"),
    [("NONE", None), ("MIGRATE_ON_HOST_MAINTENANCE", None), ("TERMINATE_ON_HOST_MAINTENANCE", "notice")],
)
def test_host_maintenance_counts_where_it_ends_the_instance(gcp: FakeGcp, event: str, kind: str | None) -> None:
    gcp.set(maintenance=event)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: "gcp.maintenance" in listener.seen_)

    readings = listen(source(gcp), story).now("gcp.maintenance") or ()
    assert [reading.kind for reading in readings] == ([kind] if kind else [])


def test_maintenance_is_a_hint_until_it_is_near(gcp: FakeGcp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances with GPUs are told an hour before."""
    gcp.set(maintenance="TERMINATE_ON_HOST_MAINTENANCE", no_etag=True)
    host_time = FakeTime()
    monkeypatch.setattr("dra_agent.reclaim.signals.http.STEADY", host_time.clock())

    async def story(listener: Listener) -> None:
        async def look() -> None:
            looks = len(listener.seen_.get("gcp.maintenance", ()))
            await listener.until(lambda: len(listener.seen_.get("gcp.maintenance", ())) > looks + 1)

        await look()
        host_time.pass_(3290.0)
        await look()
        assert not listener.notices()
        host_time.pass_(20.0)
        await listener.until(listener.notices)

    heard = listen(gpu_host(gcp), story)
    (hint,) = heard.seen_["gcp.maintenance"][0]
    (notice,) = heard.now("gcp.maintenance") or ()
    assert (hint.kind, notice.kind) == ("hint", "notice") and hint.deadline == notice.deadline

    async def restarted(listener: Listener) -> None:
        await listener.until(listener.notices)

    source = gpu_host(gcp)
    source.recall([hint])
    (again,) = listen(source, restarted).now("gcp.maintenance") or ()
    assert again.deadline == hint.deadline, "the hour began with the first look, not with the agent's restart"


def test_a_question_does_not_wait_past_the_moment_at_which_a_hint_becomes_a_notice(
    gcp: FakeGcp, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcp.set(maintenance="TERMINATE_ON_HOST_MAINTENANCE")
    source = gpu_host(gcp)
    clock = FakeTime().clock()
    monkeypatch.setattr("dra_agent.reclaim.signals.http.STEADY", clock)
    monkeypatch.setattr("dra_agent.reclaim.signals.gcp.STEADY", clock)
    end = clock.now() + timedelta(seconds=300 + 10)
    source.recall([Signal("gcp.maintenance", "hint", "TERMINATE_ON_HOST_MAINTENANCE", "", end)])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: any("maintenance-event?wait" in one.path for one in gcp.asked))

    listen(source, story)
    asked = next(one.path for one in gcp.asked if "maintenance-event?wait" in one.path)
    assert asked.rpartition("timeout_sec=")[2] == "10"


def test_what_a_value_counts_as_is_configured(gcp: FakeGcp) -> None:
    gcp.set(preempted="TRUE", maintenance="TERMINATE_ON_HOST_MAINTENANCE")
    soon = timedelta(seconds=30)
    signals = GcpSignals(preempted="hint", maintenance="ignore")
    source = GcpSource(gcp.endpoint, preemption=soon, maintenance=soon, lead=soon, signals=signals, pace=quick)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("gcp.preempted"))

    heard = listen(source, story)
    assert [one.kind for one in heard.now("gcp.preempted") or ()] == ["hint"] and source.names == ("gcp.preempted",)
    assert heard.now("gcp.maintenance") is None and gcp.count("/computeMetadata/v1/instance/maintenance-event") == 0


def test_maintenance_that_is_called_off_is_no_longer_said(gcp: FakeGcp) -> None:
    gcp.set(maintenance="TERMINATE_ON_HOST_MAINTENANCE")

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("gcp.maintenance"))
        gcp.set(maintenance="NONE")
        await listener.until(lambda: listener.now("gcp.maintenance") == ())

    assert not any(reading.sticky for reading in listen(source(gcp), story).notices())


NONSENSE = [
    {"status": 200, "body": "TRUE"},  # anybody could say that: Google says who it is
    {"status": 200, "body": "MAYBE", "headers": {"Metadata-Flavor": "Google"}},
    {"status": 200, "body": "", "headers": {"Metadata-Flavor": "Google"}},
    {"status": 200, "body": "\xff", "headers": {"Metadata-Flavor": "Google"}},
    {"status": 200, "body": "TRUE" * 30_000, "headers": {"Metadata-Flavor": "Google"}},
    {"status": 503, "body": "TRUE", "headers": {"Metadata-Flavor": "Google"}},
    {"status": 301, "headers": {"Location": "/x", "Metadata-Flavor": "Google"}},
    {"status": 403},
    {"status": 404, "body": "TRUE", "headers": {"Metadata-Flavor": "Google"}},
    {"how": "drop"},
    {"how": "reset"},
    {"how": "garbage"},
    {"how": "endless"},
]


@pytest.mark.parametrize("fault", NONSENSE, ids=lambda fault: str(fault)[:60])
def test_what_is_no_answer_is_unknown_and_never_a_notice(gcp: FakeGcp, fault: dict[str, object]) -> None:
    gcp.fail(PREEMPTED, times=2, **fault)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("gcp.preempted") == ())

    heard = listen(source(gcp), story)
    assert any(name == "gcp.preempted" for name, _ in heard.failures) and not heard.notices()


def test_a_waiting_question_that_breaks_is_asked_anew_without_waiting(gcp: FakeGcp) -> None:
    async def story(listener: Listener) -> None:
        gcp.fail(PREEMPTED + "?wait_for_change", how="reset", times=2)
        await listener.until(lambda: listener.failures)
        gcp.set(preempted="TRUE")
        await listener.until(lambda: listener.notices())

    listen(source(gcp), story)
    asked = [asked.path for asked in gcp.asked if asked.path.startswith(PREEMPTED)]
    # The kept connection may have been closed by anybody, so the question is put once more; then it begins anew.
    assert ["wait" in path for path in asked][:4] == [False, True, True, False]


def test_a_server_that_does_not_wait_is_asked_once_a_second(gcp: FakeGcp) -> None:
    answer = {"Metadata-Flavor": "Google", "ETag": "0"}
    gcp.fail(PREEMPTED, status=200, body="FALSE", headers=answer, times=10_000)

    async def story(listener: Listener) -> None:
        began = time.monotonic()
        await asyncio.sleep(1.5)
        asked, took = gcp.count(PREEMPTED), time.monotonic() - began
        assert asked <= 1 + took / (POLL_INTERVAL_S * (1 - JITTER)), "the first, and then one a second"

    listen(source(gcp, PollSchedule), story)


@pytest.mark.parametrize("etag", ["a&b=c", "x" * 300, "#", "%00", "", "é"])
def test_an_odd_etag_is_not_sent_back(gcp: FakeGcp, etag: str) -> None:
    answer = {"Metadata-Flavor": "Google", "ETag": etag}
    gcp.fail(PREEMPTED, status=200, body="FALSE", headers=answer, times=3)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: len(listener.seen_.get("gcp.preempted", [])) >= 4)

    listen(source(gcp), story)
    asked = [asked.path for asked in gcp.asked if asked.path.startswith(PREEMPTED)]
    assert asked[:4] == [PREEMPTED] * 4

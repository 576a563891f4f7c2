"""The GCP source with a metadata server whose requests wait for a change."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from dra_agent.reclaim.settings import GcpSignals
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.signals.gcp import POLL_INTERVAL_S, GcpSource
from dra_agent.reclaim.signals.polling import JITTER_SHARE, PollSchedule
from fake_clock import FakeTime
from reclaim.metadata.gcp import FakeGcp
from reclaim.recording_sink import RecordingSink, fast_schedule, is_due, run_source

PREEMPTED = "/computeMetadata/v1/instance/preempted"


def source(gcp: FakeGcp, make_schedule: type[PollSchedule] | None = None) -> GcpSource:
    return GcpSource(
        gcp.endpoint,
        preemption=timedelta(seconds=30),
        maintenance=timedelta(seconds=60),
        lead=timedelta(seconds=300),
        make_schedule=make_schedule or fast_schedule,
    )


def gpu_host(gcp: FakeGcp) -> GcpSource:
    hour = timedelta(hours=1)
    return GcpSource(
        gcp.endpoint, preemption=hour, maintenance=hour, lead=timedelta(seconds=300), make_schedule=fast_schedule
    )


def test_a_preemption_ends_a_waiting_request_at_once(gcp: FakeGcp) -> None:
    t0 = 0.0

    async def scenario(sink: RecordingSink) -> None:
        nonlocal t0
        await sink.wait_until(lambda: gcp.waiting == 2)
        t0 = gcp.set(preempted="TRUE")
        await sink.wait_until(lambda: sink.latest("gcp.preempted"))

    recorded = run_source(source(gcp), scenario)
    (signal,) = recorded.latest("gcp.preempted") or ()
    assert (signal.kind, signal.sticky) == ("notice", True)
    assert is_due(signal.deadline, 30, datetime.fromtimestamp(t0, UTC))
    # The waiting request got the response; no new request was sent with the old etag.
    old = f"last_etag={gcp.etag('FALSE')}"
    assert sum(request.path.startswith(PREEMPTED) and old in request.path for request in gcp.requests) == 1
    assert not recorded.failures


def test_a_value_is_one_event_while_it_is_set(gcp: FakeGcp) -> None:
    """The value has no id: once its event has ended, it is over until the value changes."""
    gcp.set(preempted="TRUE")

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("gcp.preempted"))

    (signal,) = run_source(source(gcp), scenario).latest("gcp.preempted") or ()
    assert (signal.event, signal.once) == ("TRUE", "word")


def test_without_a_change_no_requests_are_sent(gcp: FakeGcp) -> None:
    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: gcp.waiting == 2)
        gcp.set(preempted="TRUE")
        await sink.wait_until(lambda: sink.latest("gcp.preempted"))
        await sink.wait_until(lambda: gcp.waiting == 2)

    run_source(source(gcp), scenario)
    # Each value is read and then waited for; only the one that changed is waited for again.
    assert len(gcp.requests) == 5 and gcp.count(PREEMPTED) == 3
    assert "last_etag=" in gcp.requests[-1].path and "wait_for_change=true" in gcp.requests[-1].path


def test_a_change_between_two_requests_is_not_missed(gcp: FakeGcp) -> None:
    """The value changes between a response and the next request: the old etag makes that request return at once."""

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("gcp.preempted") == ())
        gcp.set(preempted="TRUE")
        await sink.wait_until(lambda: sink.latest("gcp.preempted"))

    assert run_source(source(gcp, PollSchedule), scenario).notices()


def test_the_deadline_counts_from_the_first_poll(gcp: FakeGcp) -> None:
    gcp.set(preempted="TRUE", no_etag=True)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: len(sink.signals.get("gcp.preempted", [])) > 5)

    assert len({signal.deadline for signal in run_source(source(gcp), scenario).notices()}) == 1


def test_without_etags_the_value_is_polled(gcp: FakeGcp) -> None:
    gcp.set(no_etag=True)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: len(sink.signals.get("gcp.preempted", [])) > 3)
        gcp.set(preempted="TRUE")
        await sink.wait_until(lambda: sink.notices())

    run_source(source(gcp), scenario)
    assert all("wait_for_change" not in request.path for request in gcp.requests)


@pytest.mark.parametrize(
    ("event", "kind"),
    [("NONE", None), ("MIGRATE_ON_HOST_MAINTENANCE", None), ("TERMINATE_ON_HOST_MAINTENANCE", "notice")],
)
def test_maintenance_is_a_notice_if_it_ends_the_instance(gcp: FakeGcp, event: str, kind: str | None) -> None:
    gcp.set(maintenance=event)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: "gcp.maintenance" in sink.signals)

    signals = run_source(source(gcp), scenario).latest("gcp.maintenance") or ()
    assert [signal.kind for signal in signals] == ([kind] if kind else [])
    assert all(signal.description == "host maintenance ends the instance" for signal in signals)


def test_maintenance_is_a_hint_until_it_is_near(gcp: FakeGcp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances with GPUs are notified one hour before."""
    gcp.set(maintenance="TERMINATE_ON_HOST_MAINTENANCE", no_etag=True)
    host_time = FakeTime()
    monkeypatch.setattr("dra_agent.reclaim.signals.http.STEADY", host_time.clock())

    async def scenario(sink: RecordingSink) -> None:
        async def wait_for_poll() -> None:
            polls = len(sink.signals.get("gcp.maintenance", ()))
            await sink.wait_until(lambda: len(sink.signals.get("gcp.maintenance", ())) > polls + 1)

        await wait_for_poll()
        host_time.pass_(3290.0)
        await wait_for_poll()
        assert not sink.notices()
        host_time.pass_(20.0)
        await sink.wait_until(sink.notices)

    recorded = run_source(gpu_host(gcp), scenario)
    (hint,) = recorded.signals["gcp.maintenance"][0]
    (notice,) = recorded.latest("gcp.maintenance") or ()
    assert (hint.kind, notice.kind) == ("hint", "notice") and hint.deadline == notice.deadline

    async def restarted(sink: RecordingSink) -> None:
        await sink.wait_until(sink.notices)

    source = gpu_host(gcp)
    source.recall([hint])
    (signal_,) = run_source(source, restarted).latest("gcp.maintenance") or ()
    assert signal_.deadline == hint.deadline, "the hour began with the first poll, not with the restart of the agent"


def test_a_waiting_request_ends_when_a_hint_becomes_a_notice(gcp: FakeGcp, monkeypatch: pytest.MonkeyPatch) -> None:
    gcp.set(maintenance="TERMINATE_ON_HOST_MAINTENANCE")
    source = gpu_host(gcp)
    clock = FakeTime().clock()
    monkeypatch.setattr("dra_agent.reclaim.signals.http.STEADY", clock)
    monkeypatch.setattr("dra_agent.reclaim.signals.gcp.STEADY", clock)
    end = clock.now() + timedelta(seconds=300 + 10)
    source.recall([Signal("gcp.maintenance", "hint", "TERMINATE_ON_HOST_MAINTENANCE", "", end)])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: any("maintenance-event?wait" in request.path for request in gcp.requests))

    run_source(source, scenario)
    path = next(request.path for request in gcp.requests if "maintenance-event?wait" in request.path)
    assert path.rpartition("timeout_sec=")[2] == "10"


def test_the_treatment_of_a_value_is_configurable(gcp: FakeGcp) -> None:
    gcp.set(preempted="TRUE", maintenance="TERMINATE_ON_HOST_MAINTENANCE")
    soon = timedelta(seconds=30)
    signals = GcpSignals(preempted="hint", maintenance="ignore")
    source = GcpSource(
        gcp.endpoint, preemption=soon, maintenance=soon, lead=soon, signals=signals, make_schedule=fast_schedule
    )

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("gcp.preempted"))

    recorded = run_source(source, scenario)
    assert [signal_.kind for signal_ in recorded.latest("gcp.preempted") or ()] == ["hint"] and source.names == (
        "gcp.preempted",
    )
    assert (
        recorded.latest("gcp.maintenance") is None and gcp.count("/computeMetadata/v1/instance/maintenance-event") == 0
    )


def test_canceled_maintenance_is_no_longer_reported(gcp: FakeGcp) -> None:
    gcp.set(maintenance="TERMINATE_ON_HOST_MAINTENANCE")

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("gcp.maintenance"))
        gcp.set(maintenance="NONE")
        await sink.wait_until(lambda: sink.latest("gcp.maintenance") == ())

    assert not any(signal.sticky for signal in run_source(source(gcp), scenario).notices())


MALFORMED = [
    {"status": 200, "body": "TRUE"},  # without the Metadata-Flavor header of Google
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


@pytest.mark.parametrize("fault", MALFORMED, ids=lambda fault: str(fault)[:60])
def test_a_malformed_response_is_unknown_and_never_a_notice(gcp: FakeGcp, fault: dict[str, object]) -> None:
    gcp.fail(PREEMPTED, times=2, **fault)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("gcp.preempted") == ())

    recorded = run_source(source(gcp), scenario)
    assert any(name == "gcp.preempted" for name, _ in recorded.failures) and not recorded.notices()


def test_a_broken_waiting_request_is_restarted_without_waiting(gcp: FakeGcp) -> None:
    async def scenario(sink: RecordingSink) -> None:
        gcp.fail(PREEMPTED + "?wait_for_change", how="reset", times=2)
        await sink.wait_until(lambda: sink.failures)
        gcp.set(preempted="TRUE")
        await sink.wait_until(lambda: sink.notices())

    run_source(source(gcp), scenario)
    paths = [request.path for request in gcp.requests if request.path.startswith(PREEMPTED)]
    # The server may have closed the kept connection, so the request is repeated once; then polling restarts.
    assert ["wait" in path for path in paths][:4] == [False, True, True, False]


def test_a_server_that_does_not_wait_is_polled_once_a_second(gcp: FakeGcp) -> None:
    headers = {"Metadata-Flavor": "Google", "ETag": "0"}
    gcp.fail(PREEMPTED, status=200, body="FALSE", headers=headers, times=10_000)

    async def scenario(sink: RecordingSink) -> None:
        start = time.monotonic()
        await sink.wait_until(lambda: gcp.count(PREEMPTED) >= 3)
        count, duration = gcp.count(PREEMPTED), time.monotonic() - start
        assert count <= 1 + duration / (POLL_INTERVAL_S * (1 - JITTER_SHARE)), (
            "the first request, and then one per second"
        )

    run_source(source(gcp, PollSchedule), scenario)


@pytest.mark.parametrize("etag", ["a&b=c", "x" * 300, "#", "%00", "", "é"])
def test_a_malformed_etag_is_not_sent_back(gcp: FakeGcp, etag: str) -> None:
    headers = {"Metadata-Flavor": "Google", "ETag": etag}
    gcp.fail(PREEMPTED, status=200, body="FALSE", headers=headers, times=3)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: len(sink.signals.get("gcp.preempted", [])) >= 4)

    run_source(source(gcp), scenario)
    paths = [request.path for request in gcp.requests if request.path.startswith(PREEMPTED)]
    assert paths[:4] == [PREEMPTED] * 4

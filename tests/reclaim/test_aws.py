"""AWS sources with a service that requires tokens, revokes them, fails, and sends malformed responses."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from dra_agent.reclaim.settings import AwsSignals
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.signal_tracker import SignalTracker
from dra_agent.reclaim.signals.aws import AwsSource, Session
from dra_agent.reclaim.signals.http import MetadataService
from dra_agent.reclaim.signals.polling import PollSchedule
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.connect_proxy import connect_proxy
from logged import logged_by
from reclaim.metadata.aws import FakeAws
from reclaim.recording_sink import RecordingSink, fast_schedule, is_due, run_source

LEAD = timedelta(seconds=300)
SIGNALS = AwsSignals(rebalance="hint")
BOOTED = datetime.now(UTC) - timedelta(days=2)
SPOT = "/latest/meta-data/spot/instance-action"


def source(aws: FakeAws, booted: datetime | None = None, signals: AwsSignals | None = None) -> AwsSource:
    return AwsSource(
        aws.endpoint, lead=LEAD, signals=signals or SIGNALS, make_schedule=fast_schedule, booted=booted or BOOTED
    )


def at(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def remaining(deadline: datetime | None) -> float:
    assert deadline is not None
    return (deadline - datetime.now(UTC)).total_seconds()


def test_every_source_is_polled_without_an_announcement(aws: FakeAws) -> None:
    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: set(sink.signals) == set(source(aws).names))

    recorded = run_source(source(aws), scenario)
    assert not recorded.failures and all(recorded.latest(name) == () for name in source(aws).names)
    assert aws.count("/latest/api/token", "PUT") == 1


@pytest.mark.parametrize("action", ["terminate", "stop"])
def test_a_spot_notice_is_reported_with_its_deadline(aws: FakeAws, action: str) -> None:
    start = datetime.now(UTC)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot") == ())
        aws.set(spot={"action": action, "time": at(120)})
        await sink.wait_until(lambda: sink.latest("aws.spot"))

    (signal,) = run_source(source(aws), scenario).latest("aws.spot") or ()
    assert (signal.kind, signal.sticky, signal.deadline_note) == ("notice", True, "")
    assert action in signal.description and is_due(signal.deadline, 120, start)


def test_hibernation_leaves_no_time(aws: FakeAws) -> None:
    aws.set(spot={"action": "hibernate", "time": at(120)})

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot"))

    (signal,) = run_source(source(aws), scenario).latest("aws.spot") or ()
    assert remaining(signal.deadline) <= 0


def test_an_expired_token_is_renewed(aws: FakeAws) -> None:
    aws.set(token_seconds=1, takes_tokens_for=3600)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: aws.count("/latest/api/token", "PUT") >= 2)
        polls = len(sink.signals["aws.spot"])
        await sink.wait_until(lambda: len(sink.signals["aws.spot"]) > polls + 3)

    assert not run_source(source(aws), scenario).failures


def test_a_token_is_renewed_before_it_expires(aws: FakeAws) -> None:
    aws.set(token_seconds=100)
    now = 0.0
    session = Session(lambda: MetadataService(aws.endpoint), clock=lambda: now)

    async def requested_tokens(at: float) -> int:
        nonlocal now
        now = at
        await session.get(SPOT)
        return aws.count("/latest/api/token", "PUT")

    async def run() -> None:
        assert [await requested_tokens(at) for at in (0.0, 89.0, 90.0, 179.0, 180.0)] == [1, 1, 2, 2, 3]
        session.close()

    asyncio.run(run())


def test_a_revoked_token_is_replaced_at_once(aws: FakeAws) -> None:
    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot") == ())
        aws.set(forget_tokens=1, spot={"action": "stop", "time": at(60)})
        await sink.wait_until(lambda: sink.latest("aws.spot"))

    assert not run_source(source(aws), scenario).failures


MALFORMED = [
    {"status": 200, "body": "<html><body>sign in</body></html>"},
    {"status": 200, "body": ""},
    {"status": 200, "body": "[]"},
    {"status": 200, "body": '{"action": "terminate"}'},
    {"status": 200, "body": '{"action": 1, "time": "2030-01-01T00:00:00Z"}'},
    {"status": 200, "body": '{"action": "terminate", "time": "soon"}'},
    {"status": 200, "body": '{"action": "terminate", "time": "2030-01-01T00:00:00"}'},
    {"status": 200, "body": '{"action": "celebrate", "time": "2030-01-01T00:00:00Z"}'},
    {"status": 200, "body": "\xff\xfe\xfa"},
    {"status": 200, "body": '{"action": "terminate", "time": "9999-99-99T00:00:00Z"}'},
    {"status": 200, "body": "{" * 50_000},
    {"status": 200, "body": "A" * 70_000},
    {"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}},
    {"status": 204},
    {"status": 403, "body": "no"},
    {"status": 429, "headers": {"Retry-After": "0"}},
    {"status": 500, "body": '{"action": "terminate", "time": "2030-01-01T00:00:00Z"}'},
    {"status": 503, "body": '{"action": "terminate", "time": "2030-01-01T00:00:00Z"}'},
    {"how": "drop"},
    {"how": "reset"},
    {"how": "garbage"},
    {"how": "endless"},
]


@pytest.mark.parametrize("fault", MALFORMED, ids=lambda fault: str(fault)[:60])
def test_a_malformed_response_is_unknown_and_never_a_notice(aws: FakeAws, fault: dict[str, object]) -> None:
    aws.fail(SPOT, times=2, **fault)

    async def scenario(sink: RecordingSink) -> None:
        # The service recovers, and is polled again.
        await sink.wait_until(lambda: sink.latest("aws.spot") == ())

    recorded = run_source(source(aws), scenario)
    assert any(name == "aws.spot" for name, _ in recorded.failures)
    assert not recorded.notices()
    assert all(error.isprintable() and len(error) < 500 for _, error in recorded.failures)


def test_a_timeout_is_reported_with_the_hop_limit(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.signals.aws.REQUEST_TIMEOUT_S", 0.1)
    aws.fail("/latest/api/token", how="hang", times=1)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.failures)
        monkeypatch.setattr("dra_agent.reclaim.signals.aws.REQUEST_TIMEOUT_S", DEADLINE_S)
        await sink.wait_until(lambda: sink.latest("aws.spot") == ())

    recorded = run_source(source(aws), scenario)
    assert "no response within 0.1 s" in recorded.failures[0][1] and "hop limit" in recorded.failures[0][1]
    assert all("no response" in error for _, error in recorded.failures), "the next request has a new connection"


def test_hanging_paths_do_not_delay_interruption_notices(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.signals.aws.REQUEST_TIMEOUT_S", 3 * DEADLINE_S)
    paths = [f"/latest/meta-data/{path}" for path in ("events/recommendations", "events/maintenance", "autoscaling")]
    for path in paths:
        aws.fail(path, how="hang", times=100)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot") == ())
        await sink.wait_until(lambda: all(aws.count(path) for path in paths))
        for _ in range(3):
            aws.set(spot={"action": "stop", "time": at(60)})
            await sink.wait_until(lambda: sink.latest("aws.spot"))
            aws.set(spot=None)
            await sink.wait_until(lambda: sink.latest("aws.spot") == ())

    assert len(run_source(source(aws), scenario).notices()) >= 3


@pytest.mark.parametrize("token", ["", "a b", "x\r\nEvil: 1", "\xe9", "x" * 2000])
def test_a_malformed_token_is_not_sent_back(aws: FakeAws, token: str) -> None:
    aws.fail("/latest/api/token", status=200, body=token, times=1, method="PUT")

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot") == ())

    recorded = run_source(source(aws), scenario)
    assert recorded.failures and all("evil" not in request.headers for request in aws.requests)


def test_the_body_of_a_refusal_is_not_a_token(aws: FakeAws) -> None:
    aws.fail("/latest/api/token", status=403, body="plausible", times=1, method="PUT")

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot") == ())

    recorded = run_source(source(aws), scenario)
    assert "403" in recorded.failures[0][1]
    assert "plausible" not in {request.headers.get("x-aws-ec2-metadata-token") for request in aws.requests}


def test_a_scheduled_event_is_translated_to_the_clock_of_the_host(aws: FakeAws) -> None:
    start = datetime.now(UTC)
    aws.skew = 3600.0
    aws.set(maintenance=[event(3600 + 100)])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.maintenance"))

    (signal,) = run_source(source(aws), scenario).latest("aws.maintenance") or ()
    assert signal.kind == "notice" and is_due(signal.deadline, 100, start)
    assert signal.once == "id", "it is not acted on again after a reboot"


def test_a_skewed_service_clock_is_corrected_by_its_date_header(aws: FakeAws) -> None:
    start = datetime.now(UTC)
    aws.skew = 3600.0
    aws.set(spot={"action": "terminate", "time": at(3600 + 100)})

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot"))

    (signal,) = run_source(source(aws), scenario).latest("aws.spot") or ()
    assert is_due(signal.deadline, 100, start) and signal.deadline_note == ""


def test_a_past_deadline_leaves_no_time(aws: FakeAws) -> None:
    aws.set(spot={"action": "terminate", "time": at(-3600)})

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot"))

    (signal,) = run_source(source(aws), scenario).latest("aws.spot") or ()
    assert remaining(signal.deadline) <= 0 and "has passed" in signal.deadline_note


def test_a_skewed_clock_does_not_repeat_a_notice(aws: FakeAws, caplog: pytest.LogCaptureFixture) -> None:
    """The clock difference is known to 1 s and varies between polls: signals must not depend on it."""
    aws.skew = 10.0
    aws.set(spot={"action": "terminate", "time": at(10 - 60)}, rebalance={"noticeTime": at(10 - 90)})
    emitted: list[Signal] = []
    tracker = SignalTracker(source(aws).names, emitted.append)

    async def run() -> None:
        task = asyncio.create_task(source(aws).run(tracker))
        rebalance = "/latest/meta-data/events/recommendations/rebalance"
        await eventually_async(lambda: aws.count(SPOT) >= 20 and aws.count(rebalance) >= 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert sorted((signal.source, signal.kind) for signal in emitted) == [
        ("aws.rebalance", "hint"),
        ("aws.spot", "notice"),
    ]
    messages = [record.getMessage() for record in logged_by(caplog, "dra_agent.reclaim")]
    assert len(messages) == 2, messages


def test_a_deadline_years_ahead_is_replaced_by_the_default(aws: FakeAws) -> None:
    start = datetime.now(UTC)
    aws.set(spot={"action": "terminate", "time": "2999-01-01T00:00:00Z"})

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot"))

    (signal,) = run_source(source(aws), scenario).latest("aws.spot") or ()
    assert is_due(signal.deadline, 120, start) and "too far away" in signal.deadline_note


def test_an_event_before_the_boot_is_over(aws: FakeAws) -> None:
    """Covers a stopped spot instance that was started again, and a reboot that the service still lists as active."""
    aws.set(spot={"action": "stop", "time": at(-3600)}, maintenance=[event(-3600)])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: {"aws.spot", "aws.maintenance"} <= set(sink.signals))

    rebooted = run_source(source(aws, booted=datetime.now(UTC) - timedelta(minutes=30)), scenario)
    assert rebooted.latest("aws.spot") == () == rebooted.latest("aws.maintenance")
    assert len(run_source(source(aws), scenario).notices()) >= 2


def test_an_event_at_the_time_of_the_boot_is_not_over(aws: FakeAws) -> None:
    booted = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    aws.set(maintenance=[{**event(0), "NotBefore": booted.strftime("%d %b %Y %H:%M:%S GMT")}])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.maintenance"))

    run_source(source(aws, booted=booted), scenario)


def test_rebalance_recommendations_are_not_polled_by_default(aws: FakeAws) -> None:
    aws.set(rebalance={"noticeTime": "2026-10-27T08:22:00Z"})

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: len(sink.signals.get("aws.maintenance", ())) > 2)

    recorded = run_source(AwsSource(aws.endpoint, lead=LEAD, make_schedule=fast_schedule), scenario)
    assert recorded.latest("aws.rebalance") is None
    assert aws.count("/latest/meta-data/events/recommendations/rebalance") == 0


@pytest.mark.parametrize(
    ("signal", "treatment", "kind"),
    [
        ("spot", "hint", "hint"),
        ("autoscaling", "hint", "hint"),
        ("rebalance", "notice", "notice"),
        ("maintenance", "hint", "hint"),
        ("maintenance", "notice", "notice"),
    ],
)
def test_the_treatment_of_a_signal_is_configurable(aws: FakeAws, signal: str, treatment: str, kind: str) -> None:
    aws.set(
        spot={"action": "stop", "time": at(60)},
        autoscaling="Terminated",
        rebalance={"noticeTime": at(0)},
        maintenance=[event(60)],
    )

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest(f"aws.{signal}"))

    recorded = run_source(source(aws, signals=msgspec.convert({signal: treatment}, AwsSignals)), scenario)
    assert [signal_.kind for signal_ in recorded.latest(f"aws.{signal}") or ()] == [kind]


def test_a_rebalance_recommendation_is_a_hint_if_enabled(aws: FakeAws) -> None:
    aws.set(rebalance={"noticeTime": "2026-10-27T08:22:00Z"})

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.rebalance"))

    (signal,) = run_source(source(aws), scenario).latest("aws.rebalance") or ()
    assert (signal.kind, signal.description, signal.deadline) == ("hint", "rebalance recommendation", None)


@pytest.mark.parametrize(
    ("state", "kind"),
    [("InService", None), ("Standby", None), ("Terminated", "notice"), ("Warmed:Stopped", "notice"), (None, None)],
)
def test_a_terminating_auto_scaling_state_is_a_notice(aws: FakeAws, state: str | None, kind: str | None) -> None:
    aws.set(autoscaling=state)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: "aws.autoscaling" in sink.signals)

    signals = run_source(source(aws), scenario).latest("aws.autoscaling") or ()
    assert [signal.kind for signal in signals] == ([kind] if kind else [])


def test_an_unknown_lifecycle_state_is_an_error(aws: FakeAws) -> None:
    aws.set(autoscaling="Paused")

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.failures)

    recorded = run_source(source(aws), scenario)
    assert recorded.failures[0] == ("aws.autoscaling", "target-lifecycle-state 'Paused' is not known")


def gmt(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%d %b %Y %H:%M:%S GMT")


def event(seconds: float, state: str = "active", code: str = "system-reboot") -> dict[str, str]:
    return {
        "NotBefore": gmt(seconds),
        "NotAfter": gmt(seconds + 3600),
        "Code": code,
        "Description": "scheduled reboot",
        "EventId": "instance-event-0d59937288b749b32",
        "State": state,
    }


@pytest.mark.parametrize(
    ("events", "kinds"),
    [
        ([event(86400 * 10)], ["hint"]),
        ([event(100)], ["notice"]),
        ([event(100, "canceled")], []),
        ([event(100, "completed")], []),
        (event(100), ["notice"]),  # an object instead of a list of one object
        ([event(100, code="network-maintenance")], ["hint"]),
        ([event(86400 * 5000)], ["hint"]),
        ([], []),
    ],
)
def test_scheduled_events_are_hints_until_they_are_near(aws: FakeAws, events: object, kinds: list[str]) -> None:
    aws.set(maintenance=events)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: "aws.maintenance" in sink.signals)

    assert [signal.kind for signal in run_source(source(aws), scenario).latest("aws.maintenance") or ()] == kinds


@pytest.mark.parametrize(("seconds", "is_doubted"), [(86400 * 10, False), (86400 * 5000, True)])
def test_an_implausible_time_is_noted(aws: FakeAws, seconds: float, is_doubted: bool) -> None:
    aws.set(maintenance=[event(seconds)])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: "aws.maintenance" in sink.signals)

    (signal,) = run_source(source(aws), scenario).latest("aws.maintenance") or ()
    assert signal.deadline_note.endswith("is too far away to be true") is is_doubted


def test_an_unavailable_service_is_polled_rarely(aws: FakeAws) -> None:
    aws.fail("/", status=503, times=10_000)

    began = time.monotonic()

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: len(aws.requests) >= 22)

    recorded = run_source(source(aws), scenario)
    # With delays that double from 10, 20, 50 and 300 ms, less the jitter, four sources send 20 in that time.
    assert not recorded.signals and time.monotonic() - began > 0.8


def test_retry_after_is_honored(aws: FakeAws) -> None:
    aws.fail(SPOT, status=503, headers={"Retry-After": "1"}, times=1)

    delays: list[float] = []

    class RecordingSchedule(PollSchedule):
        def after_failure(self, retry_after: float | None) -> float:
            delays.append(super().after_failure(retry_after))
            return delays[-1]

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot") == ())

    run_source(
        AwsSource(
            aws.endpoint,
            lead=LEAD,
            signals=SIGNALS,
            make_schedule=lambda interval: RecordingSchedule(interval / 100),
            booted=BOOTED,
        ),
        scenario,
    )
    first, second = [request.at for request in aws.requests if request.path == SPOT][:2]
    assert second - first > 0.85 and len(delays) == 1 and delays[0] < 1.2


def test_proxy_environment_variables_are_ignored(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("aws.spot") == ())

    assert not run_source(source(aws), scenario).failures


def test_no_proxy_of_the_environment_is_asked_for_metadata(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect_proxy(("127.0.0.1", 1)) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
            monkeypatch.setenv(name.lower(), f"http://{proxy.address}")

        async def scenario(sink: RecordingSink) -> None:
            await sink.wait_until(lambda: set(sink.signals) == set(source(aws).names))

        assert not run_source(source(aws), scenario).failures
        assert proxy.heads == []

"""AWS, against a service that asks for tokens, forgets them, fails, and says nonsense."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from dra_agent.reclaim.settings import AwsSignals
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.signal_tracker import SignalTracker
from dra_agent.reclaim.signals.aws import AwsSource
from dra_agent.reclaim.signals.polling import PollSchedule
from eventually import DEADLINE_S, eventually_async
from logged import logged_by
from reclaim.metadata.aws import FakeAws
from reclaim.recording_sink import Listener, is_due, listen, quick

LEAD = timedelta(seconds=300)
SIGNALS = AwsSignals(rebalance="hint")
BOOTED = datetime.now(UTC) - timedelta(days=2)
SPOT = "/latest/meta-data/spot/instance-action"


def source(aws: FakeAws, booted: datetime | None = None, signals: AwsSignals | None = None) -> AwsSource:
    return AwsSource(aws.endpoint, lead=LEAD, signals=signals or SIGNALS, pace=quick, booted=booted or BOOTED)


def at(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def left(deadline: datetime | None) -> float:
    assert deadline is not None
    return (deadline - datetime.now(UTC)).total_seconds()


def test_nothing_announced_is_heard_from_every_voice(aws: FakeAws) -> None:
    async def story(listener: Listener) -> None:
        await listener.until(lambda: set(listener.seen_) == set(source(aws).names))

    heard = listen(source(aws), story)
    assert not heard.failures and all(heard.now(name) == () for name in source(aws).names)
    assert aws.count("/latest/api/token", "PUT") == 1


@pytest.mark.parametrize("action", ["terminate", "stop"])
def test_a_spot_notice_is_seen_with_its_deadline(aws: FakeAws, action: str) -> None:
    began = datetime.now(UTC)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot") == ())
        aws.set(spot={"action": action, "time": at(120)})
        await listener.until(lambda: listener.now("aws.spot"))

    (reading,) = listen(source(aws), story).now("aws.spot") or ()
    assert (reading.kind, reading.sticky, reading.deadline_note) == ("notice", True, "")
    assert action in reading.what and is_due(reading.deadline, 120, began)


def test_hibernation_leaves_no_time(aws: FakeAws) -> None:
    aws.set(spot={"action": "hibernate", "time": at(120)})

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot"))

    (reading,) = listen(source(aws), story).now("aws.spot") or ()
    assert left(reading.deadline) <= 0


def test_a_token_that_runs_out_is_renewed(aws: FakeAws) -> None:
    aws.set(token_seconds=1, takes_tokens_for=3600)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: aws.count("/latest/api/token", "PUT") >= 2)
        looks = len(listener.seen_["aws.spot"])
        await listener.until(lambda: len(listener.seen_["aws.spot"]) > looks + 3)

    assert not listen(source(aws), story).failures


def test_a_token_that_the_service_forgets_is_replaced_at_once(aws: FakeAws) -> None:
    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot") == ())
        aws.set(forget_tokens=1, spot={"action": "stop", "time": at(60)})
        await listener.until(lambda: listener.now("aws.spot"))

    assert not listen(source(aws), story).failures


NONSENSE = [
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


@pytest.mark.parametrize("fault", NONSENSE, ids=lambda fault: str(fault)[:60])
def test_what_is_no_answer_is_unknown_and_never_a_notice(aws: FakeAws, fault: dict[str, object]) -> None:
    aws.fail(SPOT, times=2, **fault)

    async def story(listener: Listener) -> None:
        # The service comes back, and is heard again.
        await listener.until(lambda: listener.now("aws.spot") == ())

    heard = listen(source(aws), story)
    assert any(name == "aws.spot" for name, _ in heard.failures)
    assert not heard.notices()
    assert all(why.isprintable() and len(why) < 500 for _, why in heard.failures)


def test_a_hang_ends_and_names_the_hop_limit(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.signals.aws.REQUEST_TIMEOUT_S", 0.1)
    aws.fail("/latest/api/token", how="hang", times=1)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.failures)
        monkeypatch.setattr("dra_agent.reclaim.signals.aws.REQUEST_TIMEOUT_S", DEADLINE_S)
        await listener.until(lambda: listener.now("aws.spot") == ())

    heard = listen(source(aws), story)
    assert "no response within 0.1 s" in heard.failures[0][1] and "hop limit" in heard.failures[0][1]


def test_paths_that_hang_keep_no_interruption_waiting(aws: FakeAws) -> None:
    for path in ("events/recommendations", "events/maintenance", "autoscaling"):
        aws.fail(f"/latest/meta-data/{path}", how="hang", times=100)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot") == ())
        for _ in range(3):
            await asyncio.sleep(0.3)
            aws.set(spot={"action": "stop", "time": at(60)})
            await listener.until(lambda: listener.now("aws.spot"))
            aws.set(spot=None)
            await listener.until(lambda: listener.now("aws.spot") == ())

    assert len(listen(source(aws), story).notices()) >= 3


@pytest.mark.parametrize("token", ["", "a b", "x\r\nEvil: 1", "\xe9", "x" * 2000])
def test_a_token_that_is_none_is_not_sent_back(aws: FakeAws, token: str) -> None:
    aws.fail("/latest/api/token", status=200, body=token, times=1, method="PUT")

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot") == ())

    heard = listen(source(aws), story)
    assert heard.failures and all("evil" not in asked.headers for asked in aws.asked)


def test_a_service_whose_clock_is_wrong_is_set_right_by_its_own_date(aws: FakeAws) -> None:
    began = datetime.now(UTC)
    aws.skew = 3600.0
    aws.set(spot={"action": "terminate", "time": at(3600 + 100)})

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot"))

    (reading,) = listen(source(aws), story).now("aws.spot") or ()
    assert is_due(reading.deadline, 100, began) and reading.deadline_note == ""


def test_a_deadline_that_has_passed_leaves_no_time(aws: FakeAws) -> None:
    aws.set(spot={"action": "terminate", "time": at(-3600)})

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot"))

    (reading,) = listen(source(aws), story).now("aws.spot") or ()
    assert left(reading.deadline) <= 0 and "has passed" in reading.deadline_note


def test_by_a_clock_that_is_wrong_what_is_said_again_is_the_same(
    aws: FakeAws, caplog: pytest.LogCaptureFixture
) -> None:
    """The difference of the clocks is known to a second, and another one at each look: no word may hang on it."""
    aws.skew = 10.0
    aws.set(spot={"action": "terminate", "time": at(10 - 60)}, rebalance={"noticeTime": at(10 - 90)})
    told: list[Signal] = []
    picture = SignalTracker(source(aws).names, told.append)

    async def play() -> None:
        task = asyncio.create_task(source(aws).run(picture))
        rebalance = "/latest/meta-data/events/recommendations/rebalance"
        await eventually_async(lambda: aws.count(SPOT) >= 20 and aws.count(rebalance) >= 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with caplog.at_level(logging.INFO):
        asyncio.run(play())
    assert sorted((reading.source, reading.kind) for reading in told) == [
        ("aws.rebalance", "hint"),
        ("aws.spot", "notice"),
    ]
    said = [record.getMessage() for record in logged_by(caplog, "dra_agent.reclaim")]
    assert len(said) == 2, said


def test_a_deadline_years_ahead_is_the_usual_one(aws: FakeAws) -> None:
    began = datetime.now(UTC)
    aws.set(spot={"action": "terminate", "time": "2999-01-01T00:00:00Z"})

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot"))

    (reading,) = listen(source(aws), story).now("aws.spot") or ()
    assert is_due(reading.deadline, 120, began) and "too far away" in reading.deadline_note


def test_what_was_announced_for_before_the_boot_has_happened(aws: FakeAws) -> None:
    """A stopped spot instance that was started again, and a reboot that the service goes on listing as active."""
    aws.set(spot={"action": "stop", "time": at(-3600)}, maintenance=[event(-3600)])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: {"aws.spot", "aws.maintenance"} <= set(listener.seen_))

    rebooted = listen(source(aws, booted=datetime.now(UTC) - timedelta(minutes=30)), story)
    assert rebooted.now("aws.spot") == () == rebooted.now("aws.maintenance")
    assert len(listen(source(aws), story).notices()) >= 2


def test_a_rebalance_recommendation_is_ignored_by_default_and_not_asked_for(aws: FakeAws) -> None:
    aws.set(rebalance={"noticeTime": "2026-10-27T08:22:00Z"})

    async def story(listener: Listener) -> None:
        await listener.until(lambda: len(listener.seen_.get("aws.maintenance", ())) > 2)

    heard = listen(AwsSource(aws.endpoint, lead=LEAD, pace=quick), story)
    assert heard.now("aws.rebalance") is None
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
def test_what_a_signal_counts_as_is_configured(aws: FakeAws, signal: str, treatment: str, kind: str) -> None:
    aws.set(
        spot={"action": "stop", "time": at(60)},
        autoscaling="Terminated",
        rebalance={"noticeTime": at(0)},
        maintenance=[event(60)],
    )

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now(f"aws.{signal}"))

    heard = listen(source(aws, signals=msgspec.convert({signal: treatment}, AwsSignals)), story)
    assert [one.kind for one in heard.now(f"aws.{signal}") or ()] == [kind]


def test_a_rebalance_recommendation_is_a_hint_where_it_counts(aws: FakeAws) -> None:
    aws.set(rebalance={"noticeTime": "2026-10-27T08:22:00Z"})

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.rebalance"))

    (reading,) = listen(source(aws), story).now("aws.rebalance") or ()
    assert (reading.kind, reading.deadline) == ("hint", None)


@pytest.mark.parametrize(
    ("state", "kind"),
    [("InService", None), ("Standby", None), ("Terminated", "notice"), ("Warmed:Stopped", "notice"), (None, None)],
)
def test_the_auto_scaling_group_gives_notice(aws: FakeAws, state: str | None, kind: str | None) -> None:
    aws.set(autoscaling=state)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: "aws.autoscaling" in listener.seen_)

    readings = listen(source(aws), story).now("aws.autoscaling") or ()
    assert [reading.kind for reading in readings] == ([kind] if kind else [])


def test_an_unknown_lifecycle_state_is_unknown(aws: FakeAws) -> None:
    aws.set(autoscaling="Paused")

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.failures)

    heard = listen(source(aws), story)
    assert heard.failures[0] == ("aws.autoscaling", "target-lifecycle-state 'Paused' is not known")


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
        (event(100), ["notice"]),  # one object instead of a list of one
        ([event(100, code="network-maintenance")], ["hint"]),
        ([event(86400 * 5000)], ["hint"]),
        ([], []),
    ],
)
def test_scheduled_events_are_hints_until_they_are_near(aws: FakeAws, events: object, kinds: list[str]) -> None:
    aws.set(maintenance=events)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: "aws.maintenance" in listener.seen_)

    assert [reading.kind for reading in listen(source(aws), story).now("aws.maintenance") or ()] == kinds


@pytest.mark.parametrize(("seconds", "doubted"), [(86400 * 10, False), (86400 * 5000, True)])
def test_a_time_that_cannot_be_is_doubted_where_people_read_it(aws: FakeAws, seconds: float, doubted: bool) -> None:
    aws.set(maintenance=[event(seconds)])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: "aws.maintenance" in listener.seen_)

    (reading,) = listen(source(aws), story).now("aws.maintenance") or ()
    assert reading.deadline_note.endswith("is too far away to be true") is doubted


def test_a_dead_service_is_not_hammered(aws: FakeAws) -> None:
    aws.fail("/", status=503, times=10_000)

    async def story(listener: Listener) -> None:
        await asyncio.sleep(1.5)
        await listener.until(lambda: len(aws.asked) > 4)

    heard = listen(source(aws), story)
    # A tenth of a millisecond's pace would be hundreds; four voices that double their waits stay far below.
    assert not heard.seen_ and len(aws.asked) < 60


def test_retry_after_is_kept(aws: FakeAws) -> None:
    aws.fail(SPOT, status=503, headers={"Retry-After": "1"}, times=1)

    waits: list[float] = []

    class Noted(PollSchedule):
        def after_failure(self, retry_after: float | None) -> float:
            waits.append(super().after_failure(retry_after))
            return waits[-1]

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot") == ())

    listen(
        AwsSource(aws.endpoint, lead=LEAD, signals=SIGNALS, pace=lambda every: Noted(every / 100), booted=BOOTED), story
    )
    first, second = [asked.at for asked in aws.asked if asked.path == SPOT][:2]
    assert second - first > 0.85 and len(waits) == 1 and waits[0] < 1.2


def test_the_proxy_of_the_environment_is_not_used(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("aws.spot") == ())

    assert not listen(source(aws), story).failures

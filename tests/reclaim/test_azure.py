"""The Azure source with a service that reports events of all VMs of a scale set."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any

import msgspec
import pytest

from dra_agent.reclaim.settings import AzureSignals
from dra_agent.reclaim.signal import SourceError
from dra_agent.reclaim.signals.azure import EVENTS as ASK_EVENTS
from dra_agent.reclaim.signals.azure import VM_NAME, AzureSource
from dra_agent.reclaim.signals.http import MetadataService, Response
from reclaim.metadata.azure import FakeAzure
from reclaim.recording_sink import RecordingSink, fast_schedule, is_due, run_source

EVENTS = "/metadata/scheduledevents"
NOWHERE = "http://127.0.0.1:9"

BOOTED = datetime.now(UTC) - timedelta(days=2)


def source(
    azure: FakeAzure,
    *,
    vm: str = "",
    acknowledge: bool = False,
    booted: datetime = BOOTED,
    signals: AzureSignals | None = None,
) -> AzureSource:
    return AzureSource(
        azure.endpoint,
        vm=vm,
        lead=timedelta(seconds=300),
        acknowledge=acknowledge,
        signals=signals or AzureSignals(),
        make_schedule=fast_schedule,
        booted=booted,
    )


def event(kind: str = "Preempt", seconds: float | None = 30, **fields: Any) -> dict[str, Any]:
    when = "" if seconds is None else format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    return {
        "EventId": "f020ba2e-3bc0-4c40-a10b-86575a9eabd5",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["vmss_0"],
        "EventStatus": "Scheduled",
        "NotBefore": when,
        "Description": "Virtual machine is being taken.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **fields,
    }


def remaining(deadline: datetime | None) -> float:
    assert deadline is not None
    return (deadline - datetime.now(UTC)).total_seconds()


def poll_events(azure: FakeAzure, *events: dict[str, Any]) -> RecordingSink:
    azure.set(events=list(events))

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: "azure" in sink.signals)

    return run_source(source(azure), scenario)


def test_a_preemption_of_this_vm_is_a_notice(azure: FakeAzure) -> None:
    start = datetime.now(UTC)
    (signal,) = poll_events(azure, event()).latest("azure") or ()
    assert signal.kind == "notice" and is_due(signal.deadline, 30, start)
    assert signal.event == "f020ba2e-3bc0-4c40-a10b-86575a9eabd5"


def test_an_event_of_another_vm_is_ignored(azure: FakeAzure) -> None:
    recorded = poll_events(azure, event(Resources=["vmss_1", "vmss_00"]), event("Reboot", Resources=[]))
    assert recorded.latest("azure") == () and not recorded.failures


def test_vm_names_are_compared_without_case(azure: FakeAzure) -> None:
    assert poll_events(azure, event(Resources=["VMSS_0"])).notices()


def test_a_malformed_event_of_another_vm_is_ignored(azure: FakeAzure) -> None:
    malformed: list[Any] = [
        {"Resources": ["vmss_1"]},
        {"EventId": 7},
        "text",
        None,
        {"Resources": "vmss_0"},
        {"Resources": [3]},
    ]
    recorded = poll_events(azure, *malformed, event())
    assert len(recorded.notices()) >= 1 and not recorded.failures


@pytest.mark.parametrize(
    ("kind", "seconds", "status", "expected"),
    [
        ("Preempt", 30, "Scheduled", "notice"),
        ("Terminate", 900, "Scheduled", "notice"),
        ("Reboot", 900, "Scheduled", "hint"),
        ("Reboot", 200, "Scheduled", "notice"),
        ("Reboot", None, "Started", "notice"),
        ("Redeploy", 86400 * 6, "Scheduled", "hint"),
        ("Redeploy", 200, "Scheduled", "notice"),
        ("Redeploy", None, "Started", "notice"),
        ("Freeze", 900, "Scheduled", "hint"),
        ("Freeze", None, "Started", "hint"),
        ("Invented", 900, "Scheduled", "hint"),
        ("Preempt", None, "Scheduled", "notice"),
        ("Preempt", 86400 * 1000, "Scheduled", "notice"),
        ("Reboot", 86400 * 1000, "Scheduled", "hint"),
        ("Preempt", 30, "Completed", None),
    ],
)
def test_the_type_and_status_of_an_event_determine_its_kind(
    azure: FakeAzure, kind: str, seconds: float | None, status: str, expected: str | None
) -> None:
    signals = poll_events(azure, event(kind, seconds, EventStatus=status)).latest("azure") or ()
    assert [signal.kind for signal in signals] == ([expected] if expected else [])


def test_a_canceled_event_is_no_longer_reported(azure: FakeAzure) -> None:
    azure.set(events=[event()])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("azure"))
        azure.set(events=[])
        await sink.wait_until(lambda: sink.latest("azure") == ())

    assert not any(signal.sticky for signal in run_source(source(azure), scenario).notices())


def test_a_default_deadline_counts_from_the_first_poll(azure: FakeAzure) -> None:
    start = datetime.now(UTC)
    azure.set(events=[event("Preempt", None)])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: len(sink.signals.get("azure", [])) > 4)

    deadlines = {signal.deadline for signal in run_source(source(azure), scenario).notices()}
    assert len(deadlines) == 1 and is_due(deadlines.pop(), 30, start)


@pytest.mark.parametrize(
    ("event_type", "seconds"),
    [("Preempt", 30), ("Terminate", 300), ("Reboot", 900), ("Redeploy", 600), ("Freeze", None)],
)
def test_without_a_time_the_shortest_notice_period_applies(
    azure: FakeAzure, event_type: str, seconds: float | None
) -> None:
    (signal,) = poll_events(azure, event(event_type, None)).latest("azure") or ()
    assert signal.deadline is None if seconds is None else seconds - 60 < remaining(signal.deadline) <= seconds


def test_the_vm_name_is_configurable(azure: FakeAzure) -> None:
    azure.set(events=[event(Resources=["other"])])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("azure"))

    run_source(source(azure, vm="other"), scenario)
    assert azure.count("/metadata/instance") == 0


MALFORMED = [
    {"status": 200, "body": "<html></html>"},
    {"status": 200, "body": ""},
    {"status": 200, "body": "[]"},
    {"status": 200, "body": '{"Events": {}}'},
    {"status": 200, "body": '{"Events": [{"Resources": ["vmss_0"]}]}'},
    {"status": 200, "body": json.dumps({"Events": [event(NotBefore="at noon")]})},
    {"status": 200, "body": json.dumps({"Events": [event(EventId=7)]})},
    {"status": 200, "body": "\xff\xff"},
    {"status": 200, "body": json.dumps({"Events": [event()] * 1000})},
    {"status": 400, "body": '{"error":"Bad request"}'},
    {"status": 429},
    {"status": 500},
    {"status": 307, "headers": {"Location": "http://127.0.0.1:1/"}},
    {"how": "drop"},
    {"how": "garbage"},
]


@pytest.mark.parametrize("fault", MALFORMED, ids=lambda fault: str(fault)[:60])
def test_a_malformed_response_is_unknown_and_never_a_notice(azure: FakeAzure, fault: dict[str, object]) -> None:
    azure.fail(EVENTS, times=2, **fault)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("azure") == ())

    recorded = run_source(source(azure), scenario)
    assert recorded.failures and not recorded.notices()


@pytest.mark.parametrize("name", ["", "<html>", "a\nb", "x" * 300])
def test_a_malformed_vm_name_is_an_error(azure: FakeAzure, name: str) -> None:
    azure.fail("/metadata/instance", status=200, body=name, times=1)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("azure") == ())

    assert run_source(source(azure), scenario).failures


def test_the_longest_vm_name_is_accepted(azure: FakeAzure) -> None:
    name = "x" * 200
    azure.set(vm=name)
    assert poll_events(azure, event(Resources=[name])).notices()


class FailingService(MetadataService):
    """Records requests with their timeouts, and fails those without a scripted response."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, float]] = []
        self.answers: list[str | None] = []

    async def request(self, target: str, *, timeout_s: float, **options: Any) -> Response:
        self.requests.append((target, timeout_s))
        body = self.answers.pop(0)
        if body is None:
            raise SourceError("no answer")
        return Response(200, {}, body.encode(), datetime.now(UTC))

    def close(self) -> None:
        pass


def test_only_the_first_list_of_events_has_a_long_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.signals.azure.REQUEST_TIMEOUT_S", 5.0)
    monkeypatch.setattr("dra_agent.reclaim.signals.azure.FIRST_REQUEST_TIMEOUT_S", 125.0)
    service = FailingService()
    azure = AzureSource(
        NOWHERE, vm="", lead=timedelta(seconds=300), acknowledge=False, connect=lambda endpoint: service
    )
    no_events = '{"Events": []}'
    service.answers = [None, "vmss_0", None, None, no_events, None, no_events]

    async def poll_repeatedly() -> None:
        for _ in range(6):
            with contextlib.suppress(SourceError):
                await azure.poll()

    asyncio.run(poll_repeatedly())
    # The VM name is requested first; the request for events enables the Scheduled Events service.
    assert service.requests == [(VM_NAME, 5.0)] * 2 + [(ASK_EVENTS, 125.0)] * 3 + [(ASK_EVENTS, 5.0)] * 2


def test_an_event_before_the_boot_is_over(azure: FakeAzure) -> None:
    azure.set(events=[event("Reboot", -3600), event("Preempt", -3600, EventId="2")])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: "azure" in sink.signals)

    booted = datetime.now(UTC) - timedelta(minutes=30)
    assert run_source(source(azure, booted=booted), scenario).latest("azure") == ()
    assert run_source(source(azure), scenario).notices()


@pytest.mark.parametrize("event_type", ["Reboot", "Redeploy"])
@pytest.mark.parametrize(("minutes", "kind"), [(5, "hint"), (60, "notice")])
def test_a_reboot_in_progress_shortly_after_a_boot_is_that_boot(
    azure: FakeAzure, minutes: float, kind: str, event_type: str
) -> None:
    """Started events have no NotBefore: the uptime decides whether the event is over."""
    azure.set(events=[event(event_type, None, EventStatus="Started")])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: "azure" in sink.signals)

    booted = datetime.now(UTC) - timedelta(minutes=minutes)
    assert [signal_.kind for signal_ in run_source(source(azure, booted=booted), scenario).latest("azure") or ()] == [
        kind
    ]


def test_a_reboot_scheduled_in_this_boot_is_a_notice_at_its_start(azure: FakeAzure) -> None:
    azure.set(events=[event("Reboot", 900)])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("azure"))
        azure.set(events=[event("Reboot", None, EventStatus="Started")])
        await sink.wait_until(sink.notices)

    assert run_source(source(azure, booted=datetime.now(UTC) - timedelta(minutes=5)), scenario).notices()


@pytest.mark.parametrize(
    ("kind", "treatment", "expected"),
    [
        ("Preempt", "hint", "hint"),
        ("Preempt", "ignore", None),
        ("Freeze", "ignore", None),
        ("Freeze", "notice", "notice"),
        ("Invented", "ignore", None),
    ],
)
def test_the_treatment_of_an_event_is_configurable(
    azure: FakeAzure, kind: str, treatment: str, expected: str | None
) -> None:
    name = kind.lower() if kind != "Invented" else "other"
    signals = msgspec.convert({name: treatment}, AzureSignals)
    azure.set(events=[event(kind, 20)])

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: "azure" in sink.signals)

    latest = run_source(source(azure, signals=signals), scenario).latest("azure") or ()
    assert [signal_.kind for signal_ in latest] == ([expected] if expected else [])


def acknowledged(azure: FakeAzure, *, acknowledge: bool = True) -> list[str]:
    source_ = source(azure, acknowledge=acknowledge)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: "azure" in sink.signals)
        await source_.released()
        await source_.released()

    run_source(source_, scenario)
    return azure.acknowledged


def test_an_event_of_a_user_is_acknowledged_once_if_enabled(azure: FakeAzure) -> None:
    azure.set(events=[event("Reboot", 900, EventSource="User", EventId="u1")])
    assert acknowledged(azure) == ["u1"]
    (sent,) = [request for request in azure.requests if request.method == "POST"]
    assert (sent.headers["content-type"], sent.headers["metadata"]) == ("application/json", "true")


def test_a_canceled_event_that_returns_is_acknowledged_again(azure: FakeAzure) -> None:
    """Without an acknowledgement Azure delays the event for its whole notice period."""
    source_ = source(azure, acknowledge=True)

    def has_acknowledged(times: int) -> bool:
        return len(azure.acknowledged) == times

    async def scenario(sink: RecordingSink) -> None:
        for times in (1, 2):
            azure.set(events=[event("Reboot", 900, EventSource="User", EventId="u1")])
            await sink.wait_until(lambda: sink.latest("azure"))
            await source_.released()
            await sink.wait_until(partial(has_acknowledged, times))
            azure.set(events=[])
            await sink.wait_until(lambda: sink.latest("azure") == ())

    run_source(source_, scenario)
    assert azure.acknowledged == ["u1", "u1"]


@pytest.mark.parametrize(
    "fields",
    [
        {"EventSource": "Platform"},
        {"EventSource": "User", "EventType": "Preempt"},
        {"EventSource": "User", "Resources": ["vmss_0", "vmss_1"]},
        {"EventSource": "User", "EventStatus": "Started"},
    ],
)
def test_other_events_are_never_acknowledged(azure: FakeAzure, fields: dict[str, Any]) -> None:
    azure.set(events=[event("Reboot", 900, **fields)])
    assert acknowledged(azure) == []


def test_nothing_is_acknowledged_by_default(azure: FakeAzure) -> None:
    azure.set(events=[event("Reboot", 900, EventSource="User")])
    assert acknowledged(azure, acknowledge=False) == []

"""Azure, against a service that tells a whole set of VMs about each other."""

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
from dra_agent.reclaim.signals.http import Response
from reclaim.metadata.azure import FakeAzure
from reclaim.recording_sink import Listener, is_due, listen, quick

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
        pace=quick,
        booted=booted,
    )


def event(kind: str = "Preempt", seconds: float | None = 30, **others: Any) -> dict[str, Any]:
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
        **others,
    }


def left(deadline: datetime | None) -> float:
    assert deadline is not None
    return (deadline - datetime.now(UTC)).total_seconds()


def heard_of(azure: FakeAzure, *events: dict[str, Any]) -> Listener:
    azure.set(events=list(events))

    async def story(listener: Listener) -> None:
        await listener.until(lambda: "azure" in listener.seen_)

    return listen(source(azure), story)


def test_a_preemption_of_this_vm_is_a_notice(azure: FakeAzure) -> None:
    began = datetime.now(UTC)
    (reading,) = heard_of(azure, event()).now("azure") or ()
    assert reading.kind == "notice" and is_due(reading.deadline, 30, began)
    assert reading.event == "f020ba2e-3bc0-4c40-a10b-86575a9eabd5"


def test_an_event_for_another_vm_is_none_of_ours(azure: FakeAzure) -> None:
    heard = heard_of(azure, event(Resources=["vmss_1", "vmss_00"]), event("Reboot", Resources=[]))
    assert heard.now("azure") == () and not heard.failures


def test_names_of_vms_differ_by_more_than_case(azure: FakeAzure) -> None:
    assert heard_of(azure, event(Resources=["VMSS_0"])).notices()


def test_a_damaged_event_of_another_vm_takes_nothing_away(azure: FakeAzure) -> None:
    odd: list[Any] = [
        {"Resources": ["vmss_1"]},
        {"EventId": 7},
        "text",
        None,
        {"Resources": "vmss_0"},
        {"Resources": [3]},
    ]
    heard = heard_of(azure, *odd, event())
    assert len(heard.notices()) >= 1 and not heard.failures


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
def test_what_kind_an_event_is(
    azure: FakeAzure, kind: str, seconds: float | None, status: str, expected: str | None
) -> None:
    readings = heard_of(azure, event(kind, seconds, EventStatus=status)).now("azure") or ()
    assert [reading.kind for reading in readings] == ([expected] if expected else [])


def test_an_event_that_is_called_off_is_no_longer_said(azure: FakeAzure) -> None:
    azure.set(events=[event()])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("azure"))
        azure.set(events=[])
        await listener.until(lambda: listener.now("azure") == ())

    assert not any(reading.sticky for reading in listen(source(azure), story).notices())


def test_a_deadline_that_is_not_told_stays_where_it_was_first_seen(azure: FakeAzure) -> None:
    began = datetime.now(UTC)
    azure.set(events=[event("Preempt", None)])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: len(listener.seen_.get("azure", [])) > 4)

    deadlines = {reading.deadline for reading in listen(source(azure), story).notices()}
    assert len(deadlines) == 1 and is_due(deadlines.pop(), 30, began)


@pytest.mark.parametrize(
    ("what", "seconds"), [("Preempt", 30), ("Terminate", 300), ("Reboot", 900), ("Redeploy", 600), ("Freeze", None)]
)
def test_without_a_time_the_shortest_warning_that_azure_gives_counts(
    azure: FakeAzure, what: str, seconds: float | None
) -> None:
    (reading,) = heard_of(azure, event(what, None)).now("azure") or ()
    assert reading.deadline is None if seconds is None else seconds - 60 < left(reading.deadline) <= seconds


def test_the_name_of_the_vm_can_be_given(azure: FakeAzure) -> None:
    azure.set(events=[event(Resources=["other"])])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("azure"))

    listen(source(azure, vm="other"), story)
    assert azure.count("/metadata/instance") == 0


NONSENSE = [
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


@pytest.mark.parametrize("fault", NONSENSE, ids=lambda fault: str(fault)[:60])
def test_what_is_no_answer_is_unknown_and_never_a_notice(azure: FakeAzure, fault: dict[str, object]) -> None:
    azure.fail(EVENTS, times=2, **fault)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("azure") == ())

    heard = listen(source(azure), story)
    assert heard.failures and not heard.notices()


@pytest.mark.parametrize("name", ["", "<html>", "a\nb", "x" * 300])
def test_a_name_that_is_none_makes_no_event_ours(azure: FakeAzure, name: str) -> None:
    azure.fail("/metadata/instance", status=200, body=name, times=1)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("azure") == ())

    assert listen(source(azure), story).failures


def test_the_longest_name_of_a_vm_is_one(azure: FakeAzure) -> None:
    name = "x" * 200
    azure.set(vm=name)
    assert heard_of(azure, event(Resources=[name])).notices()


class Unanswering:
    """Notes what is asked and for how long, and answers only the questions that it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.answers: list[str | None] = []

    async def request(self, target: str, *, timeout_s: float, **how: Any) -> Response:
        self.asked.append((target, timeout_s))
        body = self.answers.pop(0)
        if body is None:
            raise SourceError("no answer")
        return Response(200, {}, body.encode(), datetime.now(UTC))

    def close(self) -> None:
        pass


def test_the_first_list_of_events_may_take_minutes_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.signals.azure.REQUEST_TIMEOUT_S", 5.0)
    monkeypatch.setattr("dra_agent.reclaim.signals.azure.FIRST_REQUEST_TIMEOUT_S", 125.0)
    service, azure = Unanswering(), AzureSource(NOWHERE, vm="", lead=timedelta(seconds=300), acknowledge=False)
    azure._service = service  # type: ignore[assignment]
    no_events = '{"Events": []}'
    service.answers = [None, "vmss_0", None, None, no_events, None, no_events]

    async def looks() -> None:
        for _ in range(6):
            with contextlib.suppress(SourceError):
                await azure.poll()

    asyncio.run(looks())
    # The VM's name is asked first, by default; the service of events is switched on by the question for them.
    assert service.asked == [(VM_NAME, 5.0)] * 2 + [(ASK_EVENTS, 125.0)] * 3 + [(ASK_EVENTS, 5.0)] * 2


def test_an_event_of_before_the_boot_is_over(azure: FakeAzure) -> None:
    azure.set(events=[event("Reboot", -3600), event("Preempt", -3600, EventId="2")])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: "azure" in listener.seen_)

    booted = datetime.now(UTC) - timedelta(minutes=30)
    assert listen(source(azure, booted=booted), story).now("azure") == ()
    assert listen(source(azure), story).notices()


@pytest.mark.parametrize("what", ["Reboot", "Redeploy"])
@pytest.mark.parametrize(("minutes", "kind"), [(5, "hint"), (60, "notice")])
def test_a_reboot_that_goes_on_after_a_boot_was_that_boot(
    azure: FakeAzure, minutes: float, kind: str, what: str
) -> None:
    """Started comes without NotBefore: whether it is over is told by how long ago the host booted."""
    azure.set(events=[event(what, None, EventStatus="Started")])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: "azure" in listener.seen_)

    booted = datetime.now(UTC) - timedelta(minutes=minutes)
    assert [one.kind for one in listen(source(azure, booted=booted), story).now("azure") or ()] == [kind]


def test_a_reboot_that_was_scheduled_in_this_boot_is_a_notice_when_it_starts(azure: FakeAzure) -> None:
    azure.set(events=[event("Reboot", 900)])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("azure"))
        azure.set(events=[event("Reboot", None, EventStatus="Started")])
        await listener.until(listener.notices)

    assert listen(source(azure, booted=datetime.now(UTC) - timedelta(minutes=5)), story).notices()


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
def test_what_an_event_counts_as_is_configured(
    azure: FakeAzure, kind: str, treatment: str, expected: str | None
) -> None:
    name = kind.lower() if kind != "Invented" else "other"
    signals = msgspec.convert({name: treatment}, AzureSignals)
    azure.set(events=[event(kind, 20)])

    async def story(listener: Listener) -> None:
        await listener.until(lambda: "azure" in listener.seen_)

    readings = listen(source(azure, signals=signals), story).now("azure") or ()
    assert [one.kind for one in readings] == ([expected] if expected else [])


def acknowledged(azure: FakeAzure, *, acknowledge: bool = True) -> list[str]:
    src = source(azure, acknowledge=acknowledge)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: "azure" in listener.seen_)
        await src.released()
        await src.released()
        await asyncio.sleep(0.05)

    listen(src, story)
    return azure.acknowledged


def test_what_a_user_asked_for_is_acknowledged_once_if_configured(azure: FakeAzure) -> None:
    azure.set(events=[event("Reboot", 900, EventSource="User", EventId="u1")])
    assert acknowledged(azure) == ["u1"]


def test_an_event_that_comes_again_after_it_was_called_off_is_acknowledged_again(azure: FakeAzure) -> None:
    """Azure holds it up for its whole time otherwise."""
    src = source(azure, acknowledge=True)

    def acknowledged_times(times: int) -> bool:
        return len(azure.acknowledged) == times

    async def story(listener: Listener) -> None:
        for times in (1, 2):
            azure.set(events=[event("Reboot", 900, EventSource="User", EventId="u1")])
            await listener.until(lambda: listener.now("azure"))
            await src.released()
            await listener.until(partial(acknowledged_times, times))
            azure.set(events=[])
            await listener.until(lambda: listener.now("azure") == ())

    listen(src, story)
    assert azure.acknowledged == ["u1", "u1"]


@pytest.mark.parametrize(
    "others",
    [
        {"EventSource": "Platform"},
        {"EventSource": "User", "EventType": "Preempt"},
        {"EventSource": "User", "Resources": ["vmss_0", "vmss_1"]},
        {"EventSource": "User", "EventStatus": "Started"},
    ],
)
def test_what_is_not_the_users_or_not_ours_alone_is_never_acknowledged(
    azure: FakeAzure, others: dict[str, Any]
) -> None:
    azure.set(events=[event("Reboot", 900, **others)])
    assert acknowledged(azure) == []


def test_nothing_is_acknowledged_unless_configured(azure: FakeAzure) -> None:
    azure.set(events=[event("Reboot", 900, EventSource="User")])
    assert acknowledged(azure, acknowledge=False) == []

"""Sources, state, disk, socket and command line together, in one process without an agent."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra_agent.clock import STEADY
from dra_agent.errors import RetryableError
from dra_agent.reclaim.control import (
    SOCKET,
    Cancel,
    ReclaimControlServer,
    Request,
    Start,
    Status,
    decode_request,
    send_request,
)
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.signal import Signal, SignalSink, SignalSource
from dra_agent.reclaim.signals.aws import AwsSource
from dra_agent.reclaim.signals.azure import AzureSource
from dra_agent.reclaim.state import ReclaimState
from eventually import DEADLINE_S, eventually_async
from fake_clock import FakeTime
from reclaim.metadata.aws import FakeAws
from reclaim.metadata.azure import FakeAzure
from reclaim.recording_sink import fast_schedule


class FakeSource:
    """A source whose signals the test sets."""

    def __init__(self, name: str = "puppet") -> None:
        self.names = (name,)
        self.sink: SignalSink | None = None
        self.release_count = 0
        self.error: Exception | None = None
        self.is_cancelled = False

    async def run(self, sink: SignalSink) -> None:
        self.sink = sink
        if self.error is not None:
            raise self.error
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise

    async def released(self) -> None:
        self.release_count += 1

    def report(self, *signals: Signal) -> None:
        assert self.sink is not None
        self.sink.observed(self.names[0], signals)

    def notice(self, seconds: float = 60, event: str = "e", sticky: bool = False) -> Signal:
        return self.notice_of(STEADY.now() + timedelta(seconds=seconds), event, sticky)

    def notice_of(self, deadline: datetime, event: str = "e", sticky: bool = False) -> Signal:
        return Signal(self.names[0], "notice", event, "w", deadline, sticky=sticky)


def run_bounded(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(run())


def in_phase(reclaim: ReclaimService, phase: str) -> bool:
    return reclaim.state.phase == phase


def holds(reclaim: ReclaimService, count: int) -> bool:
    return len(reclaim.state.active) == count


def watched(sources: Sequence[FakeSource]) -> bool:
    return all(source.sink for source in sources)


def test_a_notice_is_on_disk_before_listeners_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.service.SAVE_HEAD_START_S", DEADLINE_S)  # on a slow disk too

    async def scenario() -> None:
        source = FakeSource()
        reclaim = ReclaimService(tmp_path, "b", [source])
        changes: list[Any] = []

        async def on_change(before: ReclaimState, after: ReclaimState) -> None:
            changes.append((before.phase, after.phase, json.loads((tmp_path / "reclaim.json").read_text())["state"]))

        reclaim.on_change(on_change)
        await reclaim.start()
        await eventually_async(lambda: source.sink)
        source.report(source.notice())
        await eventually_async(lambda: changes)
        source.report()
        await eventually_async(lambda: len(changes) == 2)
        await reclaim.stop()
        assert [(before, after) for before, after, _ in changes] == [("none", "notice"), ("notice", "cancelled")]
        assert changes[0][2]["held"][0]["reading"]["event"] == "e" and changes[1][2]["held"] == []
        assert (reclaim.notices, reclaim.cancelled) == (1, 1)

    run_bounded(scenario)


def test_a_restart_continues_with_the_saved_state(tmp_path: Path) -> None:
    async def scenario() -> None:
        source = FakeSource()
        first = ReclaimService(tmp_path, "b", [source])
        await first.start()
        await eventually_async(lambda: source.sink)
        source.report(source.notice())
        await eventually_async(lambda: first.state.phase == "notice")
        await first.stop()

        restarted = FakeSource()
        second = ReclaimService(tmp_path, "b", [restarted])
        assert second.state == first.state
        await second.start()
        await eventually_async(lambda: restarted.sink)
        assert restarted.sink is not None
        restarted.sink.failed("puppet", "not ready yet")
        await eventually_async(lambda: [entry.up for entry in second.source_health()] == [False])
        assert second.state.phase == "notice"
        # The notice was canceled while the agent was not running: the first successful poll shows it.
        restarted.report()
        await eventually_async(lambda: in_phase(second, "cancelled"))
        await second.stop()
        assert ReclaimService(tmp_path, "another boot", [restarted]).state == ReclaimState("another boot")

    run_bounded(scenario)


def test_a_notice_of_a_removed_source_is_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        source = FakeSource()
        reclaim = ReclaimService(tmp_path, "b", [source])
        await reclaim.start()
        await eventually_async(lambda: source.sink)
        source.report(source.notice())
        await reclaim.begin("notice", deadline=None, description="mine")
        await eventually_async(lambda: len(reclaim.state.active) == 2)
        await reclaim.stop()
        without_source = ReclaimService(tmp_path, "b", [])
        await without_source.start()
        await without_source.stop()
        assert [active.signal.source for active in without_source.state.active] == ["operator"]

    run_bounded(scenario)


def test_replaced_sources_take_over_as_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept, removed = FakeSource("kept"), FakeSource("removed")
        reclaim = ReclaimService(tmp_path, "b", [kept, removed])
        phases: list[tuple[str, int]] = []

        async def on_change(before: ReclaimState, after: ReclaimState) -> None:
            phases.append((after.phase, len(after.active)))

        reclaim.on_change(on_change)
        await reclaim.start()
        await eventually_async(lambda: watched([kept, removed]))
        notice = kept.notice()
        kept.report(notice)
        removed.report(removed.notice(seconds=90))
        await eventually_async(lambda: holds(reclaim, 2))
        successor, added = FakeSource("kept"), FakeSource("added")
        await reclaim.replace_sources([successor, added])
        assert in_phase(reclaim, "notice") and [active.signal for active in reclaim.state.active] == [notice]
        assert [health.source for health in reclaim.source_health()] == ["kept", "added"]
        await eventually_async(lambda: watched([successor, added]))
        assert kept.is_cancelled and removed.is_cancelled
        before = list(phases)
        successor.report(notice)
        added.report(added.notice(seconds=30))
        await eventually_async(lambda: holds(reclaim, 2))
        # Listeners are called after the state has changed; the notice that stayed is not announced again.
        await eventually_async(lambda: phases == [*before, ("notice", 2)])
        successor.report()
        added.report()
        await eventually_async(lambda: in_phase(reclaim, "cancelled"))
        assert (reclaim.notices, reclaim.cancelled) == (1, 1)
        await reclaim.begin("notice", deadline=None, description="maintenance")
        await reclaim.replace_sources([])
        assert in_phase(reclaim, "notice"), "an operator's notice does not depend on sources"
        await reclaim.stop()
        assert successor.is_cancelled and added.is_cancelled

    run_bounded(scenario)


def blocked_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Block fsync until the returned event is set."""
    fsync_, may_sync = os.fsync, threading.Event()

    def fsync(handle: int) -> None:
        may_sync.wait(DEADLINE_S)
        fsync_(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return may_sync


def test_a_slow_disk_does_not_delay_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dra_agent.reclaim.service.SAVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr("dra_agent.reclaim.service.OPERATOR_SAVE_TIMEOUT_S", 0.05)
    disk = blocked_disk(monkeypatch)

    async def scenario() -> None:
        reclaim = ReclaimService(tmp_path, "b", [])
        phases: list[str] = []

        async def sink(before: ReclaimState, after: ReclaimState) -> None:
            phases.append(after.phase)

        reclaim.on_change(sink)
        await reclaim.start()
        try:
            await reclaim.begin("notice", deadline=None, description="")
            assert phases == ["notice"] and not disk.is_set()
            assert "has not written it yet" in reclaim.unsaved
        finally:
            disk.set()
        await reclaim.stop()

    run_bounded(scenario)
    assert any("before it is on disk" in record.message for record in caplog.records)


def test_only_the_caller_waits_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = blocked_disk(monkeypatch)

    async def scenario() -> None:
        reclaim = ReclaimService(tmp_path, "b", [])
        exists: list[bool] = []

        async def sink(before: ReclaimState, after: ReclaimState) -> None:
            exists.append((tmp_path / "reclaim.json").exists())
            disk.set()

        reclaim.on_change(sink)
        await reclaim.start()
        await reclaim.begin("notice", deadline=None, description="")
        assert exists == [False] and (tmp_path / "reclaim.json").exists() and not reclaim.unsaved
        await reclaim.stop()

    run_bounded(scenario)
    assert not [record for record in caplog.records if "disk" in record.message]


def test_a_failing_listener_or_source_does_not_affect_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        failing, source = FakeSource("broken"), FakeSource()
        failing.error = RuntimeError("a defect")
        reclaim = ReclaimService(tmp_path, "b", [failing, source])
        phases: list[str] = []

        async def fail(before: ReclaimState, after: ReclaimState) -> None:
            raise RuntimeError("another defect")

        async def record(before: ReclaimState, after: ReclaimState) -> None:
            phases.append(after.phase)

        reclaim.on_change(fail)
        reclaim.on_change(record)
        await reclaim.start()
        await eventually_async(lambda: source.sink)
        source.report(source.notice())
        await eventually_async(lambda: phases == ["notice"])
        await reclaim.released()
        assert source.release_count == 1
        health = {entry_.source: entry_ for entry_ in reclaim.source_health()}
        assert health["broken"].up is False and "a defect" in health["broken"].why and health["puppet"].up
        await reclaim.stop()

    run_bounded(scenario)


def test_a_sticky_notice_of_a_silent_source_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.state.STICKY_GRACE", timedelta(seconds=0.1))

    changes: list[tuple[str, datetime]] = []

    async def sink(before: ReclaimState, after: ReclaimState) -> None:
        changes.append((after.phase, STEADY.now()))

    async def scenario() -> None:
        source = FakeSource()
        reclaim = ReclaimService(tmp_path, "b", [source])
        reclaim.on_change(sink)
        await reclaim.start()
        await eventually_async(lambda: source.sink)
        sent = source.notice(0.3, sticky=True)
        source.report(sent)
        await eventually_async(lambda: changes)
        source.report()
        await eventually_async(lambda: changes[-1][0] == "cancelled")
        await reclaim.stop()
        assert sent.deadline is not None
        for phase, when in changes:
            assert phase == "notice" or when >= sent.deadline + timedelta(seconds=0.1)

    run_bounded(scenario)


@pytest.mark.parametrize("step", [-8 * 3600.0, 8 * 3600.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_wall_clock_step_neither_extends_nor_shortens_a_notice(tmp_path: Path, step: float, restarted: bool) -> None:
    time = FakeTime()

    async def scenario() -> None:
        source = FakeSource()
        reclaim = ReclaimService(tmp_path, "b", [source], clock=(clock := time.clock()))
        await reclaim.start()
        await eventually_async(lambda: source.sink)
        sticky_notice = Signal("puppet", "notice", "e", "w", clock.now() + timedelta(seconds=120), sticky=True)
        source.report(sticky_notice)
        await eventually_async(lambda: reclaim.state.phase == "notice")
        source.report()  # silent from now on: the notice ends 60 s after its deadline
        await eventually_async(lambda: reclaim.state.active[0].silent_since)
        time.step_wall(step)
        if restarted:
            await reclaim.stop()
            source = FakeSource()
            reclaim = ReclaimService(tmp_path, "b", [source], clock=(clock := time.clock()))
            await reclaim.start()
            await eventually_async(lambda: source.sink)
        assert reclaim.state.deadline is not None
        assert (reclaim.state.deadline - clock.now()).total_seconds() == pytest.approx(120, abs=1)
        time.pass_(175.0)
        source.report(Signal("puppet", "hint", "woken", "w"))
        await eventually_async(lambda: len(reclaim.state.active) == 2)
        assert reclaim.state.phase == "notice"
        time.pass_(10.0)
        source.report(Signal("puppet", "hint", "again", "w"))
        await eventually_async(lambda: in_phase(reclaim, "hint"))
        await reclaim.stop()

    run_bounded(scenario)


def test_disagreeing_sources_are_logged_and_the_earliest_counts(
    tmp_path: Path, aws: FakeAws, azure: FakeAzure, caplog: pytest.LogCaptureFixture
) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
    late = (datetime.now(UTC) + timedelta(seconds=100)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    aws.set(spot={"action": "terminate", "time": soon})
    event = {"EventId": "1", "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": ["vmss_0"]}
    azure.set(events=[{**event, "NotBefore": late}])

    async def scenario() -> None:
        lead = timedelta(seconds=300)
        sources: list[SignalSource] = [
            AzureSource(azure.endpoint, vm="", lead=lead, acknowledge=False, make_schedule=fast_schedule),
            AwsSource(aws.endpoint, lead=lead, make_schedule=fast_schedule),
        ]
        reclaim = ReclaimService(tmp_path, "b", sources)
        await reclaim.start()
        await eventually_async(lambda: len(reclaim.state.active) == 2)
        await eventually_async(lambda: any("disagree" in record.message for record in caplog.records))
        polls = {service: len(service.requests) for service in (aws, azure)}
        await eventually_async(lambda: all(len(service.requests) > polls[service] + 4 for service in polls))
        await reclaim.stop()
        assert reclaim.state.cause is not None and reclaim.state.cause.source == "aws.spot"

    run_bounded(scenario)
    notices = [record for record in caplog.records if record.message == "reclaim notice received"]
    disagreements = [record for record in caplog.records if "disagree" in record.message]
    assert len(notices) == 2 and len(disagreements) == 1


@pytest.mark.parametrize(("seconds", "expected"), [((60, 70), 1), ((70, 60), 1), ((60, 64), 0), ((60, 60), 0)])
def test_deadlines_that_differ_by_seconds_are_a_disagreement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seconds: tuple[float, float], expected: int
) -> None:
    async def scenario() -> None:
        sources = [FakeSource("one"), FakeSource("two")]
        reclaim = ReclaimService(tmp_path, "b", sources)
        await reclaim.start()
        await eventually_async(lambda: all(source.sink for source in sources))
        now = STEADY.now()
        expected = [
            source.notice_of(now + timedelta(seconds=remaining))
            for source, remaining in zip(sources, seconds, strict=True)
        ]
        for number, source in enumerate(sources):
            source.report(expected[number])
            await eventually_async(partial(holds, reclaim, number + 1))
        # A hint does not count.
        hint = Signal("two", "hint", "other", "w", datetime.now(UTC) + timedelta(hours=1))
        sources[1].report(expected[1], hint)
        await eventually_async(lambda: len(reclaim.state.active) == 3)
        await reclaim.stop()

    run_bounded(scenario)
    disagreements = [record for record in caplog.records if "sources disagree" in record.message]
    assert len(disagreements) == expected
    for record in disagreements:
        assert [text.partition("=")[0] for text in record.__dict__["sources"]] == ["one", "two"]


def test_a_source_recalls_only_its_own_signals(tmp_path: Path) -> None:
    recalled: dict[str, list[str]] = {}

    class RecallingSource(FakeSource):
        def recall(self, signals: Sequence[Signal]) -> None:
            recalled[self.names[0]] = [signal.source for signal in signals]

    async def scenario() -> None:
        for first in (True, False):
            sources = [RecallingSource("one"), RecallingSource("two")]
            reclaim = ReclaimService(tmp_path, "b", sources)
            await reclaim.start()
            await eventually_async(partial(watched, sources))
            if first:
                for source in sources:
                    source.report(source.notice())
                await eventually_async(partial(holds, reclaim, 2))
            await reclaim.stop()

    run_bounded(scenario)
    assert recalled == {"one": ["one"], "two": ["two"]}


def test_an_event_handled_before_a_reboot_is_not_handled_again(tmp_path: Path) -> None:
    """Metadata services still list an event after the reboot that it announced."""

    def value_signal() -> Signal:
        return Signal("puppet", "notice", "TRUE", "w", once="word")

    def event_signal() -> Signal:
        return Signal("puppet", "notice", "id-1", "w", once="id")

    async def run_boot(name: str, scenario: Callable[[ReclaimService, FakeSource], Awaitable[None]]) -> None:
        source = FakeSource()
        reclaim = ReclaimService(tmp_path, name, [source])
        await reclaim.start()
        await eventually_async(lambda: source.sink)
        await scenario(reclaim, source)
        await reclaim.stop()

    async def first(reclaim: ReclaimService, source: FakeSource) -> None:
        source.report(value_signal(), event_signal())
        await eventually_async(lambda: len(reclaim.state.active) == 2)

    async def second(reclaim: ReclaimService, source: FakeSource) -> None:
        source.report(value_signal(), event_signal())
        source.report(value_signal(), event_signal(), Signal("puppet", "hint", "other", "w"))
        await eventually_async(lambda: reclaim.state.active)
        assert reclaim.state.phase == "hint" and reclaim.notices == 0

    async def third(reclaim: ReclaimService, source: FakeSource) -> None:
        source.report(event_signal())  # the first successful poll without the value releases it
        await eventually_async(lambda: all(past.once == "id" for past in reclaim.state.past))
        source.report(value_signal(), event_signal())
        await eventually_async(lambda: reclaim.state.phase == "notice")
        assert [active.signal.event for active in reclaim.state.active] == ["TRUE"]

    async def scenario() -> None:
        await run_boot("boot-1", first)
        await run_boot("boot-2", second)
        await run_boot("boot-3", third)

    run_bounded(scenario)


async def send_control(folder: Path, request: Request) -> Any:
    return await asyncio.to_thread(send_request, folder, request)


def run_with_control(tmp_path: Path, scenario: Callable[[ReclaimService, FakeSource], Awaitable[None]]) -> None:
    async def main() -> None:
        source = FakeSource()
        clock = FakeTime().clock()
        reclaim = ReclaimService(tmp_path, "b", [source], clock=clock)
        control = ReclaimControlServer(tmp_path / SOCKET, reclaim, now=clock.now)
        await reclaim.start()
        await control.start()
        await eventually_async(lambda: source.sink)
        try:
            await scenario(reclaim, source)
        finally:
            await control.stop()
            await reclaim.stop()
        assert not (tmp_path / SOCKET).exists()

    run_bounded(main)


def test_an_operator_starts_inspects_and_cancels_a_reclaim(tmp_path: Path) -> None:
    async def scenario(reclaim: ReclaimService, source: FakeSource) -> None:
        assert (tmp_path / SOCKET).stat().st_mode & 0o777 == 0o600
        status = await send_control(tmp_path, Start("notice", 30.0, "rack 7\nis moved"))
        assert status["phase"] == "notice" and status["seconds_left"] == 30
        assert not status["complete"] and status["claims"] == [], "nothing drains the host here"
        assert status["events"][0]["what"] == "rack 7?is moved"
        assert json.loads((tmp_path / "reclaim.json").read_text())["state"]["noticed"]
        earlier = await send_control(tmp_path, Start("notice", 3600.0))
        assert earlier["deadline"] == status["deadline"]
        assert (await send_control(tmp_path, Cancel()))["phase"] == "cancelled"
        assert (await send_control(tmp_path, Start("hint")))["phase"] == "hint"
        assert (await send_control(tmp_path, Status()))["sources"][0]["source"] == "puppet"

    run_with_control(tmp_path, scenario)


def test_a_cancel_keeps_other_notices_unless_it_is_for_all(tmp_path: Path) -> None:
    async def scenario(reclaim: ReclaimService, source: FakeSource) -> None:
        hint = Signal("puppet", "hint", "later", "w")
        source.report(source.notice())
        await eventually_async(lambda: reclaim.state.phase == "notice")
        await send_control(tmp_path, Start())
        assert (await send_control(tmp_path, Cancel()))["phase"] == "notice"
        assert (await send_control(tmp_path, Cancel(everything=True)))["phase"] == "cancelled"
        source.report(source.notice(30), hint)
        # Signals are applied in order.
        await eventually_async(lambda: reclaim.state.phase != "cancelled")
        assert reclaim.state.phase == "hint"
        assert (await send_control(tmp_path, Start()))["phase"] == "notice"

    run_with_control(tmp_path, scenario)


@pytest.mark.parametrize("seconds", [0.0, 7 * 86400.0])
def test_an_operator_can_give_any_time_within_a_week(seconds: float) -> None:
    assert decode_request(json.dumps({"op": "start", "seconds": seconds}).encode()) == Start(seconds=seconds)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b'{"op": "start", "kind": "clear"}\n',
        b'{"op": "start", "seconds": -1}\n',
        b'{"op": "start", "seconds": 604801}\n',
        b'{"op": "start", "seconds": 1e300}\n',
        b'{"op": "start", "seconds": "soon"}\n',
        b'{"op": "stop"}\n',
        b'{"op": "cancel", "all": true}\n',
        b"\xff\xff\n",
    ],
)
def test_a_malformed_request_is_refused_and_changes_nothing(tmp_path: Path, line: bytes) -> None:
    def send() -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / SOCKET))
            client.sendall(line)
            response: dict[str, Any] = json.loads(client.makefile("rb").readline())
            return response

    async def scenario(reclaim: ReclaimService, source: FakeSource) -> None:
        assert (await asyncio.to_thread(send))["failure"]["family"] == "usage"
        assert reclaim.state.phase == "none"

    run_with_control(tmp_path, scenario)


def test_without_an_agent_the_error_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match="dra-agent run"):
        send_request(tmp_path, Status())


def test_a_replaced_agent_leaves_socket_and_state_to_its_successor(tmp_path: Path) -> None:
    async def scenario() -> None:
        leader = "old"
        old_source = FakeSource()
        old = ReclaimService(tmp_path, "b", [old_source], is_newest=lambda: leader == "old")
        new = ReclaimService(tmp_path, "b", [], is_newest=lambda: leader == "new")
        first, second = ReclaimControlServer(tmp_path / SOCKET, old), ReclaimControlServer(tmp_path / SOCKET, new)
        await old.start()
        await first.start()
        await eventually_async(lambda: old_source.sink)
        leader = "new"
        await new.start()
        await second.start()
        assert (await send_control(tmp_path, Start()))["phase"] == "notice"
        assert in_phase(new, "notice") and in_phase(old, "none")
        saved = (tmp_path / "reclaim.json").read_text()
        old_source.report(old_source.notice())
        await eventually_async(lambda: old.state.phase == "notice")
        assert (tmp_path / "reclaim.json").read_text() == saved
        await first.stop()
        await old.stop()
        assert (await send_control(tmp_path, Status()))["phase"] == "notice"
        await second.stop()
        await new.stop()
        assert not (tmp_path / SOCKET).exists()

    run_bounded(scenario)

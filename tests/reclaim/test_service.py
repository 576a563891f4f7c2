"""Sources, state, disk, socket and command line together, in one process without an agent around them."""

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
from reclaim.recording_sink import quick


class Puppet:
    """A source that says what the test wants."""

    def __init__(self, name: str = "puppet") -> None:
        self.names = (name,)
        self.watch: SignalSink | None = None
        self.released_ = 0
        self.error: Exception | None = None

    async def run(self, watch: SignalSink) -> None:
        self.watch = watch
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def released(self) -> None:
        self.released_ += 1

    def say(self, *readings: Signal) -> None:
        assert self.watch is not None
        self.watch.observed(self.names[0], readings)

    def notice(self, seconds: float = 60, event: str = "e", lasting: bool = False) -> Signal:
        return self.notice_of(STEADY.now() + timedelta(seconds=seconds), event, lasting)

    def notice_of(self, deadline: datetime, event: str = "e", lasting: bool = False) -> Signal:
        return Signal(self.names[0], "notice", event, "w", deadline, sticky=lasting)


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


def in_phase(reclaim: ReclaimService, phase: str) -> bool:
    return reclaim.state.phase == phase


def holds(reclaim: ReclaimService, count: int) -> bool:
    return len(reclaim.state.active) == count


def watched(puppets: Sequence[Puppet]) -> bool:
    return all(puppet.watch for puppet in puppets)


def test_a_notice_is_on_disk_before_anybody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dra_agent.reclaim.service.SAVE_HEAD_START_S", DEADLINE_S
    )  # the disk may be as busy as it likes

    async def story() -> None:
        puppet = Puppet()
        reclaim = ReclaimService(tmp_path, "b", [puppet])
        kept: list[Any] = []

        async def told(before: ReclaimState, after: ReclaimState) -> None:
            kept.append((before.phase, after.phase, json.loads((tmp_path / "reclaim.json").read_text())["state"]))

        reclaim.on_change(told)
        await reclaim.start()
        await eventually_async(lambda: puppet.watch)
        puppet.say(puppet.notice())
        await eventually_async(lambda: kept)
        puppet.say()
        await eventually_async(lambda: len(kept) == 2)
        await reclaim.stop()
        assert [(before, after) for before, after, _ in kept] == [("none", "notice"), ("notice", "cancelled")]
        assert kept[0][2]["held"][0]["reading"]["event"] == "e" and kept[1][2]["held"] == []
        assert (reclaim.notices, reclaim.cancelled) == (1, 1)

    play(story)


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        puppet = Puppet()
        first = ReclaimService(tmp_path, "b", [puppet])
        await first.start()
        await eventually_async(lambda: puppet.watch)
        puppet.say(puppet.notice())
        await eventually_async(lambda: first.state.phase == "notice")
        await first.stop()

        again = Puppet()
        second = ReclaimService(tmp_path, "b", [again])
        assert second.state == first.state
        await second.start()
        await eventually_async(lambda: again.watch)
        assert again.watch is not None
        again.watch.failed("puppet", "not yet there")
        await asyncio.sleep(0.02)
        assert second.state.phase == "notice"
        # It was taken back while the agent was away: the first good look says so.
        again.say()
        await eventually_async(lambda: in_phase(second, "cancelled"))
        await second.stop()
        assert ReclaimService(tmp_path, "another boot", [again]).state == ReclaimState("another boot")

    play(story)


def test_a_source_that_is_no_longer_there_is_believed_no_longer(tmp_path: Path) -> None:
    async def story() -> None:
        puppet = Puppet()
        reclaim = ReclaimService(tmp_path, "b", [puppet])
        await reclaim.start()
        await eventually_async(lambda: puppet.watch)
        puppet.say(puppet.notice())
        await reclaim.begin("notice", deadline=None, what="mine")
        await eventually_async(lambda: len(reclaim.state.active) == 2)
        await reclaim.stop()
        left = ReclaimService(tmp_path, "b", [])
        await left.start()
        await left.stop()
        assert [held.signal.source for held in left.state.active] == ["operator"]

    play(story)


def blocked_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing reaches the disk until this is set."""
    real, free = os.fsync, threading.Event()

    def fsync(handle: int) -> None:
        free.wait(DEADLINE_S)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return free


def test_a_slow_disk_does_not_hold_up_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dra_agent.reclaim.service.SAVE_TIMEOUT_S", 0.05)
    disk = blocked_disk(monkeypatch)

    async def story() -> None:
        reclaim = ReclaimService(tmp_path, "b", [])
        told: list[str] = []

        async def listener(before: ReclaimState, after: ReclaimState) -> None:
            told.append(after.phase)

        reclaim.on_change(listener)
        await reclaim.start()
        try:
            await reclaim.begin("notice", deadline=None, what="")
            assert told == ["notice"] and not disk.is_set()
        finally:
            disk.set()
        await reclaim.stop()

    play(story)
    assert any("before it is on disk" in record.message for record in caplog.records)


def test_a_busy_disk_is_waited_for_by_who_asked_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = blocked_disk(monkeypatch)

    async def story() -> None:
        reclaim = ReclaimService(tmp_path, "b", [])
        there: list[bool] = []

        async def listener(before: ReclaimState, after: ReclaimState) -> None:
            there.append((tmp_path / "reclaim.json").exists())
            disk.set()

        reclaim.on_change(listener)
        await reclaim.start()
        await reclaim.begin("notice", deadline=None, what="")
        assert there == [False] and (tmp_path / "reclaim.json").exists()
        await reclaim.stop()

    play(story)
    assert not [record for record in caplog.records if "disk" in record.message]


def test_a_full_disk_does_not_hold_up_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    async def story() -> None:
        reclaim = ReclaimService(tmp_path, "b", [])
        await reclaim.start()
        await reclaim.begin("notice", deadline=None, what="")
        assert reclaim.state.phase == "notice"
        await reclaim.stop()

    play(story)
    assert any("No space left" in str(getattr(record, "reason", "")) for record in caplog.records)


def test_one_listener_and_one_source_that_fail_take_nobody_with_them(tmp_path: Path) -> None:
    async def story() -> None:
        broken, puppet = Puppet("broken"), Puppet()
        broken.error = RuntimeError("a defect")
        reclaim = ReclaimService(tmp_path, "b", [broken, puppet])
        told: list[str] = []

        async def fails(before: ReclaimState, after: ReclaimState) -> None:
            raise RuntimeError("another defect")

        async def works(before: ReclaimState, after: ReclaimState) -> None:
            told.append(after.phase)

        reclaim.on_change(fails)
        reclaim.on_change(works)
        await reclaim.start()
        await eventually_async(lambda: puppet.watch)
        puppet.say(puppet.notice())
        await eventually_async(lambda: told == ["notice"])
        await reclaim.released()
        assert puppet.released_ == 1
        source_health = {one.source: one for one in reclaim.source_health()}
        assert (
            source_health["broken"].up is False
            and "a defect" in source_health["broken"].why
            and source_health["puppet"].up
        )
        await reclaim.stop()

    play(story)


def test_a_lasting_notice_of_a_silent_source_runs_out_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.reclaim.state.GRACE_S", timedelta(seconds=0.1))

    told: list[tuple[str, datetime]] = []

    async def listener(before: ReclaimState, after: ReclaimState) -> None:
        told.append((after.phase, STEADY.now()))

    async def story() -> None:
        puppet = Puppet()
        reclaim = ReclaimService(tmp_path, "b", [puppet])
        reclaim.on_change(listener)
        await reclaim.start()
        await eventually_async(lambda: puppet.watch)
        said = puppet.notice(0.3, lasting=True)
        puppet.say(said)
        await eventually_async(lambda: told)
        puppet.say()
        await eventually_async(lambda: told[-1][0] == "cancelled")
        await reclaim.stop()
        assert said.deadline is not None
        for phase, when in told:
            assert phase == "notice" or when >= said.deadline + timedelta(seconds=0.1)

    play(story)


@pytest.mark.parametrize("step", [-8 * 3600.0, 8 * 3600.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_step_of_the_wall_clock_neither_prolongs_a_notice_nor_ends_it_early(
    tmp_path: Path, step: float, restarted: bool
) -> None:
    time = FakeTime()

    async def story() -> None:
        puppet = Puppet()
        reclaim = ReclaimService(tmp_path, "b", [puppet], clock=(clock := time.clock()))
        await reclaim.start()
        await eventually_async(lambda: puppet.watch)
        lasting = Signal("puppet", "notice", "e", "w", clock.now() + timedelta(seconds=120), sticky=True)
        puppet.say(lasting)
        await eventually_async(lambda: reclaim.state.phase == "notice")
        puppet.say()  # silent from now on: it ends 60 s after its deadline
        await eventually_async(lambda: reclaim.state.active[0].silent_since)
        time.step_wall(step)
        if restarted:
            await reclaim.stop()
            puppet = Puppet()
            reclaim = ReclaimService(tmp_path, "b", [puppet], clock=(clock := time.clock()))
            await reclaim.start()
            await eventually_async(lambda: puppet.watch)
        assert reclaim.state.deadline is not None
        assert (reclaim.state.deadline - clock.now()).total_seconds() == pytest.approx(120, abs=1)
        time.pass_(175.0)
        puppet.say(Signal("puppet", "hint", "woken", "w"))
        await eventually_async(lambda: len(reclaim.state.active) == 2)
        assert reclaim.state.phase == "notice"
        time.pass_(10.0)
        puppet.say(Signal("puppet", "hint", "again", "w"))
        await eventually_async(lambda: in_phase(reclaim, "hint"))
        await reclaim.stop()

    play(story)


def test_sources_that_disagree_are_logged_once_and_the_earliest_counts(
    tmp_path: Path, aws: FakeAws, azure: FakeAzure, caplog: pytest.LogCaptureFixture
) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
    late = (datetime.now(UTC) + timedelta(seconds=100)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    aws.set(spot={"action": "terminate", "time": soon})
    event = {"EventId": "1", "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": ["vmss_0"]}
    azure.set(events=[{**event, "NotBefore": late}])

    async def story() -> None:
        lead = timedelta(seconds=300)
        sources: list[SignalSource] = [
            AzureSource(azure.endpoint, vm="", lead=lead, acknowledge=False, pace=quick),
            AwsSource(aws.endpoint, lead=lead, pace=quick),
        ]
        reclaim = ReclaimService(tmp_path, "b", sources)
        await reclaim.start()
        await eventually_async(lambda: len(reclaim.state.active) == 2)
        await eventually_async(lambda: any("disagree" in record.message for record in caplog.records))
        await asyncio.sleep(0.2)
        await reclaim.stop()
        assert reclaim.state.cause is not None and reclaim.state.cause.source == "aws.spot"

    play(story)
    notices = [record for record in caplog.records if record.message == "reclaim notice received"]
    disagreements = [record for record in caplog.records if "disagree" in record.message]
    assert len(notices) == 2 and len(disagreements) == 1


@pytest.mark.parametrize(("seconds", "said"), [((60, 70), 1), ((70, 60), 1), ((60, 64), 0), ((60, 60), 0)])
def test_a_deadline_of_another_source_that_is_seconds_away_is_a_disagreement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seconds: tuple[float, float], said: int
) -> None:
    async def story() -> None:
        puppets = [Puppet("one"), Puppet("two")]
        reclaim = ReclaimService(tmp_path, "b", puppets)
        await reclaim.start()
        await eventually_async(lambda: all(puppet.watch for puppet in puppets))
        now = STEADY.now()
        said = [puppet.notice_of(now + timedelta(seconds=left)) for puppet, left in zip(puppets, seconds, strict=True)]
        for number, puppet in enumerate(puppets):
            puppet.say(said[number])
            await eventually_async(partial(holds, reclaim, number + 1))
        # A hint has no say in it.
        hint = Signal("two", "hint", "other", "w", datetime.now(UTC) + timedelta(hours=1))
        puppets[1].say(said[1], hint)
        await eventually_async(lambda: len(reclaim.state.active) == 3)
        await reclaim.stop()

    play(story)
    disagreements = [record for record in caplog.records if "sources disagree" in record.message]
    assert len(disagreements) == said
    for record in disagreements:
        assert [text.partition("=")[0] for text in record.__dict__["sources"]] == ["one", "two"]


def test_a_source_recalls_what_it_said_itself_and_nothing_else(tmp_path: Path) -> None:
    recalled: dict[str, list[str]] = {}

    class Recalling(Puppet):
        def recall(self, readings: Sequence[Signal]) -> None:
            recalled[self.names[0]] = [reading.source for reading in readings]

    async def story() -> None:
        for first in (True, False):
            puppets = [Recalling("one"), Recalling("two")]
            reclaim = ReclaimService(tmp_path, "b", puppets)
            await reclaim.start()
            await eventually_async(partial(watched, puppets))
            if first:
                for puppet in puppets:
                    puppet.say(puppet.notice())
                await eventually_async(partial(holds, reclaim, 2))
            await reclaim.stop()

    play(story)
    assert recalled == {"one": ["one"], "two": ["two"]}


def test_what_was_acted_on_before_a_reboot_of_the_host_is_not_acted_on_again(tmp_path: Path) -> None:
    """The services go on naming an event after the reboot that it announced."""

    def word() -> Signal:
        return Signal("puppet", "notice", "TRUE", "w", once="word")

    def named() -> Signal:
        return Signal("puppet", "notice", "id-1", "w", once="id")

    async def boot(name: str, story: Callable[[ReclaimService, Puppet], Awaitable[None]]) -> None:
        puppet = Puppet()
        reclaim = ReclaimService(tmp_path, name, [puppet])
        await reclaim.start()
        await eventually_async(lambda: puppet.watch)
        await story(reclaim, puppet)
        await reclaim.stop()

    async def first(reclaim: ReclaimService, puppet: Puppet) -> None:
        puppet.say(word(), named())
        await eventually_async(lambda: len(reclaim.state.active) == 2)

    async def second(reclaim: ReclaimService, puppet: Puppet) -> None:
        puppet.say(word(), named())
        puppet.say(word(), named(), Signal("puppet", "hint", "other", "w"))
        await eventually_async(lambda: reclaim.state.active)
        assert reclaim.state.phase == "hint" and reclaim.notices == 0

    async def third(reclaim: ReclaimService, puppet: Puppet) -> None:
        puppet.say(named())  # the word is free again, by the first good look
        await eventually_async(lambda: all(past.once == "id" for past in reclaim.state.past))
        puppet.say(word(), named())
        await eventually_async(lambda: reclaim.state.phase == "notice")
        assert [held.signal.event for held in reclaim.state.active] == ["TRUE"]

    async def story() -> None:
        await boot("boot-1", first)
        await boot("boot-2", second)
        await boot("boot-3", third)

    play(story)


async def asked(folder: Path, request: Request) -> Any:
    return await asyncio.to_thread(send_request, folder, request)


def with_trigger(tmp_path: Path, story: Callable[[ReclaimService, Puppet], Awaitable[None]]) -> None:
    async def inner() -> None:
        puppet = Puppet()
        clock = FakeTime().clock()
        reclaim = ReclaimService(tmp_path, "b", [puppet], clock=clock)
        trigger = ReclaimControlServer(tmp_path / SOCKET, reclaim, now=clock.now)
        await reclaim.start()
        await trigger.start()
        await eventually_async(lambda: puppet.watch)
        try:
            await story(reclaim, puppet)
        finally:
            await trigger.stop()
            await reclaim.stop()
        assert not (tmp_path / SOCKET).exists()

    play(inner)


def test_an_operator_starts_looks_and_cancels(tmp_path: Path) -> None:
    async def story(reclaim: ReclaimService, puppet: Puppet) -> None:
        assert (tmp_path / SOCKET).stat().st_mode & 0o777 == 0o600
        status = await asked(tmp_path, Start("notice", 30.0, "rack 7\nis moved"))
        assert status["phase"] == "notice" and status["seconds_left"] == 30
        assert status["events"][0]["what"] == "rack 7?is moved"
        assert json.loads((tmp_path / "reclaim.json").read_text())["state"]["noticed"]
        earlier = await asked(tmp_path, Start("notice", 3600.0))
        assert earlier["deadline"] == status["deadline"]
        assert (await asked(tmp_path, Cancel()))["phase"] == "cancelled"
        assert (await asked(tmp_path, Start("hint")))["phase"] == "hint"
        assert (await asked(tmp_path, Status()))["sources"][0]["source"] == "puppet"

    with_trigger(tmp_path, story)


def test_a_cancel_leaves_what_others_say_unless_it_is_for_all(tmp_path: Path) -> None:
    async def story(reclaim: ReclaimService, puppet: Puppet) -> None:
        said = puppet.notice()
        puppet.say(said)
        await eventually_async(lambda: reclaim.state.phase == "notice")
        await asked(tmp_path, Start())
        assert (await asked(tmp_path, Cancel()))["phase"] == "notice"
        assert (await asked(tmp_path, Cancel(everything=True)))["phase"] == "cancelled"
        puppet.say(said)
        await asyncio.sleep(0.05)
        assert reclaim.state.phase == "cancelled"
        assert (await asked(tmp_path, Start()))["phase"] == "notice"

    with_trigger(tmp_path, story)


@pytest.mark.parametrize("seconds", [0.0, 7 * 86400.0])
def test_an_operator_says_any_time_within_a_week(seconds: float) -> None:
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
def test_a_request_that_is_none_is_refused_and_changes_nothing(tmp_path: Path, line: bytes) -> None:
    def send() -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / SOCKET))
            client.sendall(line)
            answer: dict[str, Any] = json.loads(client.makefile("rb").readline())
            return answer

    async def story(reclaim: ReclaimService, puppet: Puppet) -> None:
        assert (await asyncio.to_thread(send))["failure"]["family"] == "usage"
        assert reclaim.state.phase == "none"

    with_trigger(tmp_path, story)


def test_no_agent_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match="dra-agent run"):
        send_request(tmp_path, Status())


def test_an_agent_that_is_replaced_leaves_socket_and_state_to_its_successor(tmp_path: Path) -> None:
    async def story() -> None:
        newest = "old"
        old = ReclaimService(tmp_path, "b", [], is_newest=lambda: newest == "old")
        new = ReclaimService(tmp_path, "b", [], is_newest=lambda: newest == "new")
        first, second = ReclaimControlServer(tmp_path / SOCKET, old), ReclaimControlServer(tmp_path / SOCKET, new)
        await old.start()
        await first.start()
        newest = "new"
        await new.start()
        await second.start()
        assert (await asked(tmp_path, Start()))["phase"] == "notice"
        assert new.state.phase == "notice" and old.state.phase == "none"
        kept = (tmp_path / "reclaim.json").read_text()
        await old.begin("hint", deadline=None, what="of the old one")
        assert (tmp_path / "reclaim.json").read_text() == kept
        await first.stop()
        await old.stop()
        assert (await asked(tmp_path, Status()))["phase"] == "notice"
        await second.stop()
        await new.stop()
        assert not (tmp_path / SOCKET).exists()

    play(story)

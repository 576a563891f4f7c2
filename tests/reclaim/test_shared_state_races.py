"""Two agents that save one reclaim state at the same time, on a disk that is slow."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import timedelta
from pathlib import Path, PosixPath
from typing import Any

import msgspec
import pytest

from dra_agent import atomic_file
from dra_agent.clock import STEADY
from dra_agent.deadline import Deadline
from dra_agent.device_setup.notice.document import FILE
from dra_agent.errors import RetryableError
from dra_agent.reclaim import state_file
from dra_agent.reclaim.runtime import ReclaimRuntime
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import ActiveSignal, ReclaimState, apply
from dra_agent.reclaim.state_file import STATE_FILE, OtherState, StateChangedError, StateFile
from eventually import DEADLINE_S, eventually_async
from reclaim.shared_state import BOOT, Agents, request, requested, run


class SlowReads:
    """Reads of the state wait between `hold` and `free`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = 0
        self._free = threading.Event()
        self._free.set()
        self._read = atomic_file.read
        monkeypatch.setattr(atomic_file, "read", self._wait)

    def hold(self) -> None:
        self._free.clear()

    def free(self) -> None:
        self._free.set()

    def _wait(self, path: Path, max_bytes: int) -> bytes:
        if path.name == STATE_FILE:
            self.waiting += 1
            self._free.wait(DEADLINE_S)
            self.waiting -= 1
        return self._read(path, max_bytes)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> SlowReads:
    return SlowReads(monkeypatch)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for no slow disk."""
    monkeypatch.setattr("dra_agent.reclaim.service.SAVE_TIMEOUT_S", 0.01)
    monkeypatch.setattr("dra_agent.reclaim.service.OPERATOR_SAVE_TIMEOUT_S", 0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("responds", ["before it is read", "after it is read"])
@pytest.mark.parametrize("later", ["", "repair"])
def test_the_later_request_counts_where_the_earlier_one_is_read_late(
    tmp_path: Path, reads: SlowReads, monkeypatch: pytest.MonkeyPatch, responds: str, later: str
) -> None:
    if responds == "after it is read":
        monkeypatch.setattr("dra_agent.reclaim.service.SAVE_TIMEOUT_S", DEADLINE_S)

    async def scenario(agents: Agents) -> None:
        old, new = await agents.start("old"), await agents.start("new")
        await request(old, "maintenance")
        await eventually_async(lambda: not old.unsaved)  # it has not waited for a slow disk
        reads.hold()
        following = asyncio.create_task(new.follow_other_agents())
        await eventually_async(lambda: reads.waiting)
        handling = asyncio.create_task(request(new, later) if later else new.cancel(everything=False))
        if responds == "before it is read":
            await handling
        else:
            await asyncio.sleep(0)
        reads.free()
        await asyncio.gather(following, handling)
        await eventually_async(lambda: not new.unsaved)
        await agents.follow()
        assert requested(agents.saved()) == requested(new.state) == requested(old.state) == later

    run(tmp_path, scenario)


def test_a_state_does_not_replace_a_request_that_is_being_read(
    tmp_path: Path, reads: SlowReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other agent would take it for a cancel."""
    written: list[bytes] = []
    write = atomic_file.write

    def record(path: Path, data: bytes, **options: Any) -> None:
        write(path, data, **options)
        written.append(path.read_bytes())

    monkeypatch.setattr(atomic_file, "write", record)

    async def scenario(agents: Agents) -> None:
        old, new = await agents.start("old"), await agents.start("new")
        await request(old, "maintenance")
        written.clear()
        reads.hold()
        following = asyncio.create_task(new.follow_other_agents())
        await eventually_async(lambda: reads.waiting)
        await agents.sources["new"].report("spot")
        await eventually_async(lambda: new.state.phase == "notice")
        reads.free()
        await following
        await eventually_async(lambda: len(agents.saved().active) == 2)
        assert all(b"maintenance" in data for data in written)

    run(tmp_path, scenario)


def test_a_state_that_was_read_before_another_one_was_accepted_is_refused(tmp_path: Path) -> None:
    """It would bring back the request that the saved state has cancelled meanwhile."""
    old, new = StateFile(tmp_path), StateFile(tmp_path)
    fresh = new.load(BOOT)
    signal = Signal("operator", "notice", "1", "maintenance")
    old.load(BOOT)
    old.save(apply(fresh, signal, STEADY.now()))
    found = new.changes(BOOT)
    assert found is not None
    first: OtherState = found

    class AcceptedWhileRead(PosixPath):
        calls = 0

        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            AcceptedWhileRead.calls += 1
            if AcceptedWhileRead.calls == 2:
                assert new.accept(first)
            return super().stat(follow_symlinks=follow_symlinks)

    new.path = AcceptedWhileRead(new.path)
    second = new.changes(BOOT)
    assert AcceptedWhileRead.calls >= 2
    assert second is not None and not new.accept(second)


@pytest.mark.parametrize("kind", ["hint", "notice"])
def test_a_request_in_place_of_a_cancelled_one_is_followed(tmp_path: Path, kind: str) -> None:
    """Both between two checks of the other agent: it never sees the state without one."""
    soon, late = (STEADY.now() + timedelta(minutes=minutes) for minutes in (5, 50))

    async def scenario(agents: Agents) -> None:
        old, new = await agents.start("old"), await agents.start("new")
        await new.begin("notice", deadline=soon, description="first")
        await agents.follow()
        began = old.state.noticed
        await new.cancel(everything=False)
        await new.begin(kind, deadline=late, description="second")
        await agents.follow()
        assert (old.state.phase, old.state.deadline) == (new.state.phase, new.state.deadline)
        assert requested(old.state) == "second"
        assert old.state.noticed == (began if kind == "notice" else None)

    run(tmp_path, scenario)


def test_an_event_that_the_newest_agent_saw_withdrawn_counts_again(tmp_path: Path) -> None:
    """The other one has dismissed it, and its source has not reported yet that it was withdrawn."""

    async def scenario(agents: Agents) -> None:
        for name in ("old", "new"):
            await agents.start(name)
            await agents.sources[name].report("spot")
        old, new = agents.running["old"], agents.running["new"]
        await eventually_async(lambda: old.state.active and new.state.active)
        await new.cancel(everything=True)
        await agents.follow()
        await agents.sources["new"].report()
        await eventually_async(lambda: not new.state.dismissed)
        await eventually_async(lambda: not agents.saved().dismissed)
        await old.begin("hint", deadline=None, description="another request")
        await agents.follow()
        await agents.sources["new"].report("spot")
        await eventually_async(lambda: new.state.phase == "notice")

    run(tmp_path, scenario)


def test_the_state_of_the_agent_that_remains_is_saved(tmp_path: Path) -> None:
    """The new agent had not the notice of the other one's source, and has saved that."""

    async def scenario(agents: Agents) -> None:
        old = await agents.start("old")
        await agents.sources["old"].report("spot")
        await eventually_async(lambda: old.state.phase == "notice")
        new = await agents.start("new")
        await agents.sources["new"].report()
        await eventually_async(lambda: new.state.phase == "cancelled")
        await eventually_async(lambda: agents.saved().phase == "cancelled")
        await agents.follow()
        assert agents.saved().phase == "cancelled"
        await agents.end("new")
        await agents.follow()
        await eventually_async(lambda: agents.saved() == old.state)
        assert old.state.phase == "notice"

    run(tmp_path, scenario)


def state(description: str) -> ReclaimState:
    signal = Signal("operator", "notice", "operator", description)
    return ReclaimState(BOOT, active=(ActiveSignal(signal, STEADY.now()),))


def document(description: str) -> bytes:
    return msgspec.json.encode({"version": 1, "state": state(description)})


def test_a_save_that_outlasts_the_lock_does_not_replace_that_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "LOCK_TIMEOUT_S", 0.01)
    one, other = StateFile(tmp_path), StateFile(tmp_path)
    for file in (one, other):
        file.load(BOOT)
    fsync = os.fsync

    def sync(handle: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        other.save(state("other"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(StateChangedError):
        one.save(state("one"))
    assert requested(StateFile(tmp_path).load(BOOT)) == "other" and one.is_changed
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


def test_a_file_that_is_replaced_at_the_end_of_a_save_is_that_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an agent of an earlier version, which does not wait."""
    one = StateFile(tmp_path)
    one.load(BOOT)
    sync_directory = atomic_file.sync_directory

    def sync(path: Path) -> None:
        sync_directory(path)
        monkeypatch.setattr(atomic_file, "sync_directory", sync_directory)
        atomic_file.write(tmp_path / STATE_FILE, document("other"))

    monkeypatch.setattr(atomic_file, "sync_directory", sync)
    with pytest.raises(StateChangedError):
        one.save(state("one"))
    assert one.is_changed


def test_a_state_that_cannot_be_read_now_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = atomic_file.read

    def no_handle(path: Path, max_bytes: int) -> bytes:
        raise OSError(24, "Too many open files")

    async def scenario(agents: Agents) -> None:
        old, new = await agents.start("old"), await agents.start("new")
        await request(old, "maintenance")
        monkeypatch.setattr(atomic_file, "read", no_handle)
        with pytest.raises(RetryableError, match="Too many open files"):
            await new.follow_other_agents()
        await request(new, "repair")
        assert new.unsaved
        monkeypatch.setattr(atomic_file, "read", read)
        await agents.follow()
        await eventually_async(lambda: not new.unsaved)
        await agents.follow()
        assert requested(new.state) == requested(old.state) == requested(agents.saved()) == "repair"

    run(tmp_path, scenario)


def test_a_state_that_is_not_read_yet_delays_no_notice_file(tmp_path: Path, reads: SlowReads) -> None:
    """The newest agent has ended, and its last state is on a disk that hangs."""
    is_newest = True

    async def scenario() -> None:
        nonlocal is_newest
        runtime = ReclaimRuntime(
            ReclaimSettings(),
            [],
            tmp_path,
            BOOT,
            notice_dir=tmp_path / "notices",
            keeps_notice=False,
            is_newest=lambda: is_newest,
            about=dict,
        )
        file = tmp_path / "notices/claim" / FILE
        async with asyncio.timeout(DEADLINE_S):
            await runtime.start()
            runtime.notices.create("claim", Deadline.of(DEADLINE_S))
            is_newest = False
            await request(runtime.service, "maintenance")
            reads.hold()
            atomic_file.write(tmp_path / STATE_FILE, document("other"))
            await eventually_async(lambda: reads.waiting)
            is_newest = True
            await eventually_async(lambda: b'"notice"' in file.read_bytes())
            reads.free()
            await runtime.stop()

    asyncio.run(scenario())

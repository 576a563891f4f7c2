"""A reclaim state that cannot be saved: what operators learn, and that it is on disk as soon as the disk permits it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cli.main import main
from dra_agent.reclaim.control import SOCKET, Cancel, ReclaimControlServer, Start, Status, send_request
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.signal import Signal, SignalSink
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.state_file import StateFile
from dra_agent.reclaim.state_saver import StateSaver
from dra_agent.retry import Backoff
from eventually import DEADLINE_S, eventually_async

NEVER_S = 10 * DEADLINE_S
"""A delay that no test waits for."""


class SpotNotice:
    """A source with one notice."""

    names = ("cloud",)

    async def run(self, sink: SignalSink) -> None:
        sink.observed("cloud", [Signal("cloud", "notice", "e", "w")])
        await asyncio.Event().wait()

    async def released(self) -> None:
        pass


class FullDisk:
    """A disk without room until `free` is called; `attempts` counts the writes that failed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempts = 0
        self._monkeypatch = monkeypatch
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._fail)

    def free(self) -> None:
        self._monkeypatch.setattr(os, "fsync", self._fsync)

    def _fail(self, handle: int) -> None:
        self.attempts += 1
        raise OSError(28, "No space left on device")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def service(folder: Path, *, retry_s: float = NEVER_S) -> ReclaimService:
    return ReclaimService(folder, "b", [], retries=Backoff(first=retry_s, longest=retry_s, spread=0.0))


def saved_phase(folder: Path) -> str:
    """Return the phase with which an agent that starts now continues."""
    return StateFile(folder).load("b").phase


def run_with(reclaim: ReclaimService, folder: Path, scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        control = ReclaimControlServer(folder / SOCKET, reclaim)
        async with asyncio.timeout(DEADLINE_S):
            await reclaim.start()
            await control.start()
            try:
                await scenario()
            finally:
                await control.stop()
                await reclaim.stop()

    asyncio.run(run())


async def send(folder: Path, request: Start | Cancel | Status) -> Any:
    return await asyncio.to_thread(send_request, folder, request)


async def run_command(*arguments: str) -> int:
    return await asyncio.to_thread(main, [*arguments])


def test_a_full_disk_does_not_block_a_notice_and_is_reported(
    tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    reclaim = service(tmp_path)

    async def scenario() -> None:
        status = await send(tmp_path, Start())
        assert status["phase"] == "notice"
        assert "No space left on device" in status["unsaved"] and str(tmp_path) in status["unsaved"]
        assert (await send(tmp_path, Status()))["unsaved"] == status["unsaved"]

    run_with(reclaim, tmp_path, scenario)
    assert saved_phase(tmp_path) == "none"
    assert any("No space left" in str(getattr(record, "reason", "")) for record in caplog.records)


def test_a_notice_is_saved_when_the_disk_has_room_again(
    tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    reclaim = service(tmp_path, retry_s=0.01)

    async def scenario() -> None:
        await send(tmp_path, Start())
        await eventually_async(lambda: disk.attempts > 3)
        disk.free()
        await eventually_async(lambda: not reclaim.unsaved)
        assert saved_phase(tmp_path) == "notice"
        assert (await send(tmp_path, Status()))["unsaved"] == ""

    run_with(reclaim, tmp_path, scenario)
    assert len([record for record in caplog.records if "cannot save" in record.message]) == 1
    assert len([record for record in caplog.records if "is saved again" in record.message]) == 1


def test_a_repeated_command_saves_what_an_earlier_one_could_not(tmp_path: Path, disk: FullDisk) -> None:
    async def scenario() -> None:
        await send(tmp_path, Start())
        disk.free()
        assert (await send(tmp_path, Start()))["unsaved"] == ""
        assert saved_phase(tmp_path) == "notice"

    run_with(service(tmp_path), tmp_path, scenario)


def test_an_agent_that_stops_saves_what_it_could_not_before(tmp_path: Path, disk: FullDisk) -> None:
    async def scenario() -> None:
        await send(tmp_path, Start())
        disk.free()

    run_with(service(tmp_path), tmp_path, scenario)
    assert saved_phase(tmp_path) == "notice"


def test_a_later_change_replaces_one_that_was_not_saved(tmp_path: Path, disk: FullDisk) -> None:
    async def scenario() -> None:
        await send(tmp_path, Start())
        disk.free()
        assert (await send(tmp_path, Cancel()))["unsaved"] == ""

    run_with(service(tmp_path, retry_s=0.01), tmp_path, scenario)
    assert saved_phase(tmp_path) == "cancelled"


def test_an_agent_that_is_replaced_does_not_write_its_state_later(tmp_path: Path, disk: FullDisk) -> None:
    # It is the newest for its first attempt only, which fails.
    attempts = iter([True])
    reclaim = ReclaimService(
        tmp_path,
        "b",
        [SpotNotice()],
        is_newest=lambda: next(attempts, False),
        retries=Backoff(first=0.01, longest=0.01, spread=0.0),
    )

    async def scenario() -> None:
        await eventually_async(lambda: disk.attempts)
        await eventually_async(lambda: not reclaim.unsaved)
        assert reclaim.state.phase == "notice"
        disk.free()

    run_with(reclaim, tmp_path, scenario)
    assert not (tmp_path / "reclaim.json").exists()


@pytest.mark.parametrize("verb", ["start", "cancel"])
def test_the_commands_warn_and_fail_where_the_request_is_not_saved(
    tmp_path: Path, disk: FullDisk, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    async def scenario() -> None:
        if verb == "cancel":
            await send(tmp_path, Start())
        flags = ("--state-dir", str(tmp_path))
        assert await run_command("reclaim", verb, *flags) == 1
        assert "warning: a restart of the agent would lose the last change" in capsys.readouterr().err
        assert await run_command("reclaim", "status", "-o", "json", *flags) == 0
        printed = capsys.readouterr()
        assert "No space left" in json.loads(printed.out)["unsaved"] and "warning:" in printed.err
        disk.free()
        assert await run_command("reclaim", verb, *flags) == 0
        assert "warning" not in capsys.readouterr().err

    run_with(service(tmp_path), tmp_path, scenario)


def test_a_full_disk_is_reported_after_a_save_of_another_agent(
    tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one has saved in between; the log does not report that."""
    state = ReclaimState("b", dismissed=(("cloud", "e"),))
    path = tmp_path / "reclaim.json"

    async def scenario() -> None:
        file = StateFile(tmp_path)
        saver = StateSaver(file, file.load("b"), is_newest=lambda: True, backoff=Backoff(first=NEVER_S, spread=0.0))
        path.write_text("{")
        saver.begin(state)
        await eventually_async(lambda: saver.is_stale)
        changes = await saver.changes()
        assert changes is not None and saver.accept(changes) and not caplog.records[1:]
        await saver.confirm(DEADLINE_S)
        assert "No space left" in saver.problem
        await saver.stop(DEADLINE_S)

    asyncio.run(scenario())
    assert any("No space left" in str(getattr(record, "reason", "")) for record in caplog.records)

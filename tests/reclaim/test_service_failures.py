"""Failures within the reclaim service: no notice is lost, and listeners are called."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import pytest

from dra_agent.clock import STEADY
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState
from eventually import eventually_async
from reclaim.test_service import FakeSource, run_bounded

Scenario = Callable[[ReclaimService, FakeSource, list[str]], Awaitable[None]]


def run(folder: Path, scenario: Scenario, now: Callable[[], datetime] = STEADY.now) -> None:
    """Run a service with one source; the list has the phases that a listener was called with."""

    async def bounded() -> None:
        source, phases = FakeSource(), list[str]()
        reclaim = ReclaimService(folder, "b", [source], now=now)

        async def changed(before: ReclaimState, after: ReclaimState) -> None:
            phases.append(after.phase)

        reclaim.on_change(changed)
        await reclaim.start()
        await eventually_async(lambda: source.sink)
        await scenario(reclaim, source, phases)
        await reclaim.stop()

    run_bounded(bounded)


def test_a_notice_survives_a_failure_of_the_loop(tmp_path: Path) -> None:
    failures = list[OSError]()

    def now() -> datetime:
        if failures:
            raise failures.pop()
        return STEADY.now()

    async def scenario(reclaim: ReclaimService, source: FakeSource, phases: list[str]) -> None:
        failures.append(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        source.report(source.notice())
        await eventually_async(lambda: phases == ["notice"])
        source.report()
        await eventually_async(lambda: phases == ["notice", "cancelled"])

    run(tmp_path, scenario, now)


def test_a_first_notice_without_room_for_threads_is_saved_and_acted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario(reclaim: ReclaimService, source: FakeSource, phases: list[str]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            source.report(source.notice())
            await eventually_async(lambda: phases == ["notice"])
            await eventually_async(lambda: not reclaim.unsaved)
        source.report()
        await eventually_async(lambda: phases == ["notice", "cancelled"])
        source.report(source.notice(event="second"))
        await eventually_async(lambda: phases == ["notice", "cancelled", "notice"])

    run(tmp_path, scenario)


def test_a_change_that_cannot_be_logged_is_acted_on(tmp_path: Path) -> None:
    async def scenario(reclaim: ReclaimService, source: FakeSource, phases: list[str]) -> None:
        source.report(source.notice_of(STEADY.now().replace(tzinfo=None)))  # no time until it can be computed
        await eventually_async(lambda: phases == ["notice"])

    run(tmp_path, scenario)

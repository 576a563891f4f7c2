"""The tracker of released claims: which changes of the ledger it is woken for, and that it misses none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dra_agent.reclaim import release_tracker
from dra_agent.reclaim.release_tracker import ReleaseTracker
from eventually import DEADLINE_S, eventually_async
from reclaim.doubles import ClaimsApi, MemoryLedger, entry


def test_prepares_wake_the_event_loop_only_while_something_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        loop, wakes = asyncio.get_running_loop(), list[Any]()
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any, **context: Any) -> Any:
            wakes.append(arguments)
            return wake(*arguments, **context)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        ledger = MemoryLedger()
        tracker = ReleaseTracker(ledger, ClaimsApi(), node="n", driver="d")
        ledger.add(entry("a"))
        ledger.add(entry("b"))
        assert wakes == []
        waiting = asyncio.create_task(tracker.wait_complete())
        await eventually_async(lambda: set(tracker.records) == {"a", "b"})
        ledger.remove(*ledger.entries())
        assert len(wakes) == 1
        async with asyncio.timeout(DEADLINE_S):
            await waiting
        assert tracker.complete
        ledger.add(entry("c"))
        assert len(wakes) == 1
        monkeypatch.undo()

    asyncio.run(scenario())


def test_a_change_before_the_wait_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_tracker, "RECHECK_INTERVAL_S", 10 * DEADLINE_S)

    async def scenario() -> None:
        ledger = MemoryLedger()
        tracker = ReleaseTracker(ledger, ClaimsApi(), node="n", driver="d")
        async with asyncio.timeout(DEADLINE_S):
            await tracker.wait_complete()
            ledger.add(entry("late"))
            await tracker.wait_incomplete()
            assert not tracker.complete
            ledger.remove(*ledger.entries())
            await tracker.wait_complete()
            waiting = asyncio.create_task(tracker.wait_incomplete())
            await asyncio.sleep(0)
            ledger.add(entry("later"))
            await waiting

    asyncio.run(scenario())

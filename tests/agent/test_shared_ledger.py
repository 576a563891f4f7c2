"""What another agent of a rolling update records is known within a moment, without a call of the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_agent.agent.shared_ledger import SharedLedger
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from eventually import eventually_async


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[tuple[JournalLedger, JournalLedger]]:
    with (
        JournalLedger(tmp_path, "b", shared_as="mine") as mine,
        JournalLedger(tmp_path, "b", shared_as="theirs") as theirs,
    ):
        yield mine, theirs


def record(ledger: JournalLedger, uid: str) -> None:
    with ledger.lease():
        ledger.start(LedgerEntry(uid, "default", uid, ()), durable=True)
        ledger.complete(uid, {})


def uids(ledger: JournalLedger) -> list[str]:
    return [entry.uid for entry in ledger.entries()]


def test_a_claim_that_another_agent_prepares_or_releases_is_seen(ledgers: tuple[JournalLedger, JournalLedger]) -> None:
    mine, theirs = ledgers

    async def live() -> None:
        reader = SharedLedger(mine, lambda: ["theirs"], interval_s=0.01)
        reader.start()
        try:
            record(theirs, "claim")
            await eventually_async(lambda: uids(mine) == ["claim"])
            with theirs.lease():
                theirs.release("claim")
            await eventually_async(lambda: uids(mine) == [])
        finally:
            reader.stop()

    asyncio.run(live())


def test_an_agent_that_keeps_its_turn_or_its_state_from_being_read_is_reported_once(
    ledgers: tuple[JournalLedger, JournalLedger], caplog: pytest.LogCaptureFixture
) -> None:
    mine, theirs = ledgers

    async def live() -> None:
        reader = SharedLedger(mine, lambda: ["theirs"], interval_s=0.01, timeout_s=0.05)
        reader.start()
        try:
            with theirs.lease():
                await eventually_async(lambda: "what other agents recorded is not known" in caplog.text)
                await asyncio.sleep(0.2)  # several more tries: each fails, and none is reported
                # In the same turn: one of its own could take long enough to be reported again.
                record(theirs, "claim")
            await eventually_async(lambda: uids(mine) == ["claim"])
        finally:
            reader.stop()
        assert caplog.text.count("what other agents recorded is not known") == 1

    asyncio.run(live())


def test_an_agent_that_is_alone_takes_no_turns(ledgers: tuple[JournalLedger, JournalLedger]) -> None:
    mine, theirs = ledgers
    polled = 0

    def others() -> list[str]:
        nonlocal polled
        polled += 1
        return []

    async def live() -> None:
        reader = SharedLedger(mine, others, interval_s=0.01)
        reader.start()
        try:
            record(theirs, "claim")
            await eventually_async(lambda: polled > 3)
            assert uids(mine) == []
        finally:
            reader.stop()

    asyncio.run(live())

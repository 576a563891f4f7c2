"""Records of another agent of a rolling update become known soon, without a call of the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_agent.agent.rolling_update import InstanceRegistry, LeadershipState, Trace
from dra_agent.agent.shared_ledger import SharedLedger
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from eventually import eventually_async


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[tuple[JournalLedger, JournalLedger]]:
    with (
        JournalLedger(tmp_path, "b", shared_as="mine") as own,
        JournalLedger(tmp_path, "b", shared_as="theirs") as other,
    ):
        yield own, other


class Instances(InstanceRegistry):
    """The other agents are those of the test."""

    def __init__(self, others: list[str]) -> None:
        self._others = others
        self.polled = 0

    def traces(self) -> frozenset[Trace]:
        return frozenset()

    def others(self) -> list[str]:
        self.polled += 1
        return self._others


def record(ledger: JournalLedger, uid: str) -> None:
    with ledger.lease():
        ledger.start(LedgerEntry(uid, "default", uid, ()), durable=True)
        ledger.complete(uid, {})


def uids(ledger: JournalLedger) -> list[str]:
    return [entry.uid for entry in ledger.entries()]


def test_claims_of_another_agent_become_known(ledgers: tuple[JournalLedger, JournalLedger]) -> None:
    own, other = ledgers

    async def scenario() -> None:
        reader = SharedLedger(own, Instances(["theirs"]), interval_s=0.01)
        reader.start()
        try:
            record(other, "claim")
            await eventually_async(lambda: uids(own) == ["claim"])
            with other.lease():
                other.release("claim")
            await eventually_async(lambda: uids(own) == [])
        finally:
            reader.stop()

    asyncio.run(scenario())


def test_a_blocked_or_unreadable_ledger_is_logged_once(
    ledgers: tuple[JournalLedger, JournalLedger], caplog: pytest.LogCaptureFixture
) -> None:
    own, other = ledgers

    async def scenario() -> None:
        instances = Instances(["theirs"])
        reader = SharedLedger(own, instances, interval_s=0.01, timeout_s=0.05)
        reader.start()
        try:
            with other.lease():
                await eventually_async(lambda: "cannot read the ledger records of other agents" in caplog.text)
                polled = instances.polled
                await eventually_async(lambda: instances.polled >= polled + 3)  # two attempts fail without a log line
                # Within the same lease: a second lease could take long enough for another log line.
                record(other, "claim")
            await eventually_async(lambda: uids(own) == ["claim"])
        finally:
            reader.stop()
        assert caplog.text.count("cannot read the ledger records of other agents") == 1

    asyncio.run(scenario())


def test_an_agent_without_others_takes_no_lease(ledgers: tuple[JournalLedger, JournalLedger]) -> None:
    own, other = ledgers
    instances = Instances([])

    async def scenario() -> None:
        reader = SharedLedger(own, instances, interval_s=0.01)
        reader.start()
        try:
            await eventually_async(lambda: instances.polled > 2)  # the first check reads what an agent left before
            record(other, "claim")
            polled = instances.polled
            await eventually_async(lambda: instances.polled > polled + 2)
            assert uids(own) == []
        finally:
            reader.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("ended", ["before the start", "between two checks", "after a check"])
def test_the_last_claim_of_an_agent_becomes_known_after_its_end(
    tmp_path: Path, ledgers: tuple[JournalLedger, JournalLedger], ended: str
) -> None:
    own, other = ledgers

    def run_other() -> None:
        newer = InstanceRegistry(tmp_path, "theirs")
        newer.report(LeadershipState.ABLE)
        record(other, "claim")
        newer.close()

    async def scenario() -> None:
        instances = InstanceRegistry(tmp_path, "mine")
        reader = SharedLedger(own, instances, interval_s=0.01)
        if ended == "before the start":
            run_other()
        elif ended == "after a check":
            newer = InstanceRegistry(tmp_path, "theirs")
        reader.start()
        try:
            if ended != "before the start":
                record(other, "earlier")
                await eventually_async(lambda: uids(own) == ["earlier"])
                with other.lease():
                    other.release("earlier")
            if ended == "between two checks":
                run_other()
            elif ended == "after a check":
                record(other, "claim")
                newer.close()
            await eventually_async(lambda: uids(own) == ["claim"])
        finally:
            reader.stop()
            instances.close()

    asyncio.run(scenario())

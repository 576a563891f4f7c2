"""A turn serves everything that a process does at the time, and is given back while another process waits."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare import ledger_lease
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.prepare.ledger_lease import LeaseHistory, LedgerLease
from eventually import DEADLINE_S


class Lock:
    """A lock that records what is done to it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.waits: list[float] = []
        self.since: LeaseHistory = "unchanged"
        self.others_wait = False
        self.refuse: Exception | None = None

    def acquire(self, wait: float) -> LeaseHistory:
        if self.refuse:
            raise self.refuse
        self.said.append("acquire")
        self.waits.append(wait)
        return self.since

    def release(self) -> None:
        self.said.append("release")

    def contended(self) -> bool:
        return self.others_wait


def holding(turns_: LedgerLease, until: threading.Event) -> threading.Thread:
    inside = threading.Event()

    def work() -> None:
        with turns_.hold():
            inside.set()
            until.wait(DEADLINE_S)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(DEADLINE_S)
    return thread


def test_the_first_takes_the_turn_and_the_last_gives_it_back() -> None:
    stile, over = Lock(), threading.Event()
    one = LedgerLease(stile)
    threads = [holding(one, over) for _ in range(3)]
    assert stile.said == ["acquire"]
    over.set()
    for thread in threads:
        thread.join()
    assert stile.said == ["acquire", "release"]
    with one.hold():
        pass
    assert stile.said == ["acquire", "release"] * 2


def test_a_turn_that_lasts_is_joined_only_while_nobody_else_waits() -> None:
    now = 0.0
    stile, over = Lock(), threading.Event()
    one = LedgerLease(stile, clock=lambda: now)
    first = holding(one, over)
    now = 5.0
    second = holding(one, over)  # nobody waits: a hanging first does not hold up the second
    now, stile.others_wait = 10.0, True
    entered = threading.Event()

    def third() -> None:
        with one.hold():
            entered.set()

    late = threading.Thread(target=third)
    late.start()
    assert not entered.wait(0.1)
    over.set()
    for thread in (first, second, late):
        thread.join(60)
    assert entered.is_set() and stile.said == ["acquire", "release"] * 2


def test_who_cannot_join_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_lease, "JOIN_WINDOW_S", 0.0)
    stile, over = Lock(), threading.Event()
    stile.others_wait = True
    one = LedgerLease(stile)
    first = holding(one, over)
    with pytest.raises(RetryableError, match="this agent still writes other claims"), one.hold(Deadline.of(0.1)):
        pass
    over.set()
    first.join(60)
    assert stile.said == ["acquire", "release"]


def test_the_callers_deadline_is_how_long_another_process_is_waited_for() -> None:
    stile = Lock()
    deadline = Deadline.of(7.0)
    before = deadline.remaining()
    with LedgerLease(stile).hold(deadline):
        assert deadline.remaining() <= stile.waits[0] <= before


def test_a_refused_turn_leaves_the_door_open_for_the_next() -> None:
    stile = Lock()
    one = LedgerLease(stile)
    stile.refuse = RetryableError("another agent (pid 7)")
    with pytest.raises(RetryableError, match="pid 7"), one.hold():
        pass
    stile.refuse = None
    with one.hold():
        assert stile.said == ["acquire"]


def test_a_turn_that_nobody_else_wants_waits_for_nothing(tmp_path: Path) -> None:
    """Not for a disk in particular: a thread that waits gives its processor away, which the kernel counts."""
    with JournalLedger(tmp_path, "boot", shared_as="a") as ledger:
        waited = []
        for _ in range(300):
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            with ledger.lease():
                pass
            waited.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
        # Python's own lock is waited for now and then where other threads run.
        assert sorted(waited)[150] == 0

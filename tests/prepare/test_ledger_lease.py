"""A lease of the ledger serves all threads of a process, and is released when another process waits."""

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


class FakeLock:
    """A lock that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.waits: list[float] = []
        self.since: LeaseHistory = "unchanged"
        self.others_wait = False
        self.refuse: Exception | None = None

    def acquire(self, wait: float) -> LeaseHistory:
        if self.refuse:
            raise self.refuse
        self.calls.append("acquire")
        self.waits.append(wait)
        return self.since

    def release(self) -> None:
        self.calls.append("release")

    def contended(self) -> bool:
        return self.others_wait


def hold_in_thread(lease: LedgerLease, may_end: threading.Event) -> threading.Thread:
    inside = threading.Event()

    def work() -> None:
        with lease.hold():
            inside.set()
            may_end.wait(DEADLINE_S)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(DEADLINE_S)
    return thread


def test_the_first_thread_acquires_and_the_last_releases_the_lease() -> None:
    lock, may_end = FakeLock(), threading.Event()
    lease = LedgerLease(lock)
    threads = [hold_in_thread(lease, may_end) for _ in range(3)]
    assert lock.calls == ["acquire"]
    may_end.set()
    for thread in threads:
        thread.join()
    assert lock.calls == ["acquire", "release"]
    with lease.hold():
        pass
    assert lock.calls == ["acquire", "release"] * 2


def test_a_long_lease_is_joined_only_while_no_other_process_waits() -> None:
    now = 0.0
    lock, may_end = FakeLock(), threading.Event()
    lease = LedgerLease(lock, clock=lambda: now)
    first = hold_in_thread(lease, may_end)
    now = 5.0
    second = hold_in_thread(lease, may_end)  # no process waits: a hanging thread does not delay the second one
    now, lock.others_wait = 10.0, True
    entered = threading.Event()

    def third() -> None:
        with lease.hold():
            entered.set()

    late = threading.Thread(target=third)
    late.start()
    assert not entered.wait(0.1)
    may_end.set()
    for thread in (first, second, late):
        thread.join(60)
    assert entered.is_set() and lock.calls == ["acquire", "release"] * 2


def test_a_thread_that_cannot_join_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_lease, "JOIN_WINDOW_S", 0.0)
    lock, may_end = FakeLock(), threading.Event()
    lock.others_wait = True
    lease = LedgerLease(lock)
    first = hold_in_thread(lease, may_end)
    with pytest.raises(RetryableError, match="this agent still writes other claims"), lease.hold(Deadline.of(0.1)):
        pass
    may_end.set()
    first.join(60)
    assert lock.calls == ["acquire", "release"]


def test_the_deadline_of_the_caller_limits_the_wait() -> None:
    lock = FakeLock()
    deadline = Deadline.of(7.0)
    before = deadline.remaining()
    with LedgerLease(lock).hold(deadline):
        assert deadline.remaining() <= lock.waits[0] <= before


def test_a_refused_lease_can_be_acquired_later() -> None:
    lock = FakeLock()
    lease = LedgerLease(lock)
    lock.refuse = RetryableError("another agent (pid 7)")
    with pytest.raises(RetryableError, match="pid 7"), lease.hold():
        pass
    lock.refuse = None
    with lease.hold():
        assert lock.calls == ["acquire"]


def test_an_uncontended_lease_causes_no_context_switch(tmp_path: Path) -> None:
    """The kernel counts voluntary context switches, which are independent of the disk."""
    with JournalLedger(tmp_path, "boot", shared_as="a") as ledger:
        switches = []
        for _ in range(300):
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            with ledger.lease():
                pass
            switches.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
        # Python threads wait for the interpreter lock now and then.
        assert sorted(switches)[150] == 0

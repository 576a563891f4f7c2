"""A lock that a thread cannot take again while another one waits for it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dra_agent.standalone.fair_lock import FairLock

WAIT_S = 60.0


def test_a_thread_that_waits_comes_before_one_that_takes_the_lock_again() -> None:
    lock, order = FairLock(), list[str]()

    def take() -> None:
        with lock:
            order.append("waiting")

    with ThreadPoolExecutor(1) as pool:
        for _ in range(50):
            with lock:
                taken = pool.submit(take)
                deadline = time.monotonic() + WAIT_S
                while not lock.is_awaited:
                    assert time.monotonic() < deadline, "the other thread does not wait for the lock"
            with lock:
                order.append("again")
            taken.result(WAIT_S)
    assert order == ["waiting", "again"] * 50


def test_a_thread_may_take_it_several_times() -> None:
    lock = FairLock()
    with lock:
        with lock, lock:
            pass
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(lock.__enter__)
            deadline = time.monotonic() + WAIT_S
            while not lock.is_awaited:
                assert time.monotonic() < deadline, "the other thread does not wait for the lock"
            assert not other.done()
            lock.__exit__()
            other.result(WAIT_S)
            pool.submit(lock.__exit__).result(WAIT_S)
            lock.__enter__()
    assert not lock.is_awaited


def test_it_is_free_after_an_error() -> None:
    lock = FairLock()
    with pytest.raises(ValueError, match="inside"), lock:
        raise ValueError("inside")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lock.__enter__).result(WAIT_S)


def test_one_thread_at_a_time_holds_it() -> None:
    lock, inside, most = FairLock(), list[int](), list[int]()

    def work(number: int) -> None:
        for _ in range(200):
            with lock:
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(4)]:
            done.result(WAIT_S)
    assert max(most) == 1
    assert len(most) == 800

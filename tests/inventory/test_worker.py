from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from dra_agent.inventory.nvidia.worker import MOST_STUCK, HungError, Worker


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 5
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_results_and_errors_come_back_from_one_other_thread() -> None:
    worker = Worker("library")
    names = {worker.call("a", 1, threading.get_ident) for _ in range(20)}
    assert len(names) == 1
    assert threading.get_ident() not in names
    with pytest.raises(ZeroDivisionError):
        worker.call("a", 1, lambda: 1 // 0)
    worker.close()
    assert worker.call("a", 1, lambda: 7) == 7


def test_a_call_that_hangs_is_left_behind_and_others_go_on(gate: threading.Event) -> None:
    worker = Worker("library")
    started = time.monotonic()
    with pytest.raises(HungError, match=r"did not answer within 0.05 s"):
        worker.call("gpu 1", 0.05, gate.wait)
    assert time.monotonic() - started < 2
    assert worker.call("gpu 2", 1, lambda: "fine") == "fine"
    with pytest.raises(HungError, match="earlier call to library about gpu 1"):
        worker.call("gpu 1", 1, lambda: "never asked")
    gate.set()
    wait_until(lambda: not worker.is_stuck("gpu 1"))
    assert worker.call("gpu 1", 1, lambda: "back") == "back"


def test_no_more_than_a_few_threads_ever_wait(gate: threading.Event) -> None:
    worker = Worker("bounded library")
    for number in range(MOST_STUCK):
        with pytest.raises(HungError):
            worker.call(f"gpu {number}", 0.01, gate.wait)
    started = time.monotonic()
    for number in range(50):
        with pytest.raises(HungError, match=f"{MOST_STUCK} calls to bounded library have not come back"):
            worker.call(f"other {number}", 5, gate.wait)
    assert time.monotonic() - started < 2
    assert sum(thread.name == "bounded library" for thread in threading.enumerate()) <= MOST_STUCK
    gate.set()
    wait_until(lambda: not any(thread.name == "bounded library" for thread in threading.enumerate()))
    assert worker.call("gpu 0", 1, lambda: 1) == 1
    worker.close()


def test_callers_in_many_threads_are_served_one_after_the_other() -> None:
    worker = Worker("library")
    running, most = 0, 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.001)
        running -= 1

    threads = [threading.Thread(target=lambda: [worker.call("x", 5, work) for _ in range(5)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    worker.close()

"""Threads of the agent's executors: as many as are needed, and none that keeps the process alive."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from dra_agent import daemon_threads
from dra_agent.daemon_threads import DaemonExecutor

GENEROUS_S = 60.0


def test_calls_run_side_by_side_up_to_the_limit_and_give_results_and_errors() -> None:
    executor = DaemonExecutor(3, "test")
    together, last = threading.Barrier(3), threading.Event()
    done = [executor.submit(together.wait, GENEROUS_S) for _ in range(3)]
    assert sorted(one.result(GENEROUS_S) for one in done) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 // 0).result(GENEROUS_S)
    blocked = [executor.submit(last.wait, GENEROUS_S) for _ in range(3)]
    late = executor.submit(int, "7")
    assert not late.done()
    last.set()
    assert all(one.result(GENEROUS_S) for one in blocked) and late.result(GENEROUS_S) == 7


def test_idle_threads_end_and_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_TIMEOUT_S", 0.01)
    executor = DaemonExecutor(4, "idle-test")
    assert executor.submit(int, "1").result(GENEROUS_S) == 1
    waited = threading.Event()
    for _ in range(6000):
        if not any(thread.name.startswith("idle-test") for thread in threading.enumerate()):
            break
        waited.wait(0.01)
    else:
        pytest.fail("an idle thread stays")
    assert executor.submit(int, "2").result(GENEROUS_S) == 2


def test_after_the_end_nothing_is_taken_and_what_has_not_begun_is_dropped() -> None:
    executor, begun, gate = DaemonExecutor(1, "test"), threading.Event(), threading.Event()

    def begin_and_wait() -> bool:
        begun.set()
        return gate.wait(GENEROUS_S)

    running, dropped = executor.submit(begin_and_wait), executor.submit(int, "1")
    assert begun.wait(GENEROUS_S)
    executor.shutdown(wait=True)  # does not wait
    with pytest.raises(CancelledError):
        dropped.result(GENEROUS_S)
    with pytest.raises(RuntimeError):
        executor.submit(int, "1")
    gate.set()
    assert running.result(GENEROUS_S)


HUNG = """
import asyncio, threading
from dra_agent.daemon_threads import DaemonExecutor

async def main():
    asyncio.get_running_loop().set_default_executor(DaemonExecutor(4, "default"))
    entered = threading.Event()
    asyncio.create_task(asyncio.to_thread(lambda: (entered.set(), threading.Event().wait())))
    await asyncio.to_thread(entered.wait)
    DaemonExecutor(4, "own").submit(threading.Event().wait)

asyncio.run(main())
print("ended")
"""


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HUNG], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_it_serves_as_the_executor_of_an_event_loop() -> None:
    async def story() -> int:
        asyncio.get_running_loop().set_default_executor(DaemonExecutor(2, "loop"))
        return await asyncio.to_thread(int, "5")

    assert asyncio.run(story()) == 5

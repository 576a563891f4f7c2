"""Threads of the agent's executors: started on demand, and none keeps the process alive."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from dra_agent import daemon_threads
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.threads import NoThreadError

TIMEOUT_S = 60.0


def test_calls_run_in_parallel_up_to_the_limit() -> None:
    executor = DaemonExecutor(3, "test")
    together, last = threading.Barrier(3), threading.Event()
    done = [executor.submit(together.wait, TIMEOUT_S) for _ in range(3)]
    assert sorted(one.result(TIMEOUT_S) for one in done) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 // 0).result(TIMEOUT_S)
    blocked = [executor.submit(last.wait, TIMEOUT_S) for _ in range(3)]
    late = executor.submit(int, "7")
    assert not late.done()
    last.set()
    assert all(one.result(TIMEOUT_S) for one in blocked) and late.result(TIMEOUT_S) == 7


def test_idle_threads_end_and_later_calls_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_TIMEOUT_S", 0.01)
    executor = DaemonExecutor(4, "idle-test")
    assert executor.submit(int, "1").result(TIMEOUT_S) == 1
    waited = threading.Event()
    for _ in range(6000):
        if not any(thread.name.startswith("idle-test") for thread in threading.enumerate()):
            break
        waited.wait(0.01)
    else:
        pytest.fail("an idle thread stays")
    assert executor.submit(int, "2").result(TIMEOUT_S) == 2


def test_shutdown_refuses_new_calls_and_cancels_pending_ones() -> None:
    executor, started, gate = DaemonExecutor(1, "test"), threading.Event(), threading.Event()

    def start_and_wait() -> bool:
        started.set()
        return gate.wait(TIMEOUT_S)

    running, dropped = executor.submit(start_and_wait), executor.submit(int, "1")
    assert started.wait(TIMEOUT_S)
    executor.shutdown(wait=True)  # does not wait
    with pytest.raises(CancelledError):
        dropped.result(TIMEOUT_S)
    with pytest.raises(RuntimeError):
        executor.submit(int, "1")
    gate.set()
    assert running.result(TIMEOUT_S)


HUNG = """
import asyncio, threading
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.threads import NoThreadError

async def main():
    asyncio.get_running_loop().set_default_executor(DaemonExecutor(4, "default"))
    entered = threading.Event()
    asyncio.create_task(asyncio.to_thread(lambda: (entered.set(), threading.Event().wait())))
    await asyncio.to_thread(entered.wait)
    DaemonExecutor(4, "own").submit(threading.Event().wait)

asyncio.run(main())
print("ended")
"""


def test_a_hanging_call_does_not_prevent_the_process_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HUNG], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_executor_works_in_an_event_loop() -> None:
    async def scenario() -> int:
        asyncio.get_running_loop().set_default_executor(DaemonExecutor(2, "loop"))
        return await asyncio.to_thread(int, "5")

    assert asyncio.run(scenario()) == 5


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is set, the system has no room for another thread."""
    is_short, start = threading.Event(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if is_short.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return is_short


def test_kept_threads_exist_before_the_first_call(shortage: threading.Event) -> None:
    executor = DaemonExecutor(4, "test", kept=2)
    shortage.set()
    together = threading.Barrier(2)
    both = [executor.submit(together.wait, TIMEOUT_S) for _ in range(2)]
    assert sorted(one.result(TIMEOUT_S) for one in both) == [0, 1]
    executor.shutdown()


def test_calls_wait_for_a_thread_during_a_shortage(shortage: threading.Event) -> None:
    executor, gate = DaemonExecutor(4, "test", kept=1), threading.Event()
    shortage.set()
    first, waiting = executor.submit(gate.wait, TIMEOUT_S), executor.submit(int, "7")
    assert not waiting.done()
    gate.set()
    assert first.result(TIMEOUT_S) and waiting.result(TIMEOUT_S) == 7
    executor.shutdown()


def test_a_call_without_any_thread_is_refused(shortage: threading.Event) -> None:
    executor = DaemonExecutor(4, "test")
    shortage.set()
    with pytest.raises(NoThreadError, match="no room for another thread"):
        executor.submit(int, "1")
    shortage.clear()
    assert executor.submit(int, "7").result(TIMEOUT_S) == 7, "the refused call is forgotten"


def test_calls_that_waited_are_made_in_parallel_after_a_shortage(shortage: threading.Event) -> None:
    executor, gate = DaemonExecutor(4, "test", kept=1), threading.Event()
    shortage.set()
    executor.submit(gate.wait, TIMEOUT_S)
    together = threading.Barrier(3)
    waiting = [executor.submit(together.wait, TIMEOUT_S) for _ in range(3)]
    shortage.clear()
    gate.set()
    assert sorted(one.result(TIMEOUT_S) for one in waiting) == [0, 1, 2]
    executor.shutdown()


def test_finish_waits_for_running_calls() -> None:
    executor, began, gate = DaemonExecutor(2, "test", kept=1), threading.Event(), threading.Event()

    def start_and_wait() -> bool:
        began.set()
        return gate.wait(TIMEOUT_S)

    running = executor.submit(start_and_wait)
    assert began.wait(TIMEOUT_S)
    finishing = threading.Thread(target=executor.finish)
    finishing.start()
    finishing.join(0.05)
    assert finishing.is_alive()
    gate.set()
    finishing.join(TIMEOUT_S)
    assert not finishing.is_alive() and running.done()

"""Loops run again after a failure, /healthz names those that keep failing, and no failure is lost."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from dra_agent.supervisor import MAX_FAILURES, WELL_AFTER_S, Supervisor
from dra_agent.threads import NoThreadError, start_thread
from eventually import DEADLINE_S, eventually, eventually_async


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Fails while `error` is set, and runs otherwise."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.begun = 0
        self.running = False
        self.gate = asyncio.Event()

    async def run(self) -> None:
        self.begun += 1
        if self.error is not None:
            raise self.error
        self.running = True
        await self.gate.wait()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scenario()

    asyncio.run(bounded())


class PanicError(BaseException):
    """As pyo3.PanicException, which is no Exception."""


@pytest.mark.parametrize("error", [ValueError("why"), OSError(24, "Too many open files"), PanicError("why")])
def test_a_loop_that_fails_runs_again(error: BaseException) -> None:
    async def scenario() -> None:
        supervisor, work = Supervisor(first_retry_s=0.001), Work()
        work.error = error
        task = supervisor.loop("test", work.run)
        await eventually_async(lambda: work.begun > 1)
        work.error = None
        await eventually_async(lambda: work.running)
        work.gate.set()
        await task
        assert supervisor.failures["test"] == work.begun - 1

    run(scenario)


def test_a_loop_that_keeps_failing_is_named_until_it_runs_well() -> None:
    async def scenario() -> None:
        clock, work = Clock(), Work()
        supervisor = Supervisor(clock=clock, first_retry_s=0.001)
        work.error = ValueError("why")
        named: list[bool] = []

        async def run_and_note() -> None:
            named.append(bool(supervisor.failing()))
            await work.run()

        task = supervisor.loop("test", run_and_note, of="one")
        await eventually_async(lambda: len(named) > MAX_FAILURES)
        assert named[: MAX_FAILURES + 1] == [False] * MAX_FAILURES + [True]
        assert "'test one'" in supervisor.failing()[0] and "ValueError: why" in supervisor.failing()[0]
        work.error = None
        await eventually_async(lambda: work.running)
        assert supervisor.failing(), "it may fail at once"
        clock.now += WELL_AFTER_S
        assert not supervisor.failing()
        task.cancel()
        await asyncio.wait([task])

    run(scenario)


@pytest.mark.parametrize("lengths", [(WELL_AFTER_S + 2,), (WELL_AFTER_S + 2, 0.0), (90.0, 40.0)])
def test_a_loop_whose_attempts_fail_late_is_named_until_it_runs_longer(lengths: tuple[float, ...]) -> None:
    async def scenario() -> None:
        clock, work = Clock(), Work()
        supervisor = Supervisor(clock=clock, first_retry_s=1e-6)
        work.error = TimeoutError()
        named: list[str] = []

        async def fail_late() -> None:
            if work.error is not None:
                clock.now += lengths[work.begun % len(lengths)]
                named.extend(supervisor.failing())  # as a probe does meanwhile
            await work.run()

        task = supervisor.loop("test", fail_late)
        await eventually_async(lambda: named)
        work.error = None
        await eventually_async(lambda: work.running)
        clock.now += max(lengths)
        assert supervisor.failing(), "it may fail as late as before"
        clock.now += 3 * max(lengths)
        assert not supervisor.failing()
        task.cancel()
        await asyncio.wait([task])

    run(scenario)


def test_a_loop_that_ran_long_before_it_failed_recovers_soon() -> None:
    async def scenario() -> None:
        clock, work = Clock(), Work()
        supervisor = Supervisor(clock=clock, first_retry_s=1e-6)
        work.error = ValueError("why")

        async def fail() -> None:
            clock.now += 0 if work.begun else 100 * WELL_AFTER_S
            await work.run()

        task = supervisor.loop("test", fail)
        await eventually_async(supervisor.failing)
        work.error = None
        await eventually_async(lambda: work.running)
        clock.now += WELL_AFTER_S
        assert not supervisor.failing()
        task.cancel()
        await asyncio.wait([task])

    run(scenario)


def test_a_canceled_loop_ends_and_is_not_named() -> None:
    async def scenario() -> None:
        supervisor, work = Supervisor(first_retry_s=0.001), Work()
        work.error = ValueError("why")
        task = supervisor.loop("test", work.run)
        await eventually_async(supervisor.failing)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and not supervisor.failing()

    run(scenario)


async def awaits_what_was_canceled() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


class NoTextError(Exception):
    def __str__(self) -> str:
        raise MemoryError


async def fail_without_text() -> None:
    raise NoTextError


@pytest.mark.parametrize("work", [awaits_what_was_canceled, fail_without_text])
def test_a_failure_of_any_kind_ends_no_loop(work: Callable[[], Coroutine[None, None, None]]) -> None:
    async def scenario() -> None:
        supervisor = Supervisor(first_retry_s=1e-6)
        task = supervisor.loop("test", work)
        await eventually_async(lambda: task.done() or supervisor.failing())
        assert not task.done() and supervisor.failures["test"] >= MAX_FAILURES
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and not supervisor.failing()

    run(scenario)


@pytest.mark.parametrize("error", [NoTextError(), asyncio.CancelledError(), SystemExit(1)])
def test_a_failure_of_any_kind_ends_no_loop_on_a_thread(error: BaseException) -> None:
    supervisor, stopped = Supervisor(first_retry_s=1e-6), threading.Event()

    def fail() -> None:
        raise error

    thread = supervisor.thread_loop("test", fail, stopped)
    eventually(lambda: not thread.is_alive() or supervisor.failing())
    assert thread.is_alive()
    stopped.set()
    thread.join(DEADLINE_S)


def test_a_loop_whose_end_fails_ends_as_canceled(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        supervisor, running = Supervisor(), asyncio.Event()

        async def work() -> None:
            try:
                running.set()
                await asyncio.Event().wait()
            finally:
                raise ValueError("why")

        task = supervisor.loop("test", work)
        await running.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and not supervisor.failing()

    run(scenario)
    assert [record.message for record in caplog.records] == ["a loop of the agent failed at its end"]


def test_a_loop_that_ended_with_an_error_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(self: object, error: BaseException) -> float:
        raise error

    monkeypatch.setattr("dra_agent.supervisor._Loop.failed", defect)

    async def fail() -> None:
        raise ValueError("why")

    async def scenario() -> None:
        supervisor = Supervisor()
        await asyncio.wait([supervisor.loop("test", fail, of="one")])
        await asyncio.sleep(0)
        assert supervisor.failing() == ["the loop 'test one' ended: ValueError"]

    run(scenario)


def test_a_failure_is_logged_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        supervisor, work = Supervisor(first_retry_s=1e-9), Work()
        work.error = ValueError("why")
        task = supervisor.loop("test", work.run)
        # Only the first delay grows from almost nothing, so the log is what is measured, and not the time.
        await eventually_async(lambda: supervisor.failures["test"] >= 12)
        task.cancel()

    run(scenario)
    records = [record for record in caplog.records if "loop" in record.message]
    assert [vars(record).get("times") for record in records] == [None, 10]
    assert records[0].exc_info and not records[1].exc_info, "a defect has its traceback once"


def test_a_task_that_fails_is_logged_and_its_owner_gets_the_error(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("why")

    async def scenario() -> None:
        supervisor = Supervisor()
        kept = [supervisor.start_task("kept", fail())]  # asyncio logs it only when the task is collected
        await asyncio.wait(kept)
        await asyncio.sleep(0)
        assert [vars(record).get("work") for record in caplog.records] == ["kept"]
        with pytest.raises(ValueError, match="why"):
            await kept[0]

    run(scenario)


def test_a_task_without_an_owner_is_not_collected() -> None:
    async def scenario() -> None:
        supervisor, ended = Supervisor(), asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0)
            ended.set()

        supervisor.start_task("alone", work())
        gc.collect()
        await ended.wait()

    run(scenario)


def test_a_loop_on_a_thread_runs_again_until_it_is_stopped() -> None:
    supervisor, stopped, count = Supervisor(first_retry_s=0.001), threading.Event(), [0]

    def work() -> None:
        count[0] += 1
        raise ValueError("why")

    thread = supervisor.thread_loop("test", work, stopped)
    eventually(supervisor.failing)
    stopped.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive() and not supervisor.failing() and count[0] >= MAX_FAILURES


def test_the_end_of_a_thread_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("why")

    async def scenario() -> None:
        supervisor = Supervisor()
        with supervisor.attached(asyncio.get_running_loop()):
            start_thread("own", fail).join(DEADLINE_S)
            assert not supervisor.failing(), "the work of one thread ends with it"
            foreign = threading.Thread(target=fail, name="of a library")
            foreign.start()
            foreign.join(DEADLINE_S)
        assert "of a library" in supervisor.failing()[0], "only a new process has it again"

    run(scenario)
    assert {vars(record).get("of") for record in caplog.records} == {"own", "of a library"}


def test_failures_of_callbacks_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with Supervisor().attached(loop):
            for _ in range(500):
                context = {"message": "socket.accept() out of system resource", "exception": OSError(24, "too many")}
                loop.call_exception_handler(context)

    run(scenario)
    assert [vars(record).get("times") for record in caplog.records] == [None, 10, 100]
    assert not any(record.exc_info for record in caplog.records if record.levelno == logging.ERROR)


def test_a_thread_that_the_system_refuses_has_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoThreadError, match="thread .test.: the system has no room for another thread; raise"):
        start_thread("test", print)

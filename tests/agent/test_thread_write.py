"""A task that writes on a thread ends after its write, also if it is canceled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dra_agent.thread_write import write_on_thread
from eventually import DEADLINE_S, eventually_async


def test_a_canceled_task_waits_for_the_write_that_has_begun() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        may_end.wait(DEADLINE_S)
        ended.set()

    async def main() -> None:
        task = asyncio.create_task(write_on_thread(write, timeout_s=DEADLINE_S))
        await eventually_async(begun.is_set)
        task.cancel()
        asyncio.get_running_loop().call_soon(may_end.set)
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and ended.is_set()

    asyncio.run(main())


def test_a_canceled_task_waits_for_a_write_that_hangs_only_for_a_time() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        may_end.wait(DEADLINE_S)
        raise OSError("later")

    async def main() -> None:
        task = asyncio.create_task(write_on_thread(write, timeout_s=0.0))
        await eventually_async(begun.is_set)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and not may_end.is_set()
        may_end.set()

    asyncio.run(main())


def test_the_result_and_the_error_of_a_write_are_those_of_the_task() -> None:
    def fail() -> None:
        raise OSError("full")

    async def main() -> None:
        assert await write_on_thread(lambda: 7) == 7
        with pytest.raises(OSError, match="full"):
            await write_on_thread(fail)

    asyncio.run(main())

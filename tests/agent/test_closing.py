"""Components that wait while they are closed: the event loop continues, and the wait is bounded."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dra_agent.agent.closing import close_on_thread


def test_the_event_loop_continues_while_a_component_closes() -> None:
    may_end = threading.Event()

    async def main() -> None:
        closing = asyncio.create_task(close_on_thread("telemetry", may_end.wait, limit_s=60.0))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        may_end.set()
        assert await closing

    asyncio.run(main())


def test_a_part_that_hangs_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    may_end = threading.Event()
    try:
        assert not asyncio.run(close_on_thread("telemetry", may_end.wait, limit_s=0.01))
    finally:
        may_end.set()
    assert [record.message for record in caplog.records] == ["telemetry does not end, and is left behind"]


def test_an_error_of_a_part_is_raised() -> None:
    def fail() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        asyncio.run(close_on_thread("telemetry", fail, limit_s=60.0))

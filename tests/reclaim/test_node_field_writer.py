"""The last desired value of a node field is written, even with a slow API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from dra_agent.kube_client.errors import ForbiddenError, UnavailableError
from dra_agent.reclaim.node_status import NodeFieldWriter
from eventually import eventually_async
from logged import logged_by


class FakeNode:
    """A Node behind an API server that also completes canceled requests."""

    def __init__(self, *, slow: float = 0.0, errors: tuple[Exception, ...] = ()) -> None:
        self.cordoned: bool | None = None
        self.requests: list[bool] = []
        self._slow = slow
        self._errors = list(errors)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def idle(self) -> bool:
        """Return whether all requests are complete."""
        return all(task.done() for task in self._tasks)

    async def apply(self, cordoned: bool) -> None:
        self.requests.append(cordoned)
        if self._errors:
            raise self._errors.pop(0)
        task = asyncio.create_task(self._carry_out(cordoned, self._slow if cordoned else 0.0))
        self._tasks.append(task)
        await asyncio.shield(task)

    async def _carry_out(self, cordoned: bool, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.cordoned = cordoned


def write_values(node: FakeNode, *values: bool, condition: Callable[[], object], quiet_s: float = 0.3) -> None:
    """Write these values until the condition holds, then wait for further writes."""

    async def main() -> None:
        cordon = NodeFieldWriter(node.apply, operation="the cordon", grant="grant it")
        for value in values:
            cordon.set_desired(value)
            await asyncio.sleep(0.02)
        await eventually_async(lambda: condition() and node.idle)
        await asyncio.sleep(quiet_s)
        await cordon.stop()

    asyncio.run(main())


def test_a_value_replaced_during_its_write_is_overwritten() -> None:
    node = FakeNode(slow=0.2)
    write_values(node, True, False, condition=lambda: node.cordoned is False)
    assert node.cordoned is False and node.requests == [True, False]


def test_the_same_value_is_written_once() -> None:
    node = FakeNode()
    write_values(node, True, True, True, condition=lambda: node.cordoned)
    assert node.cordoned is True and node.requests == [True]


def test_the_last_of_several_values_is_written() -> None:
    node = FakeNode(slow=0.1)
    write_values(node, True, False, True, condition=lambda: node.cordoned)
    assert node.cordoned is True


def test_an_unavailable_api_server_is_retried() -> None:
    node = FakeNode(errors=(UnavailableError("away"), UnavailableError("away")))
    write_values(node, True, condition=lambda: node.cordoned)
    assert node.cordoned is True and len(node.requests) == 3


def test_a_new_value_does_not_wait_for_a_retry() -> None:
    node = FakeNode(errors=(UnavailableError("away", retry_after=60.0),))
    write_values(node, True, False, condition=lambda: node.cordoned is False)
    assert node.cordoned is False


def test_a_missing_permission_is_not_retried(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode(errors=(ForbiddenError("no"),))
    write_values(node, True, condition=lambda: node.requests)
    assert node.requests == [True]
    assert [record.message for record in logged_by(caplog, "dra_agent.reclaim")] == ["the cordon is not written"]


def test_a_missing_permission_is_logged_once_for_later_values(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode(errors=(ForbiddenError("no"), ForbiddenError("no")))
    write_values(node, True, False, condition=lambda: len(node.requests) == 2)
    assert node.requests == [True, False], "the permission may have been granted since"
    assert [record.message for record in logged_by(caplog, "dra_agent.reclaim", least=logging.ERROR)] == [
        "the cordon is not written"
    ]

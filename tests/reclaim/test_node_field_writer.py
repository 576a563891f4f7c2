"""The last desired value of a node field is written, even with a slow API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from dra_agent.kube_client.errors import ForbiddenError, UnavailableError
from dra_agent.reclaim.node_status import NodeFieldWriter
from eventually import eventually_async
from logged import logged_by


class FakeNode:
    """A Node behind an API server that also completes canceled requests."""

    def __init__(self, *errors: Exception) -> None:
        self.cordoned: bool | None = None
        self.requests: list[bool] = []
        self.may_end = asyncio.Event()
        """Requests wait for it."""
        self.may_end.set()
        self._errors = list(errors)
        self._tasks: list[asyncio.Task[None]] = []

    async def apply(self, cordoned: bool) -> None:
        self.requests.append(cordoned)
        if self._errors:
            raise self._errors.pop(0)
        task = asyncio.create_task(self._carry_out(cordoned))
        self._tasks.append(task)
        await asyncio.shield(task)

    async def _carry_out(self, cordoned: bool) -> None:
        await self.may_end.wait()
        self.cordoned = cordoned


Scenario = Callable[[NodeFieldWriter[bool]], Awaitable[None]]


def run(node: FakeNode, scenario: Scenario) -> None:
    async def main() -> None:
        cordon = NodeFieldWriter(node.apply, operation="the cordon", grant="the chart")
        try:
            await scenario(cordon)
        finally:
            await cordon.stop()

    asyncio.run(main())


def test_a_value_replaced_during_its_write_is_overwritten() -> None:
    node = FakeNode()

    async def scenario(cordon: NodeFieldWriter[bool]) -> None:
        node.may_end.clear()
        cordon.set_desired(True)
        await eventually_async(lambda: node.requests)
        cordon.set_desired(False)
        node.may_end.set()
        await eventually_async(lambda: node.cordoned is False)

    run(node, scenario)
    assert node.requests == [True, False]


def test_the_same_value_is_written_once() -> None:
    node = FakeNode()

    async def scenario(cordon: NodeFieldWriter[bool]) -> None:
        for _ in range(3):
            cordon.set_desired(True)
            await eventually_async(lambda: node.cordoned)
        cordon.set_desired(False)
        await eventually_async(lambda: node.cordoned is False)

    run(node, scenario)
    assert node.requests == [True, False]


def test_the_last_of_several_values_is_written() -> None:
    node = FakeNode()

    async def scenario(cordon: NodeFieldWriter[bool]) -> None:
        node.may_end.clear()
        cordon.set_desired(True)
        await eventually_async(lambda: node.requests)
        for value in (False, True, False):
            cordon.set_desired(value)
        node.may_end.set()
        await eventually_async(lambda: node.cordoned is False)

    run(node, scenario)
    assert node.requests == [True, False]


def test_an_unavailable_api_server_is_retried() -> None:
    node = FakeNode(UnavailableError("away"), UnavailableError("away"))

    async def scenario(cordon: NodeFieldWriter[bool]) -> None:
        cordon.set_desired(True)
        await eventually_async(lambda: node.cordoned)

    run(node, scenario)
    assert node.requests == [True, True, True]


def test_a_new_value_does_not_wait_for_a_retry() -> None:
    node = FakeNode(UnavailableError("away", retry_after=300.0))

    async def scenario(cordon: NodeFieldWriter[bool]) -> None:
        cordon.set_desired(True)
        await eventually_async(lambda: node.requests)
        cordon.set_desired(False)
        await eventually_async(lambda: node.cordoned is False)

    run(node, scenario)


def test_a_permission_that_takes_effect_late_needs_no_new_value(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.status.permission.FIRST_RETRY_S", 0.01)
    node = FakeNode(ForbiddenError("no"), ForbiddenError("no"))

    async def scenario(cordon: NodeFieldWriter[bool]) -> None:
        cordon.set_desired(True)
        await eventually_async(lambda: node.cordoned)

    run(node, scenario)
    assert node.requests == [True, True, True]
    errors = logged_by(caplog, "dra_agent", least=logging.ERROR)
    assert [(record.message, vars(record)["grant"]) for record in errors] == [
        ("the cordon is not written", "the chart")
    ]


def test_a_missing_permission_is_logged_once_for_later_values(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.status.permission.FIRST_RETRY_S", 3600.0)
    node = FakeNode(ForbiddenError("no"), ForbiddenError("no"))

    async def scenario(cordon: NodeFieldWriter[bool]) -> None:
        cordon.set_desired(True)
        await eventually_async(lambda: node.requests)
        cordon.set_desired(False)
        await eventually_async(lambda: len(node.requests) == 2)

    run(node, scenario)
    assert node.requests == [True, False], "the permission may have been granted since"
    errors = logged_by(caplog, "dra_agent", least=logging.ERROR)
    assert [record.message for record in errors] == ["the cordon is not written"]


def test_a_value_that_another_agent_has_replaced_is_written_again() -> None:
    node = FakeNode()

    async def scenario(cordon: NodeFieldWriter[bool]) -> None:
        cordon.write_again()
        cordon.set_desired(True)
        await eventually_async(lambda: node.cordoned)
        node.cordoned = False
        cordon.write_again()
        await eventually_async(lambda: node.cordoned)

    run(node, scenario)
    assert node.requests == [True, True]

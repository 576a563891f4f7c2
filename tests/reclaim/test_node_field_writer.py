"""What is wanted of the Node is what is there in the end, however slow the API server is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from dra_agent.kube_client.errors import ForbiddenError, UnavailableError
from dra_agent.reclaim.node_status import NodeFieldWriter
from eventually import eventually_async
from logged import logged_by


class Node:
    """A Node behind an API server that carries out also what nobody waits for any more."""

    def __init__(self, *, slow: float = 0.0, errors: tuple[Exception, ...] = ()) -> None:
        self.cordoned: bool | None = None
        self.asked: list[bool] = []
        self._slow = slow
        self._errors = list(errors)
        self._carried_out: list[asyncio.Task[None]] = []

    @property
    def idle(self) -> bool:
        """Whether whatever it was asked for is done."""
        return all(task.done() for task in self._carried_out)

    async def apply(self, cordoned: bool) -> None:
        self.asked.append(cordoned)
        if self._errors:
            raise self._errors.pop(0)
        task = asyncio.create_task(self._carry_out(cordoned, self._slow if cordoned else 0.0))
        self._carried_out.append(task)
        await asyncio.shield(task)

    async def _carry_out(self, cordoned: bool, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.cordoned = cordoned


def story(node: Node, *wanted: bool, until: Callable[[], object], quiet: float = 0.3) -> None:
    """Have these written until that holds; then nothing more may come of it for a while."""

    async def main() -> None:
        cordon = NodeFieldWriter(node.apply, what="the cordon", grant="grant it")
        for one in wanted:
            cordon.set_desired(one)
            await asyncio.sleep(0.02)
        await eventually_async(lambda: until() and node.idle)
        await asyncio.sleep(quiet)
        await cordon.stop()

    asyncio.run(main())


def test_a_word_that_is_taken_back_while_it_is_on_its_way() -> None:
    node = Node(slow=0.2)
    story(node, True, False, until=lambda: node.cordoned is False)
    assert node.cordoned is False and node.asked == [True, False]


def test_the_same_wish_is_written_once() -> None:
    node = Node()
    story(node, True, True, True, until=lambda: node.cordoned)
    assert node.cordoned is True and node.asked == [True]


def test_who_changes_his_mind_and_back_is_heard() -> None:
    node = Node(slow=0.1)
    story(node, True, False, True, until=lambda: node.cordoned)
    assert node.cordoned is True


def test_an_api_server_that_is_away_is_asked_again() -> None:
    node = Node(errors=(UnavailableError("away"), UnavailableError("away")))
    story(node, True, until=lambda: node.cordoned)
    assert node.cordoned is True and len(node.asked) == 3


def test_a_new_wish_does_not_wait_for_the_next_try() -> None:
    node = Node(errors=(UnavailableError("away", retry_after=60.0),))
    story(node, True, False, until=lambda: node.cordoned is False)
    assert node.cordoned is False


def test_without_the_right_nothing_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(errors=(ForbiddenError("no"),))
    story(node, True, until=lambda: node.asked)
    assert node.asked == [True]
    assert [one.message for one in logged_by(caplog, "dra_agent.reclaim")] == ["the cordon is not written"]


def test_a_missing_right_is_said_once_also_of_the_next_word(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(errors=(ForbiddenError("no"), ForbiddenError("no")))
    story(node, True, False, until=lambda: len(node.asked) == 2)
    assert node.asked == [True, False], "somebody may have granted it since"
    assert [one.message for one in logged_by(caplog, "dra_agent.reclaim", least=logging.ERROR)] == [
        "the cordon is not written"
    ]

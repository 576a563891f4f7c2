"""When an agent says that it can write, by a clock of the test: writes that fail, a list that is late, a dry run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dra_agent.errors import AgentError
from dra_agent.kube_client import ForbiddenError, NotFoundError, ThrottledError, UnavailableError
from dra_agent.publish import access
from dra_agent.publish.access import LOST_AFTER_S, WriteAccess
from eventually import eventually_async


class World:
    """What the report depends on, and what was sent and reported."""

    def __init__(self) -> None:
        self.now = 0.0
        self.elder = False
        self.reports: list[bool] = []
        self.sent: list[tuple[str, dict[str, Any], bool]] = []
        self.refuse: Exception | None = None
        # Following
        self.error: AgentError | None = None
        self.lag_s = 0.0
        # Published
        self.complete = True
        self.known: list[Any] = []
        self.references = 0

    def has_able_elder(self) -> bool:
        return self.elder

    def report_able(self, able: bool) -> None:
        self.reports.append(able)

    def all(self) -> list[Any]:
        return self.known

    async def reference(self) -> None:
        self.references += 1

    async def create(self, kind: object, document: dict[str, Any], *, dry_run: bool = False) -> None:
        self._send("create", document, dry_run)

    async def replace(self, kind: object, document: dict[str, Any], *, dry_run: bool = False) -> None:
        self._send("replace", document, dry_run)

    def _send(self, method: str, document: dict[str, Any], dry_run: bool) -> None:
        self.sent.append((method, document, dry_run))
        if self.refuse is not None:
            raise self.refuse


class Kept:
    def decoded(self) -> dict[str, Any]:
        return {"metadata": {"name": "known"}}


def run(world: World, story: Callable[[WriteAccess], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "CHECK_INTERVAL_S", 0.01)

    async def main() -> None:
        parts: Any = world
        report = WriteAccess(
            parts,
            node="node-a",
            driver="d",
            peers=parts,
            following=parts,
            published=parts,
            ownership=parts,
            clock=lambda: world.now,
        )
        task = asyncio.create_task(report.run())
        try:
            await story(report)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


async def checked(world: World, report: WriteAccess) -> None:
    """Wait until the state as it is now has been seen."""
    for _ in range(3):
        report.wake()
        await eventually_async(lambda: not report._woken.is_set())


def test_writes_that_find_no_server_for_long_give_leadership_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    async def story(report: WriteAccess) -> None:
        await eventually_async(lambda: world.reports == [True])
        assert world.sent == [], "an agent without an older one shows by its writes whether they are accepted"
        report.failed(UnavailableError("no connection"))
        world.now = LOST_AFTER_S
        report.failed(UnavailableError("still none"))
        await checked(world, report)
        assert world.reports == [True] and str(report.reason) == "still none"
        world.now += 0.5
        await eventually_async(lambda: world.reports == [True, False])
        assert str(report.reason) == "still none"
        world.now += 0.1
        await checked(world, report)
        assert world.sent == [], "a while after the last refusal"
        world.now += 100.0
        await eventually_async(lambda: world.reports == [True, False, True])
        assert report.reason is None and report.able
        ((method, document, dry_run),) = world.sent
        assert (method, dry_run) == ("create", True) and world.references == 1
        assert document["metadata"] == {"generateName": "node-a-"}
        spec = document["spec"]
        assert (spec["driver"], spec["nodeName"], spec["devices"]) == ("d", "node-a", [])
        assert (spec["pool"]["generation"], spec["pool"]["resourceSliceCount"]) == (1, 1)

    run(world, story, monkeypatch)


def test_a_write_that_succeeds_ends_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    async def story(report: WriteAccess) -> None:
        await eventually_async(lambda: world.reports == [True])
        report.failed(UnavailableError("no connection"))
        report.succeeded()
        report.failed(ThrottledError("later"))
        world.now = 5 * LOST_AFTER_S
        await checked(world, report)
        assert world.reports == [True] and report.reason is None

    run(world, story, monkeypatch)


def test_a_watch_that_is_behind_for_long_gives_leadership_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    async def story(report: WriteAccess) -> None:
        await eventually_async(lambda: world.reports == [True])
        world.lag_s = LOST_AFTER_S
        await checked(world, report)
        assert world.reports == [True]
        world.lag_s += 0.5
        await eventually_async(lambda: world.reports == [True, False])
        assert str(report.reason) == "the slices are not followed"
        world.error = UnavailableError("the server is away")
        await eventually_async(lambda: str(report.reason) == "the server is away")
        world.lag_s = 0.0
        await checked(world, report)
        assert world.reports == [True, False], "as long as there is an error"
        world.error = None
        await eventually_async(lambda: world.reports == [True, False, True])

    run(world, story, monkeypatch)


def test_beside_an_older_agent_a_dry_run_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.elder = True
    world.complete = False
    world.known = [Kept()]
    world.refuse = ForbiddenError("no")

    async def story(report: WriteAccess) -> None:
        await checked(world, report)
        assert world.sent == [], "what is published is not known yet"
        world.complete = True
        await eventually_async(lambda: world.sent == [("replace", {"metadata": {"name": "known"}}, True)])
        await checked(world, report)
        assert len(world.sent) == 1 and world.reports == [] and str(report.reason) == "no"
        world.refuse = NotFoundError("gone meanwhile")
        world.now += 100.0
        await eventually_async(lambda: world.reports == [True])
        report.failed(ForbiddenError("not any more"))
        assert world.reports == [True, False] and str(report.reason) == "not any more"

    run(world, story, monkeypatch)


def test_a_defect_of_a_check_is_logged_and_the_next_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.elder = True
    world.refuse = ZeroDivisionError("a defect")

    async def story(report: WriteAccess) -> None:
        await eventually_async(lambda: len(world.sent) >= 2)
        world.refuse = None
        await eventually_async(lambda: world.reports == [True])

    run(world, story, monkeypatch)
    assert "whether slices can be written is not known" in caplog.text

"""How many lists thousands of agents send at a time when their API server returns. The clock is virtual."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dra_agent.kube_client import GoneError, ObjectList, UnavailableError, WatchCursor, reflector
from dra_agent.publish.reflector import SliceReflector
from dra_agent.publish.slice_store import SliceStore
from dra_agent.retry import URGENT_RETRY_S

AGENTS = 5000
BREAK_S = 100.0
WINDOW_S = 0.1
MAX_LISTS_IN_A_WINDOW = 200
"""Full jitter over 5 s gives 100 on average; 10 % of jitter gave 2,538 in a measurement."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop without real sleeps: the clock jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None) -> Any:
            if timeout:
                self.now += timeout
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


class Server:
    """Unavailable for `away` seconds after BREAK_S; a watch opened before that ends as `after` states."""

    def __init__(self, loop: VirtualLoop, away: float, after: str) -> None:
        self.loop = loop
        self.away = away
        self.after = after
        self.lists: list[float] = []

    def _check(self) -> None:
        if BREAK_S <= self.loop.now < BREAK_S + self.away:
            raise UnavailableError("no connection")

    async def list(self, *_: object, **__: object) -> ObjectList:
        self.lists.append(self.loop.now)
        await asyncio.sleep(0.01)
        self._check()
        return ObjectList([], "new" if self.loop.now >= BREAK_S else "old")

    async def watch(
        self, *_: object, resource_version: WatchCursor, opened: Callable[[], None], **__: object
    ) -> AsyncGenerator[Any]:
        self._check()
        opened()
        if self.loop.now >= BREAK_S and self.after == "gone" and resource_version.resource_version == "old":
            raise GoneError("too old")
        await asyncio.sleep(max(0.0, BREAK_S - self.loop.now) if self.loop.now < BREAK_S else 1e6)
        events: list[Any] = []
        for event in events:
            yield event
        raise UnavailableError("the connection ended")


def lists_per_window(away: float, after: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of lists in each window after the break, in ascending order."""
    random.seed(7)
    loop = VirtualLoop()
    monkeypatch.setattr(reflector, "time", SimpleNamespace(monotonic=lambda: loop.now))
    server = Server(loop, away, after)

    async def main() -> None:
        api: Any = server
        agents = [
            SliceReflector(
                api, SliceStore(), node="n", driver="d", on_external_change=lambda _: None, caught_up=lambda: None
            )
            for _ in range(AGENTS)
        ]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        await asyncio.sleep(BREAK_S + away + 120)
        assert all(agent.lag_s == 0 for agent in agents), "every agent has caught up"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    windows = Counter(int(listed_at / WINDOW_S) for listed_at in server.lists if listed_at >= BREAK_S)
    return sorted(windows.values())


@pytest.mark.parametrize("away", [0.0, 20.0])
def test_a_server_that_lost_every_watch_gets_lists_spread_out(away: float, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = lists_per_window(away, "gone", monkeypatch)
    assert sum(windows) >= AGENTS, "every agent has to list"
    assert windows[-1] <= MAX_LISTS_IN_A_WINDOW


def test_a_server_that_kept_the_watches_gets_no_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lists_per_window(0.0, "resumed", monkeypatch) == []


def test_a_reclaimed_node_retries_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, away = VirtualLoop(), 600.0
    monkeypatch.setattr(reflector, "time", SimpleNamespace(monotonic=lambda: loop.now))
    urgent = asyncio.Event()

    async def main() -> None:
        api: Any = Server(loop, away, "gone")
        agent = SliceReflector(
            api,
            SliceStore(),
            node="n",
            driver="d",
            on_external_change=lambda _: None,
            caught_up=lambda: None,
            urgent=urgent.is_set,
        )
        task = asyncio.create_task(agent.run())
        await asyncio.sleep(BREAK_S + away - 5)
        urgent.set()
        agent.expedite()  # the present delay is up to 30 s
        await asyncio.sleep(5)
        assert agent.lag_s > away - 1, "the server is still away"
        await asyncio.sleep(2 * URGENT_RETRY_S + 0.1)  # an expired watch, then a list
        assert agent.lag_s == 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()

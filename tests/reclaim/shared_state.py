"""Agents of a rolling update with one saved reclaim state, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.signal import Signal, SignalSink
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.state_file import StateFile
from dra_agent.retry import Backoff
from eventually import DEADLINE_S, eventually_async

BOOT = "boot"


class Source:
    """A source of which each agent has its own; the test sets its events."""

    names = ("cloud",)

    def __init__(self) -> None:
        self.sink: SignalSink | None = None

    async def run(self, sink: SignalSink) -> None:
        self.sink = sink
        await asyncio.Event().wait()

    async def released(self) -> None:
        pass

    async def report(self, *events: str) -> None:
        sink = await eventually_async(lambda: self.sink)
        assert sink is not None
        sink.observed("cloud", [Signal("cloud", "notice", event, "w") for event in events])


class Agents:
    """The agents on one state directory, by their names; the last of `registered` is the newest."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self.running: dict[str, ReclaimService] = {}
        self.registered: list[str] = []
        self.sources: dict[str, Source] = {}

    def register(self, name: str) -> None:
        """From now on this one is the newest."""
        self.registered.append(name)

    def read(self, name: str) -> None:
        """Read the saved state."""
        self.sources[name] = Source()
        retries = Backoff(first=0.01, longest=0.01, spread=0.0)
        self.running[name] = ReclaimService(
            self._state_dir,
            BOOT,
            [self.sources[name]],
            is_newest=lambda: self.registered[-1:] == [name],
            retries=retries,
        )

    async def start(self, name: str) -> ReclaimService:
        if name not in self.registered:
            self.register(name)
        if name not in self.running:
            self.read(name)
        await self.running[name].start()
        return self.running[name]

    async def end(self, name: str) -> None:
        """End as after SIGKILL, as far as other agents see it."""
        self.registered.remove(name)
        if (ended := self.running.pop(name, None)) is not None:
            await ended.stop()

    async def follow(self) -> None:
        """Each follows the other, as at its interval, until there is nothing to follow."""
        for _ in range(3):
            for agent in self.running.values():
                await agent.follow_other_agents()

    async def stop(self) -> None:
        for agent in self.running.values():
            await agent.stop()

    def saved(self) -> ReclaimState:
        return StateFile(self._state_dir).load(BOOT)


def requested(state: ReclaimState) -> str:
    """Return the description of the operator's signal, "" without one."""
    return next((one.signal.description for one in state.active if one.signal.source == "operator"), "")


async def request(agent: ReclaimService, description: str) -> None:
    await agent.begin("notice", deadline=None, description=description)


def run(tmp_path: Path, scenario: Callable[[Agents], Awaitable[None]]) -> None:
    async def bounded() -> None:
        agents = Agents(tmp_path)
        async with asyncio.timeout(DEADLINE_S):
            try:
                await scenario(agents)
            finally:
                await agents.stop()

    asyncio.run(bounded())

"""Somebody who listens to sources and remembers what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from dra_agent.reclaim.signal import Signal, SignalSource
from dra_agent.reclaim.signals.polling import PollSchedule
from eventually import DEADLINE_S, eventually_async


@dataclass
class Listener:
    """Everything that a source reported, in order."""

    seen_: dict[str, list[Sequence[Signal]]] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def observed(self, source: str, readings: Sequence[Signal]) -> None:
        self.seen_.setdefault(source, []).append(tuple(readings))

    def failed(self, source: str, why: str) -> None:
        self.failures.append((source, why))

    def now(self, source: str) -> Sequence[Signal] | None:
        return self.seen_[source][-1] if source in self.seen_ else None

    def notices(self) -> list[Signal]:
        return [r for looks in self.seen_.values() for look in looks for r in look if r.kind == "notice"]

    async def until(self, what: Callable[[], object], *, within: float = DEADLINE_S) -> None:
        """Wait for it; the readings so far explain why it did not come."""
        await eventually_async(what, lambda: str(self.seen_), within=within)


Story = Callable[[Listener], Awaitable[None]]


def listen(source: SignalSource, story: Story) -> Listener:
    """Run a source while a story unfolds."""
    listener = Listener()

    async def play() -> None:
        task = asyncio.create_task(source.run(listener))
        try:
            await story(listener)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())
    return listener


def is_due(deadline: datetime | None, seconds: float, since: datetime) -> bool:
    """Whether a deadline is so long after some moment from then to now; services tell whole seconds."""
    assert deadline is not None
    usual, second = timedelta(seconds=seconds), timedelta(seconds=1)
    return since + usual - second <= deadline <= datetime.now(UTC) + usual + second


def quick(every: float) -> PollSchedule:
    """The real paces, a hundred times as fast."""
    return PollSchedule(every / 100)

"""A SignalSink that records the signals of sources."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from dra_agent.reclaim.signal import Signal, SignalSource
from dra_agent.reclaim.signals.polling import PollSchedule
from eventually import DEADLINE_S, eventually_async


@dataclass
class RecordingSink:
    """Every report of a source, in order."""

    signals: dict[str, list[Sequence[Signal]]] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def observed(self, source: str, signals: Sequence[Signal]) -> None:
        self.signals.setdefault(source, []).append(tuple(signals))

    def failed(self, source: str, error: str) -> None:
        self.failures.append((source, error))

    def latest(self, source: str) -> Sequence[Signal] | None:
        return self.signals[source][-1] if source in self.signals else None

    def notices(self) -> list[Signal]:
        return [
            signal_
            for reports in self.signals.values()
            for report in reports
            for signal_ in report
            if signal_.kind == "notice"
        ]

    async def wait_until(self, condition: Callable[[], object], *, within: float = DEADLINE_S) -> None:
        """Wait for the condition; the failure shows the recorded signals."""
        await eventually_async(condition, lambda: str(self.signals), within=within)


Scenario = Callable[[RecordingSink], Awaitable[None]]


def run_source(source: SignalSource, scenario: Scenario) -> RecordingSink:
    """Run a source during a scenario, and return the recorded signals."""
    sink = RecordingSink()

    async def run() -> None:
        task = asyncio.create_task(source.run(sink))
        try:
            await scenario(sink)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return sink


def is_due(deadline: datetime | None, seconds: float, since: datetime) -> bool:
    """Return whether a deadline is `seconds` after a time between `since` and now; services report whole seconds."""
    assert deadline is not None
    duration, second = timedelta(seconds=seconds), timedelta(seconds=1)
    return since + duration - second <= deadline <= datetime.now(UTC) + duration + second


def fast_schedule(every: float) -> PollSchedule:
    """Return the production schedule with intervals divided by 100."""
    return PollSchedule(every / 100)

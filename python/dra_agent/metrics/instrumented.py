"""The preparer with a stopwatch: every request is counted, timed and watched over."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from dra_agent.agent.liveness import LivenessMonitor
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.prepare import PreparedDevice, Preparer

MAX_REASON_LENGTH = math.inf
"""Seconds that one request may take before the agent counts as stuck: one that hangs in a driver is that claim's
trouble. A restart would not end it, and would take the agent from every other claim of the node."""


class RequestMetrics(Protocol):
    """Who wants to know."""

    def inflight(self) -> AbstractContextManager[Any]:
        """Count a request while it runs."""
        ...

    def request(self, operation: str, result: str, seconds: float) -> None:
        """Note a request that has ended."""
        ...


class InstrumentedPreparer:
    """A preparer; see dra_agent.prepare.Preparer."""

    def __init__(self, preparer: Preparer, pulse: LivenessMonitor, record: RequestMetrics | None) -> None:
        self._preparer = preparer
        self._pulse = pulse
        self._record = record

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[PreparedDevice]:
        """Prepare a claim."""
        with self._measure("prepare"):
            return self._preparer.prepare(claim, deadline)

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Release a claim."""
        with self._measure("unprepare"):
            self._preparer.unprepare(uid, deadline)

    def _measure(self, operation: str) -> _Measured:
        return _Measured(operation, self._pulse, self._record)


class _Measured:
    def __init__(self, operation: str, pulse: LivenessMonitor, record: RequestMetrics | None) -> None:
        self._operation = operation
        self._record = record
        self._working = pulse.working(operation, MAX_REASON_LENGTH)
        self._inflight = nullcontext() if record is None else record.inflight()

    def __enter__(self) -> None:
        self._start = time.perf_counter()
        self._working.__enter__()
        self._inflight.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._inflight.__exit__(None, None, None)
        self._working.__exit__(None, None, None)
        if self._record is not None:
            self._record.request(self._operation, _result(error), time.perf_counter() - self._start)


def _result(error: BaseException | None) -> str:
    match error:
        case None:
            return "ok"
        case RetryableError():
            return "retryable"
        case PermanentError():
            return "permanent"
        case _:
            return "defect"

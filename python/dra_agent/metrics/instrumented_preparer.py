"""The preparer that counts and times requests, and reports running ones.

It is separate from the registry, which only agents with metrics import.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.prepare import ClaimPreparer

if TYPE_CHECKING:
    from dra_agent.metrics.registry import Metrics

REQUEST_TIMEOUT_S = math.inf
"""Seconds after which a request counts as hung in the liveness check: never. A restart of the agent does not end a call
that hangs in a driver, and interrupts every other claim of the node."""


class CallMonitor(Protocol):
    """Monitors running calls. A protocol, because `LivenessMonitor` of the agent is in a layer above."""

    def working(self, operation: str, limit_s: float) -> AbstractContextManager[None]:
        """Run a call that takes less than `limit_s` seconds."""
        ...


class InstrumentedPreparer:
    """Records the duration and result of each request to a preparer, and monitors running requests."""

    def __init__(self, preparer: ClaimPreparer, monitor: CallMonitor, metrics: Metrics | None) -> None:
        self._preparer = preparer
        self._monitor = monitor
        self._metrics = metrics

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim."""
        with _Measured("prepare", self._monitor, self._metrics):
            return self._preparer.prepare(claim, deadline)

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Release a claim."""
        with _Measured("unprepare", self._monitor, self._metrics):
            self._preparer.unprepare(uid, deadline)


class _Measured:
    def __init__(self, operation: str, monitor: CallMonitor, metrics: Metrics | None) -> None:
        self._operation = operation
        self._metrics = metrics
        self._working = monitor.working(operation, REQUEST_TIMEOUT_S)
        self._inflight = nullcontext() if metrics is None else metrics.inflight()

    def __enter__(self) -> None:
        self._start = time.perf_counter()
        self._working.__enter__()
        self._inflight.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._inflight.__exit__(None, None, None)
        self._working.__exit__(None, None, None)
        if self._metrics is not None:
            self._metrics.request(self._operation, _result(error), time.perf_counter() - self._start)


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

"""The thread that exports: metrics at an interval, spans soon after they end, and both slower while it fails.

No other thread waits for it. What the collector does not accept in time is dropped and counted.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from dra_agent.deadline import Deadline
from dra_agent.otlp.encoding import (
    StartOf,
    encode_metrics,
    encode_spans,
    rejected_points,
    rejected_spans,
    resource,
)
from dra_agent.otlp.sender import METRICS_PATH, TRACES_PATH, Sender, SendError
from dra_agent.printable import printable
from dra_agent.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.core import Metric

    from dra_agent.otlp.spans import SpanQueue

log = logging.getLogger(__name__)

SPAN_INTERVAL_S = 5.0
"""Seconds between two exports of spans."""
MAX_BATCH_SPANS = 512
"""Spans of one request: about 100 KiB."""
STOP_TIMEOUT_S = 2.0
"""Seconds for the last export."""
FIRST_DELAY_S, MAX_DELAY_S = 1.0, 60.0
"""Delays after failures, unless the collector requests a longer one."""
SIGNALS = ("metrics", "traces")
RESULTS = ("ok", "failed")


class ExportStats(msgspec.Struct, frozen=True):
    """Counts since the start."""

    exports: dict[tuple[str, str], int]
    """Requests by signal and result."""
    dropped_spans: int
    queued_spans: int


class _Signal:
    """When one signal is exported next. The two are independent: a collector may accept only one of them."""

    def __init__(self, name: str, interval_s: float, due_s: float, jitter: Callable[[], float]) -> None:
        self.name = name
        self.exports = dict.fromkeys(RESULTS, 0)
        self.failure = ""
        """Why the last export failed."""
        self.rejection = ""
        """What the collector rejected of the last one."""
        self.due_s = due_s
        self._interval_s = interval_s
        self._backoff = Backoff(first=FIRST_DELAY_S, longest=MAX_DELAY_S, jitter=jitter)

    def exported(self, now_s: float) -> None:
        if self.failure:
            log.info("telemetry is exported again", extra={"signal": self.name})
        self.failure = ""
        self._backoff.reset()
        self.due_s = now_s + self._interval_s

    def failed(self, error: SendError, now_s: float) -> None:
        if str(error) != self.failure:
            log.warning("telemetry not exported", extra={"signal": self.name, "reason": str(error)})
        self.failure = str(error)
        self.due_s = now_s + self._backoff.delay(error)

    def rejected(self, items: int, reason: str) -> None:
        """Log what the collector did not accept of a request, once for each reason."""
        if items and reason != self.rejection:
            extra = {"signal": self.name, "items": items, "reason": printable(reason)}
            log.warning("the collector rejected a part of the telemetry", extra=extra)
        self.rejection = reason if items else ""


class Exporter:
    """Exports from `start` to `stop`."""

    def __init__(
        self,
        sender: Sender,
        attributes: Mapping[str, str],
        *,
        interval_s: float,
        timeout_s: float,
        collect: Callable[[], Iterable[Metric]] | None,
        start_of: Callable[[], StartOf],
        spans: SpanQueue | None,
        names_claims: bool,
        now: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`collect` returns the metrics, `start_of` the starts of counters; None: no metrics, or no spans.

        `jitter` returns numbers from 0 up to 1.
        """
        self._sender = sender
        self._resource = resource(attributes)
        self._timeout_s = timeout_s
        self._collect = collect
        self._start_of = start_of
        self._spans = spans
        self._names_claims = names_claims
        self._now = now
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        # Agents that start together do not export together.
        self._metrics_signal = _Signal("metrics", interval_s, now() + interval_s * jitter(), jitter)
        self._traces_signal = _Signal("traces", SPAN_INTERVAL_S, now(), jitter)
        self._exports: list[tuple[_Signal, Callable[[Deadline], None]]] = []
        if spans is not None:
            self._exports.append((self._traces_signal, self._export_spans))
        if collect is not None:
            self._exports.append((self._metrics_signal, self._export_metrics))

    @property
    def stats(self) -> ExportStats:
        """The counts."""
        queue = self._spans
        return ExportStats(
            {
                (signal.name, result): count
                for signal in (self._metrics_signal, self._traces_signal)
                for result, count in signal.exports.items()
            },
            0 if queue is None else queue.dropped,
            0 if queue is None else len(queue),
        )

    def start(self) -> None:
        """Start to export."""
        self._thread.start()

    def stop(self) -> None:
        """Export what is left of each signal that did not fail last; waits for `STOP_TIMEOUT_S` at most."""
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)
        if self._spans is not None and (left := len(self._spans)):
            log.warning("spans were not exported before the stop, and are lost", extra={"spans": left})

    def export_due(self) -> float:
        """Export what is due, and return the seconds until more is. Called on one thread."""
        for signal, export in self._exports:
            if self._now() >= signal.due_s:
                self._export(signal, export, Deadline.of(self._timeout_s))
        return max(0.0, min(signal.due_s for signal, _ in self._exports) - self._now())

    def _run(self) -> None:
        while not self._stopping.wait(self.export_due()):
            pass
        deadline = Deadline.of(STOP_TIMEOUT_S * 0.75)
        for signal, export in self._exports:
            if not signal.failure:
                self._export(signal, export, deadline)

    def _export(self, signal: _Signal, export: Callable[[Deadline], None], deadline: Deadline) -> None:
        try:
            export(deadline)
        except SendError as error:
            signal.failed(error, self._now())
        except Exception:  # a defect here must not end the exports of a running agent
            log.exception("telemetry not exported")
            signal.exported(self._now())
        else:
            signal.exported(self._now())

    def _export_spans(self, deadline: Deadline) -> None:
        queue = self._spans
        assert queue is not None
        while batch := queue.take(MAX_BATCH_SPANS):
            try:
                response = self._post(self._traces_signal, TRACES_PATH, encode_spans(batch, self._resource), deadline)
            except SendError as error:
                if error.is_retryable:
                    queue.restore(batch)
                else:
                    queue.count_dropped(len(batch))
                raise
            rejected, reason = rejected_spans(response)
            queue.count_dropped(rejected)
            self._traces_signal.rejected(rejected, reason)

    def _export_metrics(self, deadline: Deadline) -> None:
        assert self._collect is not None
        families, start_of, now_ns = self._collect(), self._start_of(), time.time_ns()  # noqa: TID251 - a moment that is exported as a metric
        body, points = encode_metrics(families, self._resource, start_of, now_ns, names_claims=self._names_claims)
        if points:
            response = self._post(self._metrics_signal, METRICS_PATH, body, deadline)
            self._metrics_signal.rejected(*rejected_points(response))

    def _post(self, signal: _Signal, path: str, body: bytes, deadline: Deadline) -> bytes:
        try:
            response = self._sender.post(path, body, deadline)
        except SendError:
            signal.exports["failed"] += 1
            raise
        signal.exports["ok"] += 1
        return response

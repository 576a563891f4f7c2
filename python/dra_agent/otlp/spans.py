"""Spans of calls: created on the threads that work, and queued when they end. Nothing here waits or does I/O.

The current span is a context variable: of a thread, and of a task of the event loop.
"""

from __future__ import annotations

import random
import threading
import time
from asyncio import CancelledError
from collections import deque
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Literal

from dra_agent.errors import PermanentError, RetryableError
from dra_agent.otlp.trace_context import RemoteParent

MAX_QUEUED_SPANS = 2048
"""About 3 MiB. A prepare has six spans."""

Kind = Literal["internal", "server"]
Attribute = str | int | bool | tuple[str, ...]


class SpanQueue:
    """Ended spans that are not exported yet. The oldest is dropped if there are too many. Safe for threads."""

    def __init__(self, limit: int = MAX_QUEUED_SPANS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._spans: deque[Span] = deque()
        self.dropped = 0
        """Spans that were never exported."""

    def __len__(self) -> int:
        return len(self._spans)

    def put(self, span: Span) -> None:
        """Add an ended span."""
        with self._lock:
            if len(self._spans) >= self._limit:
                self._spans.popleft()
                self.dropped += 1
            self._spans.append(span)

    def take(self, limit: int) -> list[Span]:
        """Remove the oldest spans, at most `limit`, and return them."""
        with self._lock:
            return [self._spans.popleft() for _ in range(min(limit, len(self._spans)))]

    def restore(self, spans: list[Span]) -> None:
        """Put spans back that were not exported; those without room are dropped."""
        with self._lock:
            room = max(0, self._limit - len(self._spans))
            kept = spans[len(spans) - room :] if room < len(spans) else spans
            self.dropped += len(spans) - len(kept)
            self._spans.extendleft(reversed(kept))

    def count_dropped(self, spans: int) -> None:
        """Count spans that were taken, and that the collector rejected."""
        with self._lock:
            self.dropped += spans


class Span:
    """One span, and a context: what begins in it is its child, and an error that leaves it is its error."""

    __slots__ = (
        "_anchor_ns",
        "_queue",
        "_token",
        "attributes",
        "end_ns",
        "error",
        "is_parent_remote",
        "kind",
        "message",
        "name",
        "parent",
        "parent_id",
        "span_id",
        "start_ns",
        "state",
        "trace_id",
    )

    def __init__(
        self, queue: SpanQueue, name: str, kind: Kind, parent: Span | None, remote: RemoteParent | None = None
    ) -> None:
        self._queue = queue
        self._anchor_ns: int
        self.trace_id: bytes
        self.parent_id: bytes
        self.state: str
        self._token: Token[Span | None] | None = None
        self.name = name
        self.kind: Kind = kind
        self.parent = parent
        self.span_id = _identifier(8)
        self.attributes: dict[str, Attribute] = {}
        self.error = ""
        """Class of the error: retryable, permanent, defect, cancelled, late or refused; empty without one."""
        self.message = ""
        self.end_ns = 0
        self.is_parent_remote = parent is None and remote is not None
        if parent is not None:
            self.trace_id, self.parent_id, self.state = parent.trace_id, parent.span_id, parent.state
            # Children use the clock of the first span, so that a step of the wall clock does not move them out of it.
            self._anchor_ns = parent._anchor_ns  # noqa: SLF001 - another class of this module
        else:
            # perf_counter_ns is monotonic; spans of one trace differ by real durations.
            self._anchor_ns = time.time_ns() - time.perf_counter_ns()  # noqa: TID251 - moments that are exported as spans
            self.trace_id = _identifier(16) if remote is None else remote.trace_id
            self.parent_id = b"" if remote is None else remote.span_id
            self.state = "" if remote is None else remote.state
        self.start_ns = self.now_ns()

    def now_ns(self) -> int:
        """Return the time for this trace, in nanoseconds since the epoch."""
        return self._anchor_ns + time.perf_counter_ns()

    def child(self, name: str) -> Span:
        """Begin a span in this one."""
        return Span(self._queue, name, "internal", self)

    def phase(self, name: str, seconds: float) -> None:
        """Add a child that ends now, and took `seconds`."""
        ended = self.child(name)
        ended.end_ns = ended.start_ns
        ended.start_ns = max(self.start_ns, ended.end_ns - int(seconds * 1e9))
        self._queue.put(ended)

    def failed(self, error: str, message: str = "") -> None:
        """Record the error of this span; those around it get its class."""
        self.error, self.message = error, message
        if self.parent is not None:
            self.parent.failed(error)

    def end(self) -> None:
        """End it, and have it exported."""
        self.end_ns = self.now_ns()
        self._queue.put(self)

    def __enter__(self) -> Span:
        self._token = current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        current.reset(self._token)
        if error is not None and not self.error:
            self.failed(error_class(error))
        self.end()


class resumed:  # noqa: N801 - a context manager, used as a function
    """Makes a span current on another thread, without ending it."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> None:
        self._token = current.set(self._span)

    def __exit__(self, *error: object) -> None:
        current.reset(self._token)


current: ContextVar[Span | None] = ContextVar("span", default=None)
"""The span that the calling thread or task works in."""


class Tracer:
    """Begins spans."""

    def __init__(self, queue: SpanQueue, *, names_claims: bool) -> None:
        """`names_claims`: whether spans have the namespace, name and uid of a claim."""
        self.queue = queue
        self.names_claims = names_claims

    def begin(self, name: str, kind: Kind = "internal", remote: RemoteParent | None = None) -> Span:
        """Begin a span in that of the caller, or in a new trace."""
        return Span(self.queue, name, kind, None, remote)

    def observe_phase(self, phase: str, seconds: float) -> None:
        """Add a phase to the current span, if there is one."""
        if (span := current.get()) is not None:
            span.phase(phase, seconds)

    def describe(self, span: Span, uid: str, namespace: str = "", name: str = "") -> None:
        """Add what identifies a claim, where spans may have it."""
        if self.names_claims:
            identity = {"k8s.namespace.name": namespace, "dra_agent.claim.name": name, "dra_agent.claim.uid": uid}
            span.attributes.update({key: value for key, value in identity.items() if value})


def error_class(error: BaseException) -> str:
    """Return the class of an error, as the label `result` of dra_agent_dra_requests_total has it; or "cancelled"."""
    match error:
        case RetryableError():
            return "retryable"
        case PermanentError():
            return "permanent"
        case CancelledError():
            return "cancelled"
        case _:
            return "defect"


def _identifier(length: int) -> bytes:
    """Return a random identifier; one of zeros is invalid."""
    return (random.getrandbits(length * 8) or 1).to_bytes(length, "big")

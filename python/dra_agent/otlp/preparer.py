"""Preparers with spans: one begins them, the other continues the span of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.otlp.spans import Span, Tracer, current, resumed
from dra_agent.prepare import ClaimPreparer


class TracedPreparer:
    """Begins a span for each call; for claims of standalone mode."""

    def __init__(self, preparer: ClaimPreparer, tracer: Tracer) -> None:
        self._preparer = preparer
        self._tracer = tracer

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim."""
        metadata = claim["metadata"]
        with self._tracer.begin("prepare") as span:
            self._tracer.describe(span, metadata["uid"], metadata.get("namespace", ""), metadata.get("name", ""))
            devices = self._preparer.prepare(claim, deadline)
            describe_devices(span, devices)
            return devices

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim."""
        with self._tracer.begin("unprepare") as span:
            self._tracer.describe(span, uid)
            return self._preparer.unprepare(uid, deadline)


class ResumingPreparer:
    """Continues the span of the call for a claim, which began on another thread."""

    def __init__(self, preparer: ClaimPreparer, span_of: Callable[[str], Span | None]) -> None:
        """`span_of` returns it by the claim's uid; None: the call has no span, or works on its own thread."""
        self._preparer = preparer
        self._span_of = span_of

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim."""
        if current.get() is not None or (span := self._span_of(claim["metadata"]["uid"])) is None:
            return self._preparer.prepare(claim, deadline)
        with resumed(span):
            return self._preparer.prepare(claim, deadline)

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim."""
        if current.get() is not None or (span := self._span_of(uid)) is None:
            return self._preparer.unprepare(uid, deadline)
        with resumed(span):
            return self._preparer.unprepare(uid, deadline)


def describe_devices(span: Span, devices: Sequence[ClaimDevice]) -> None:
    """Add the number of devices of a claim and their pools."""
    span.attributes["dra_agent.devices"] = len(devices)
    if devices:
        span.attributes["dra_agent.pools"] = tuple(sorted({device.pool for device in devices}))

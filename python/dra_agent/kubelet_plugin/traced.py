"""Spans of the kubelet's calls: one for each call, below it one for each claim, and below that its phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.errors import AgentError
from dra_agent.kubelet_plugin.claim_executor import ClaimSlot
from dra_agent.kubelet_plugin.claim_fetch import UnreadError
from dra_agent.kubelet_plugin.handlers import Context
from dra_agent.kubelet_plugin.late_response import AnsweredError
from dra_agent.kubelet_plugin.operations import Operation, Result
from dra_agent.otlp import trace_context
from dra_agent.otlp.preparer import describe_devices
from dra_agent.otlp.spans import Span, Tracer, current, error_class

_NAMES = {"preparing": "prepare", "unpreparing": "unprepare"}


class CallTracing:
    """The spans of one service."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.claims: dict[str, Span] = {}
        """Spans of claims that are worked on away from the thread of their call, by uid."""

    def operation(self, operation: Operation) -> Operation:
        """Return the operation with a span for each claim."""
        return _TracedOperation(operation, self)

    def handler(
        self, handle: Callable[[Any, Context], Any], service: str, method: str
    ) -> Callable[[Any, Context], Any]:
        """Return the handler of a method with a span for each call, in the trace of its caller."""

        def traced(message: Any, context: Context) -> Any:
            caller = _caller(context)
            if caller is not None and not caller.is_sampled:
                return handle(message, context)
            span = self.tracer.begin(f"{service}/{method}", "server", caller)
            span.attributes.update({"rpc.system": "grpc", "rpc.service": service, "rpc.method": method})
            span.attributes["dra_agent.claims"] = len(getattr(message, "claims", ()))
            with span:
                try:
                    return handle(message, context)
                except AnsweredError:
                    span.failed("late")
                    raise
                except Exception:
                    if not span.error:
                        span.failed("refused")  # by `abort`: a claim's own error is in its response
                    raise

        return traced


class _TracedOperation(Operation):
    """See Operation. Without a current span, the caller does not record its trace."""

    def __init__(self, operation: Operation, tracing: CallTracing) -> None:
        self._operation = operation
        self._tracing = tracing
        self.method = operation.method  # type: ignore[misc]  # each of the two operations has its own
        self.name = operation.name  # type: ignore[misc]

    def response(self, results: dict[str, Result]) -> Any:
        return self._operation.response(results)

    async def on_loop(self, claim: ClaimRef, deadline_s: float, tried: AgentError | None) -> Sequence[ClaimDevice]:
        if current.get() is None:
            return await self._operation.on_loop(claim, deadline_s, tried)
        with self._begin(claim) as span:
            # A retry that joins the work of an earlier call has no phases: those are in the earlier call's span.
            owns = self._tracing.claims.setdefault(claim.uid, span) is span
            try:
                devices = await self._operation.on_loop(claim, deadline_s, tried)
            except AgentError as error:
                self._failed(span, error)
                raise
            finally:
                if owns:
                    del self._tracing.claims[claim.uid]
            self._describe(span, devices)
            return devices

    def on_thread(self, claim: ClaimRef, deadline_s: float, slot: ClaimSlot) -> Sequence[ClaimDevice]:
        if current.get() is None:
            return self._operation.on_thread(claim, deadline_s, slot)
        with self._begin(claim) as span:
            try:
                devices = self._operation.on_thread(claim, deadline_s, slot)
            except UnreadError:
                span.error = "retryable"  # of this attempt; the claim is read again on the event loop
                raise
            except AgentError as error:
                self._failed(span, error)
                raise
            self._describe(span, devices)
            return devices

    def _begin(self, claim: ClaimRef) -> Span:
        parent = current.get()
        assert parent is not None
        span = parent.child(_NAMES[self.name])
        self._tracing.tracer.describe(span, claim.uid, claim.namespace, claim.name)
        return span

    def _describe(self, span: Span, devices: Sequence[ClaimDevice]) -> None:
        if self.name == "preparing":
            describe_devices(span, devices)

    def _failed(self, span: Span, error: AgentError) -> None:
        # Messages have the names of claims.
        span.failed(error_class(error), str(error) if self._tracing.tracer.names_claims else "")


def _caller(context: Context) -> trace_context.RemoteParent | None:
    """Return the span of the caller, from the metadata of the call."""
    found: dict[str, str] = {}
    for name, value in context.invocation_metadata() or ():
        if name in ("traceparent", "tracestate") and isinstance(value, str):
            if name == "traceparent" and name in found:
                return None  # more than one is invalid
            found[name] = f"{found[name]},{value}" if name in found else value
    return trace_context.parse(found.get("traceparent", ""), found.get("tracestate", ""))

"""The DRAPlugin service: prepare and unprepare for the kubelet.

A response has exactly the claims of the request, each with its devices or its own error.

A call with one claim is served on its own thread: it reads the claim and prepares it there. If that hangs, a watchdog
answers at the deadline, and the thread continues. All other calls wait for the event loop: those with several claims,
of a claim with work in progress, and of one that could not be read at the first attempt.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from typing import Any

import grpc

from dra_agent.claim import ClaimRef
from dra_agent.deadline import CALL_TIMEOUT_S
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.kubelet_plugin import late_response
from dra_agent.kubelet_plugin.call_watchdog import CallWatchdog
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor, ClaimSlot, still_running
from dra_agent.kubelet_plugin.claim_fetch import UnreadError
from dra_agent.kubelet_plugin.handlers import Context, RefusedError, abort, check_decoded, decoder, service, wait_for
from dra_agent.kubelet_plugin.interfaces import ClaimSource, PluginMetrics
from dra_agent.kubelet_plugin.operations import Operation, PendingPreparer, Prepare, Result, Unprepare
from dra_agent.kubelet_plugin.proto import dra_v1_pb2 as messages
from dra_agent.prepare import ClaimPreparer

log = logging.getLogger(__name__)

SPARE_S = 0.5
"""Minimum seconds between the response and the caller's deadline."""

MAX_CLAIMS = 1000
"""Claims in a call, many times what a pod can have: a larger one would block the event loop."""


class _Call:
    """A call of the kubelet, for its log and its response."""

    def __init__(self, operation: Operation, number: int) -> None:
        self._operation = operation
        self._number = number
        self._began = time.perf_counter()

    def response(self, results: dict[str, Result]) -> Any:
        """Log the call, and return its response."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "call completed",
                extra={
                    "method": self._operation.method,
                    "request": self._number,
                    "claims": len(results),
                    "failed": sum(isinstance(result, AgentError) for result in results.values()),
                    "seconds": round(time.perf_counter() - self._began, 4),
                },
            )
        return self._operation.response(results)

    def failed(self, claim: ClaimRef, error: BaseException) -> AgentError:
        """Log the error of a claim, and return the one for the kubelet."""
        extra = {"method": self._operation.method, "request": self._number, "claim": claim.uid}
        if isinstance(error, AgentError):
            log.warning("call failed for a claim", extra={**extra, "reason": str(error)})
            return error
        # One claim's bug must not fail its neighbours, or the server.
        log.error("call failed for a claim", extra=extra, exc_info=error)
        return RetryableError(f"unexpected {type(error).__name__}: {error}", where=str(claim))


class DraService:
    """Serves NodePrepareResources and NodeUnprepareResources."""

    def __init__(
        self,
        claims: ClaimSource,
        executor: ClaimExecutor,
        metrics: PluginMetrics | None = None,
    ) -> None:
        """Create it on the event loop."""
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._preparer = PendingPreparer()
        self._watchdog = CallWatchdog()
        self._numbers = itertools.count(1)
        self._operations: tuple[Operation, ...] = (
            Prepare(claims, executor, self._preparer, metrics),
            Unprepare(executor, self._preparer),
        )

    def set_preparer(self, preparer: ClaimPreparer) -> None:
        """Start to prepare: earlier calls wait for this."""
        self._preparer.set(preparer)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handlers for a gRPC server."""
        return service(messages, "DRAPlugin", {one.method: self._handler(one) for one in self._operations})

    def _handler(self, operation: Operation) -> grpc.RpcMethodHandler[Any, Any]:
        kind = getattr(messages, f"{operation.method}Request")

        def handle(message: Any, context: Context) -> Any:
            check_decoded(message, kind, context)
            if len(message.claims) > MAX_CLAIMS:
                abort(context, RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"more than {MAX_CLAIMS} claims"))
            call = _Call(operation, next(self._numbers))
            return self._response(call, operation, message.claims, context)

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=decoder(kind),
            response_serializer=getattr(messages, f"{operation.method}Response").SerializeToString,
        )

    def _response(self, call: _Call, operation: Operation, requested: Sequence[Any], context: Context) -> Any:
        remaining_s = context.time_remaining()
        timeout_s = CALL_TIMEOUT_S
        if remaining_s is not None:
            timeout_s = min(timeout_s, remaining_s - min(SPARE_S, remaining_s / 4))
        deadline_s = time.monotonic() + timeout_s
        tried: AgentError | None = None
        if len(requested) == 1 and self._preparer.is_set and late_response.is_possible(context):
            claim = ClaimRef(requested[0].uid, requested[0].namespace, requested[0].name)
            if (slot := self._executor.begin(claim.uid, operation.name)) is not None:
                try:
                    return call.response(
                        {claim.uid: self._on_caller_thread(call, slot, operation, claim, deadline_s, context)}
                    )
                except UnreadError as error:
                    tried = error.tried
        work = self._run_claims(call, operation, requested, deadline_s, tried)
        return call.response(wait_for(work, self._loop, context))

    async def _run_claims(
        self,
        call: _Call,
        operation: Operation,
        requested: Sequence[Any],
        deadline_s: float,
        tried: AgentError | None,
    ) -> dict[str, Result]:
        claims: dict[str, ClaimRef] = {}
        results: dict[str, Result] = {}
        for claim in requested:
            reference = ClaimRef(claim.uid, claim.namespace, claim.name)
            if claims.setdefault(reference.uid, reference) != reference:
                results[reference.uid] = PermanentError("is requested under two names", where=f"claim {reference.uid}")
        pending = [claim for uid, claim in claims.items() if uid not in results]

        async def one(claim: ClaimRef) -> Result:
            try:
                return await operation.on_loop(claim, deadline_s, tried)
            except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - logged and returned; of threads, also pyo3.PanicException
                return call.failed(claim, error)

        found = await asyncio.gather(*(one(claim) for claim in pending))
        results.update(zip((claim.uid for claim in pending), found, strict=True))
        return results

    def _on_caller_thread(
        self, call: _Call, slot: ClaimSlot, operation: Operation, claim: ClaimRef, deadline_s: float, context: Context
    ) -> Result:
        """Work on the calling thread. At the deadline the watchdog answers the call instead: AnsweredError."""

        def late() -> None:
            error = call.failed(claim, still_running(operation.name, claim.uid))
            late_response.respond(context, call.response({claim.uid: error}).SerializeToString())

        watched: object = None
        unread: UnreadError | None = None
        result: Result = ()
        try:
            with slot:
                watched = self._watchdog.add(deadline_s, late)
                result = operation.on_thread(claim, deadline_s, slot)
                slot.result(result)
        except UnreadError as error:
            unread = error
        except BaseException as error:  # noqa: BLE001 - logged and returned; gRPC has no response to pyo3.PanicException
            result = call.failed(claim, error)
        # One side has the response: a success is neither logged as late nor sent after an error.
        if watched is not None and not self._watchdog.remove(watched):
            raise late_response.AnsweredError
        if unread is not None:
            raise unread
        return result

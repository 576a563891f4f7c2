"""The DRAPlugin service: prepare and unprepare for the kubelet, in both versions, which differ in nothing but names.

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
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any

import grpc
import msgspec

from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.kubelet_plugin import late_response
from dra_agent.kubelet_plugin.call_watchdog import CallWatchdog
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor, Turn, still_running
from dra_agent.kubelet_plugin.claim_fetch import UnreadError, fetch, fetch_on_thread
from dra_agent.kubelet_plugin.handlers import Context, RefusedError, abort, check_decoded, decoder, service, wait_for
from dra_agent.kubelet_plugin.interfaces import ClaimSource, Object, PluginMetrics
from dra_agent.kubelet_plugin.proto import dra_v1_pb2, dra_v1beta1_pb2
from dra_agent.prepare import ClaimPreparer

log = logging.getLogger(__name__)

BUDGET_S = 40.0
"""Timeout of a call. The kubelet's timeout is 45 s, and it retries a minute or more later."""
FETCH_SHARE = 0.75
"""How much of it the API server may take; the rest is for the devices."""
SPARE_S = 0.5
"""Minimum seconds between the response and the caller's deadline."""

MAX_CLAIMS = 1000
"""Claims in a call, many times what a pod can have: a larger one would block the event loop."""
MAX_ERROR_BYTES = 4096
"""Characters of an error; the kubelet puts it into an event of the pod."""

_VERSIONS: tuple[ModuleType, ...] = (dra_v1_pb2, dra_v1beta1_pb2)


Result = Sequence[ClaimDevice] | AgentError
Respond = Callable[[ModuleType, dict[str, Result]], Any]


class _Call:
    """A call of the kubelet, for its log and its response."""

    def __init__(self, method: str, number: int, encode: Callable[[dict[str, Result]], Any]) -> None:
        self.method = method
        self.number = number
        self._encode = encode
        self._began = time.perf_counter()

    def response(self, results: dict[str, Result]) -> Any:
        """Log the call, and return its response."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "call answered",
                extra={
                    "method": self.method,
                    "request": self.number,
                    "claims": len(results),
                    "failed": sum(isinstance(result, AgentError) for result in results.values()),
                    "seconds": round(time.perf_counter() - self._began, 4),
                },
            )
        return self._encode(results)

    def failed(self, claim: ClaimRef, error: BaseException) -> AgentError:
        """Log the error of a claim, and return the one for the kubelet."""
        extra = {"method": self.method, "request": self.number, "claim": claim.uid}
        if isinstance(error, AgentError):
            log.warning("call not done for a claim", extra={**extra, "reason": str(error)})
            return error
        # One claim's bug must not fail its neighbours, or the server.
        log.error("call not done for a claim", extra=extra, exc_info=error)
        return RetryableError(f"unexpected {type(error).__name__}: {error}", where=str(claim))


class _Operation:
    """Prepare or unprepare."""

    def __init__(
        self,
        method: str,
        name: str,
        respond: Respond,
        on_loop: Callable[[ClaimRef, float, AgentError | None], Awaitable[Sequence[ClaimDevice]]],
        on_thread: Callable[[ClaimRef, float, Turn], Sequence[ClaimDevice]],
    ) -> None:
        self.method = method
        self.name = name
        self.respond = respond
        self.on_loop = on_loop
        self.on_thread = on_thread


class DraService:
    """Serves NodePrepareResources and NodeUnprepareResources."""

    def __init__(self, claims: ClaimSource, executor: ClaimExecutor, metrics: PluginMetrics | None = None) -> None:
        self._claims = claims
        self._executor = executor
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._preparing: asyncio.Future[ClaimPreparer] = self._loop.create_future()
        self._watchdog = CallWatchdog()
        self._numbers = itertools.count(1)
        self._prepare = _Operation(
            "NodePrepareResources", "preparing", _prepared, self._prepare_on_loop, self._prepare_on_thread
        )
        self._unprepare = _Operation(
            "NodeUnprepareResources", "unpreparing", _unprepared, self._unprepare_on_loop, self._unprepare_on_thread
        )

    def set_preparer(self, preparing: ClaimPreparer) -> None:
        """Start to prepare: earlier calls wait for this."""
        self._preparing.set_result(preparing)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the handlers for a gRPC server."""
        operations = (self._prepare, self._unprepare)
        return [
            service(messages, "DRAPlugin", {one.method: self._handler(messages, one) for one in operations})
            for messages in _VERSIONS
        ]

    def _handler(self, messages: ModuleType, operation: _Operation) -> grpc.RpcMethodHandler[Any, Any]:
        kind = getattr(messages, f"{operation.method}Request")

        def handle(message: Any, context: Context) -> Any:
            check_decoded(message, kind, context)
            if len(message.claims) > MAX_CLAIMS:
                abort(context, RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"more than {MAX_CLAIMS} claims"))
            call = _Call(operation.method, next(self._numbers), lambda results: operation.respond(messages, results))
            return self._response(call, operation, message.claims, context)

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=decoder(kind),
            response_serializer=getattr(messages, f"{operation.method}Response").SerializeToString,
        )

    def _response(self, call: _Call, operation: _Operation, requested: Sequence[Any], context: Context) -> Any:
        remaining_s = context.time_remaining()
        budget = BUDGET_S if remaining_s is None else min(BUDGET_S, remaining_s - min(SPARE_S, remaining_s / 4))
        deadline_s = time.monotonic() + budget
        tried: AgentError | None = None
        if len(requested) == 1 and self._preparing.done() and late_response.is_possible(context):
            claim = ClaimRef(requested[0].uid, requested[0].namespace, requested[0].name)
            if (turn := self._executor.begin(claim.uid, operation.name)) is not None:
                try:
                    return call.response({claim.uid: self._in_turn(call, turn, operation, claim, deadline_s, context)})
                except UnreadError as error:
                    tried = error.tried
        work = self._run_claims(call, operation, requested, deadline_s, tried)
        return call.response(wait_for(work, self._loop, context))

    async def _run_claims(
        self,
        call: _Call,
        operation: _Operation,
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

    def _in_turn(
        self, call: _Call, turn: Turn, operation: _Operation, claim: ClaimRef, deadline_s: float, context: Context
    ) -> Result:
        """Work on the calling thread. At the deadline the watchdog answers the call instead: AnsweredError."""

        def late() -> None:
            error = call.failed(claim, still_running(operation.name, claim.uid))
            late_response.respond(context, call.response({claim.uid: error}).SerializeToString())

        watched: object = None
        unread: UnreadError | None = None
        result: Result = ()
        try:
            with turn:
                watched = self._watchdog.add(deadline_s, late)
                result = operation.on_thread(claim, deadline_s, turn)
                turn.result(result)
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

    async def _prepare_on_loop(
        self, claim: ClaimRef, deadline_s: float, tried: AgentError | None
    ) -> Sequence[ClaimDevice]:
        began = time.perf_counter()
        fetched = await fetch(self._claims, claim, _fetch_deadline(deadline_s), tried=tried)
        if self._metrics is not None:
            self._metrics.observe_phase("fetch", time.perf_counter() - began)
        preparing = await self._ready(deadline_s)
        deadline = Deadline(deadline_s)
        return await self._executor.run(
            claim.uid, self._prepare.name, _key(fetched), lambda: preparing.prepare(fetched, deadline), deadline_s
        )

    def _prepare_on_thread(self, claim: ClaimRef, deadline_s: float, turn: Turn) -> Sequence[ClaimDevice]:
        began = time.perf_counter()
        fetched = fetch_on_thread(self._claims, claim, _fetch_deadline(deadline_s))
        if self._metrics is not None:
            self._metrics.observe_phase("fetch", time.perf_counter() - began)
        turn.joinable(_key(fetched))
        return self._preparing.result().prepare(fetched, Deadline(deadline_s))

    async def _unprepare_on_loop(
        self, claim: ClaimRef, deadline_s: float, tried: AgentError | None
    ) -> Sequence[ClaimDevice]:
        preparing = await self._ready(deadline_s)
        deadline = Deadline(deadline_s)
        await self._executor.run(
            claim.uid, self._unprepare.name, None, lambda: preparing.unprepare(claim.uid, deadline), deadline_s
        )
        return ()

    def _unprepare_on_thread(self, claim: ClaimRef, deadline_s: float, turn: Turn) -> Sequence[ClaimDevice]:
        turn.joinable(None)
        self._preparing.result().unprepare(claim.uid, Deadline(deadline_s))
        return ()

    async def _ready(self, deadline_s: float) -> ClaimPreparer:
        if not self._preparing.done():
            remaining_s = deadline_s - asyncio.get_running_loop().time()
            await asyncio.wait({self._preparing}, timeout=max(0.0, remaining_s))
        if not self._preparing.done():
            raise RetryableError("the agent is still starting", hint="wait until /readyz returns 200")
        return self._preparing.result()


def _prepared(messages: ModuleType, results: dict[str, Result]) -> Any:
    response = messages.NodePrepareResourcesResponse()
    for uid, result in results.items():
        if isinstance(result, AgentError):
            response.claims[uid].error = _text(result)
        else:
            response.claims[uid].devices.extend(_device(messages, item) for item in result)
    return response


def _unprepared(messages: ModuleType, results: dict[str, Result]) -> Any:
    response = messages.NodeUnprepareResourcesResponse()
    for uid, result in results.items():
        response.claims[uid].error = _text(result) if isinstance(result, AgentError) else ""
    return response


def _fetch_deadline(deadline_s: float) -> float:
    return deadline_s - max(0.0, deadline_s - time.monotonic()) * (1 - FETCH_SHARE)


def _key(claim: Object) -> bytes:
    """Return what a call must have in common with one that it joins."""
    return msgspec.json.encode(claim["status"]["allocation"])


def _device(messages: ModuleType, item: ClaimDevice) -> Any:
    return messages.Device(
        request_names=item.requests,
        pool_name=item.pool,
        device_name=item.device,
        cdi_device_ids=item.cdi_device_ids,
        share_id=item.share_id,
    )


def _text(error: AgentError) -> str:
    """Return a message that fits into the pod's event; never "", which means success."""
    return (str(error) or type(error).__name__)[:MAX_ERROR_BYTES]

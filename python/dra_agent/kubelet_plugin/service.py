"""The DRAPlugin service: prepare and unprepare for the kubelet, in both versions, which differ in nothing but names.

A response has exactly the claims of the request, each with its devices or its own error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError, Message

from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor
from dra_agent.kubelet_plugin.claim_fetch import fetch
from dra_agent.kubelet_plugin.interfaces import ClaimSource, PluginMetrics
from dra_agent.kubelet_plugin.proto import dra_v1_pb2, dra_v1beta1_pb2
from dra_agent.prepare import ClaimPreparer

log = logging.getLogger(__name__)

Unary = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]
Stream = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], AsyncIterator[Any]]


def unary(call: Unary, request: type[Message], response: type[Message]) -> grpc.RpcMethodHandler[Any, Any]:
    """Serve a method of one request and one response."""

    async def checked(message: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await _check(message, request, context)
        return await call(message, context)

    return grpc.unary_unary_rpc_method_handler(
        checked, request_deserializer=_decoder(request), response_serializer=response.SerializeToString
    )


def stream(call: Stream, request: type[Message], response: type[Message]) -> grpc.RpcMethodHandler[Any, Any]:
    """Serve a method of one request and many responses."""

    async def checked(message: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        await _check(message, request, context)
        async for result in call(message, context):
            yield result

    return grpc.unary_stream_rpc_method_handler(
        checked, request_deserializer=_decoder(request), response_serializer=response.SerializeToString
    )


def service(
    messages: ModuleType, name: str, methods: dict[str, grpc.RpcMethodHandler[Any, Any]]
) -> grpc.GenericRpcHandler:
    """Put methods together under the service's name on the wire."""
    return grpc.method_handlers_generic_handler(messages.DESCRIPTOR.services_by_name[name].full_name, methods)


def _decoder(request: type[Message]) -> Callable[[bytes], Message | None]:
    def decode(data: bytes) -> Message | None:
        try:
            return request.FromString(data)
        except DecodeError:
            return None

    return decode


async def _check(message: object, request: type[Message], context: grpc.aio.ServicerContext[Any, Any]) -> None:
    if message is None:
        log.warning("message not understood", extra={"expected": request.DESCRIPTOR.full_name})
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a {request.DESCRIPTOR.full_name}")


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


class DraService:
    """Serves NodePrepareResources and NodeUnprepareResources."""

    def __init__(self, claims: ClaimSource, turns: ClaimExecutor, observer: PluginMetrics | None = None) -> None:
        self._claims = claims
        self._turns = turns
        self._observer = observer
        self._preparing: asyncio.Future[ClaimPreparer] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count(1)

    def set_preparer(self, preparing: ClaimPreparer) -> None:
        """Start to prepare: earlier calls wait for this."""
        self._preparing.set_result(preparing)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the handlers for a gRPC server."""
        return [
            service(
                messages,
                "DRAPlugin",
                {
                    "NodePrepareResources": unary(
                        self._prepare_with(messages),
                        messages.NodePrepareResourcesRequest,
                        messages.NodePrepareResourcesResponse,
                    ),
                    "NodeUnprepareResources": unary(
                        self._unprepare_with(messages),
                        messages.NodeUnprepareResourcesRequest,
                        messages.NodeUnprepareResourcesResponse,
                    ),
                },
            )
            for messages in _VERSIONS
        ]

    def _prepare_with(self, messages: ModuleType) -> Unary:
        async def prepare(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            results = await self._run_claims("NodePrepareResources", request.claims, context, self._prepare)
            response = messages.NodePrepareResourcesResponse()
            for uid, result in results.items():
                if isinstance(result, AgentError):
                    response.claims[uid].error = _text(result)
                else:
                    response.claims[uid].devices.extend(_device(messages, item) for item in result)
            return response

        return prepare

    def _unprepare_with(self, messages: ModuleType) -> Unary:
        async def unprepare(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            results = await self._run_claims("NodeUnprepareResources", request.claims, context, self._unprepare)
            response = messages.NodeUnprepareResourcesResponse()
            for uid, result in results.items():
                response.claims[uid].error = _text(result) if isinstance(result, AgentError) else ""
            return response

        return unprepare

    async def _run_claims(
        self,
        method: str,
        requested: Sequence[Any],
        context: grpc.aio.ServicerContext[Any, Any],
        one: Callable[[ClaimRef, float], Awaitable[Sequence[ClaimDevice]]],
    ) -> dict[str, Sequence[ClaimDevice] | AgentError]:
        if len(requested) > MAX_CLAIMS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {MAX_CLAIMS} claims")
        began = time.perf_counter()
        number = next(self._numbers)
        remaining_s = context.time_remaining()
        budget = BUDGET_S if remaining_s is None else min(BUDGET_S, remaining_s - min(SPARE_S, remaining_s / 4))
        deadline_s = asyncio.get_running_loop().time() + budget
        claims: dict[str, ClaimRef] = {}
        results: dict[str, Sequence[ClaimDevice] | AgentError] = {}
        for claim in requested:
            reference = ClaimRef(claim.uid, claim.namespace, claim.name)
            if claims.setdefault(reference.uid, reference) != reference:
                results[reference.uid] = PermanentError("is requested under two names", where=f"claim {reference.uid}")
        pending = [claim for uid, claim in claims.items() if uid not in results]
        work = [self._guarded(method, number, claim, deadline_s, one) for claim in pending]
        found = [await work[0]] if len(work) == 1 else await asyncio.gather(*work)
        results.update(zip((claim.uid for claim in pending), found, strict=True))
        failed = sum(isinstance(result, AgentError) for result in results.values())
        log.debug(
            "call answered",
            extra={
                "method": method,
                "request": number,
                "claims": len(results),
                "failed": failed,
                "seconds": round(time.perf_counter() - began, 4),
            },
        )
        return results

    async def _guarded(
        self,
        method: str,
        number: int,
        claim: ClaimRef,
        deadline_s: float,
        one: Callable[[ClaimRef, float], Awaitable[Sequence[ClaimDevice]]],
    ) -> Sequence[ClaimDevice] | AgentError:
        extra = {"method": method, "request": number, "claim": claim.uid}
        try:
            return await one(claim, deadline_s)
        except AgentError as error:
            log.warning("call not done for a claim", extra={**extra, "reason": str(error)})
            return error
        except Exception as error:  # one claim's bug must not fail its neighbours, or the server
            log.exception("call not done for a claim", extra=extra)
            return RetryableError(f"unexpected {type(error).__name__}: {error}", where=str(claim))

    async def _prepare(self, claim: ClaimRef, deadline_s: float) -> Sequence[ClaimDevice]:
        began = time.perf_counter()
        remaining_s = deadline_s - asyncio.get_running_loop().time()
        fetched = await fetch(self._claims, claim, deadline_s - remaining_s * (1 - FETCH_SHARE))
        if self._observer is not None:
            self._observer.observe_phase("fetch", time.perf_counter() - began)
        preparing = await self._ready(deadline_s)
        allocation = msgspec.json.encode(fetched["status"]["allocation"])
        deadline = Deadline(deadline_s)
        return await self._turns.run(
            claim.uid, "preparing", allocation, lambda: preparing.prepare(fetched, deadline), deadline_s
        )

    async def _unprepare(self, claim: ClaimRef, deadline_s: float) -> Sequence[ClaimDevice]:
        preparing = await self._ready(deadline_s)
        deadline = Deadline(deadline_s)
        await self._turns.run(
            claim.uid, "unpreparing", None, lambda: preparing.unprepare(claim.uid, deadline), deadline_s
        )
        return ()

    async def _ready(self, deadline_s: float) -> ClaimPreparer:
        if not self._preparing.done():
            remaining_s = deadline_s - asyncio.get_running_loop().time()
            await asyncio.wait({self._preparing}, timeout=max(0.0, remaining_s))
        if not self._preparing.done():
            raise RetryableError("the agent is still starting", hint="wait until /readyz returns 200")
        return self._preparing.result()


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

"""gRPC methods from functions and messages: what is no message is refused in words, and never gets to the function."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

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
        async for answer in call(message, context):
            yield answer

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

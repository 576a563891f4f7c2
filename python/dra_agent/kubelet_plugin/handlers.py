"""Handlers of a gRPC server with threads, for coroutines and asynchronous generators of the event loop.

Each call has its own thread, which waits for the event loop. A call whose client has gone is canceled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

log = logging.getLogger(__name__)

_T = TypeVar("_T")

Unary = Callable[[Any], Coroutine[Any, Any, Any]]
Stream = Callable[[Any], AsyncIterator[Any]]
Context = grpc.ServicerContext
_END = object()


class RefusedError(Exception):
    """A call ends with a status of gRPC instead of a response."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class OnPool:
    """A handler with its own threads, so that other calls that hang leave some for it."""

    def __init__(self, handle: Callable[[Any, Context], Any], pool: ThreadPoolExecutor) -> None:
        self._handle = handle
        # Read by gRPC: grpc/grpc, src/python/grpcio/grpc/_server.py (_select_thread_pool_for_behavior).
        self.experimental_thread_pool = pool

    def __call__(self, message: Any, context: Context) -> Any:
        """Handle a call as `handle` does."""
        return self._handle(message, context)


def unary(
    call: Unary, request: type[Message], response: type[Message], pool: ThreadPoolExecutor
) -> grpc.RpcMethodHandler[Any, Any]:
    """Serve a method of one request and one response."""
    loop = asyncio.get_running_loop()

    def handle(message: Any, context: Context) -> Any:
        check_decoded(message, request, context)
        try:
            return wait_for(call(message), loop, context)
        except RefusedError as error:
            abort(context, error)

    return grpc.unary_unary_rpc_method_handler(
        OnPool(handle, pool), request_deserializer=decoder(request), response_serializer=response.SerializeToString
    )


def stream(
    call: Stream, request: type[Message], response: type[Message], pool: ThreadPoolExecutor
) -> grpc.RpcMethodHandler[Any, Any]:
    """Serve a method of one request and many responses."""
    loop = asyncio.get_running_loop()

    def handle(message: Any, context: Context) -> Iterator[Any]:
        check_decoded(message, request, context)
        return _results(call(message), loop, context)

    return grpc.unary_stream_rpc_method_handler(
        OnPool(handle, pool), request_deserializer=decoder(request), response_serializer=response.SerializeToString
    )


def service(
    messages: ModuleType, name: str, methods: dict[str, grpc.RpcMethodHandler[Any, Any]]
) -> grpc.GenericRpcHandler:
    """Combine methods under the service's name on the wire."""
    return grpc.method_handlers_generic_handler(messages.DESCRIPTOR.services_by_name[name].full_name, methods)


def decoder(request: type[Message]) -> Callable[[bytes], Any]:
    """Return a function that decodes a request; for other bytes it returns an object that `check_decoded` refuses."""

    def decode(data: bytes) -> Any:
        try:
            return request.FromString(data)
        except DecodeError:
            return _MALFORMED

    return decode


_MALFORMED = object()
"""gRPC ends a call with INTERNAL where a request is decoded to None."""


def check_decoded(message: object, request: type[Message], context: Context) -> None:
    """Refuse a request that is not one."""
    if message is _MALFORMED:
        log.warning("message not understood", extra={"expected": request.DESCRIPTOR.full_name})
        details = f"not a {request.DESCRIPTOR.full_name}"
        abort(context, RefusedError(grpc.StatusCode.INVALID_ARGUMENT, details))


def abort(context: Context, error: RefusedError) -> NoReturn:
    """End the call with the status of the error."""
    context.abort(error.code, error.details)
    raise AssertionError("abort raises")


def wait_for(call: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop, context: Context) -> _T:
    """Run a coroutine on the event loop, and wait for it; cancel it if the client goes."""
    future = asyncio.run_coroutine_threadsafe(call, loop)

    def cancel() -> None:
        future.cancel()

    if not context.add_callback(cancel):
        cancel()
    try:
        return future.result()
    except CancelledError:
        abort(context, RefusedError(grpc.StatusCode.CANCELLED, "the call was canceled"))


def _results(results: AsyncIterator[Any], loop: asyncio.AbstractEventLoop, context: Context) -> Iterator[Any]:
    waits: list[Future[Any]] = []

    def gone() -> None:
        for future in waits:
            future.cancel()

    async def following() -> Any:
        return await anext(results, _END)

    async def close() -> None:
        await results.aclose()  # type: ignore[attr-defined]  # a generator

    try:
        active = context.add_callback(gone)
        while active:
            waits[:] = [asyncio.run_coroutine_threadsafe(following(), loop)]
            if not context.is_active():
                gone()
            try:
                result = waits[0].result()
            except CancelledError:
                return
            if result is _END:
                return
            yield result
            active = context.is_active()
    finally:
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(close(), loop)

"""Gives a call with one request to a thread when the request has been received, which saves two changes of threads.

gRPC's server gives a call to a thread first: that thread asks for the request, and waits until the serving thread has
received it. Here the serving thread asks for it, and starts the handler afterwards. A call whose request never
comes takes no thread.

gRPC has no public way for this, so it uses what the server itself calls (grpc/grpc,
src/python/grpcio/grpc/_server.py: _unary_request, _unary_response_in_pool). In a version of gRPC without it, `submit`
returns None, and calls start as gRPC starts them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from importlib import import_module
from typing import Any

log = logging.getLogger(__name__)

_RESPOND = "_unary_response_in_pool"
"""What gRPC submits for a call with one request and one response."""
_SIGNATURES = {
    _RESPOND: [
        "rpc_event",
        "state",
        "behavior",
        "argument_thunk",
        "request_deserializer",
        "response_serializer",
    ],
    "_receive_message": ["state", "call", "request_deserializer"],
    "_abort": ["state", "call", "code", "details"],
}
_CONSTANTS = ("_RECEIVE_MESSAGE_TOKEN", "_CLOSED", "_CANCELLED", "_RPCState", "cygrpc")
_STATE = frozenset(("condition", "due", "request", "client", "statused"))

_COUNTED: Future[Any] = Future()
"""What gRPC gets for a submitted call. It counts running calls by it, only for a maximum that this server has not."""
_COUNTED.set_result(None)


def submit(start: Callable[[Callable[[], object]], object], run: Any, arguments: Sequence[Any]) -> Future[Any] | None:
    """Have the handler of a call started when its request has been received; None if gRPC submits something else.

    `run` and `arguments` are what gRPC submits to a pool of threads, on its serving thread. `start` starts the handler
    on a thread; it raises RuntimeError after the end of the pool.
    """
    server = _server()
    if (
        server is None
        or len(arguments) != 1 + len(_SIGNATURES[_RESPOND])
        or arguments[0] is not getattr(server, _RESPOND)
    ):
        return None
    respond, event, state, behavior, _, deserializer, serializer = arguments
    received = server._receive_message(state, event.call, deserializer)  # noqa: SLF001 - gRPC has no public way to read a request with its call

    def request() -> Any:
        with state.condition:
            found, state.request = state.request, None
            return None if state.client == server._CANCELLED else found  # noqa: SLF001 - gRPC has no public way to read a request with its call

    def begin(batch: Any) -> Any:
        result = received(batch)
        if state.request is not None:
            try:
                start(lambda: run(respond, event, state, behavior, request, deserializer, serializer))
            except RuntimeError:  # it has no response: the caller must not wait for its deadline
                log.warning("a call is canceled, because no thread can serve it")
                event.call.cancel()
            return result
        with state.condition:
            if state.client == server._CLOSED and not state.statused:  # noqa: SLF001 - gRPC has no public way to read a request with its call
                details = f'"{event.call_details.method.decode()}" requires exactly one request message.'
                server._abort(state, event.call, server.cygrpc.StatusCode.unimplemented, details.encode())  # noqa: SLF001 - gRPC has no public way to read a request with its call
        return result

    # gRPC holds the lock; the entry in `due` keeps the state until the batch has ended.
    with state.condition:
        event.call.start_server_batch((server.cygrpc.ReceiveMessageOperation(0),), begin)
        state.due.add(server._RECEIVE_MESSAGE_TOKEN)  # noqa: SLF001 - gRPC has no public way to read a request with its call
    return _COUNTED


@cache
def _server() -> Any:
    """Return gRPC's module if it has what `submit` uses."""
    server = import_module("grpc._server")
    for name, parameters in _SIGNATURES.items():
        function = getattr(server, name, None)
        if function is None or list(inspect.signature(function).parameters) != parameters:
            return None
    if not all(hasattr(server, name) for name in _CONSTANTS) or not vars(server._RPCState()).keys() >= _STATE:  # noqa: SLF001 - gRPC has no public way to read a request with its call
        return None
    return server

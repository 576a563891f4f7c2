"""Responds to a call from another thread while its own thread hangs.

gRPC's server has no public way to do so for a method with one response; one with many responses needs 0.1 ms more for
each call. So this uses what the server itself calls at the end of a handler (grpc/grpc,
src/python/grpcio/grpc/_server.py: _unary_response_in_pool, _status). In a version of gRPC without it `is_possible`
returns False, and all calls wait for the event loop.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

from dra_agent.kubelet_plugin.handlers import Context

_PARAMETERS = ["rpc_event", "state", "serialized_response"]


class AnsweredError(BaseException):
    """Ends a handler whose call has or gets its response: gRPC responds to subclasses of Exception only."""


def is_possible(context: Context) -> bool:
    """Return whether `respond` works in this version of gRPC."""
    return _status() is not None and hasattr(context, "_rpc_event") and hasattr(context, "_state")


def respond(context: Any, response: bytes) -> None:
    """Send the response of a call; its handler must then end with AnsweredError."""
    status = _status()
    assert status is not None
    status(context._rpc_event, context._state, response)  # noqa: SLF001 - gRPC has no public way to answer a call early


@cache
def _status() -> Any:
    status = getattr(import_module("grpc._server"), "_status", None)
    return status if status is not None and list(inspect.signature(status).parameters) == _PARAMETERS else None

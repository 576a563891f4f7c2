"""Work that may follow the response to a call, such as the log line of a claim: it would take a part of the latency."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


class _Thread(threading.local):
    pending: list[Callable[[], object]] | None = None
    """The work of the call that the thread serves; None where it serves none."""


_thread = _Thread()


def serve(call: Callable[[], _T]) -> _T:
    """Serve a call, then do the work that `later` left, in its order. A call that is killed before leaves none."""
    pending: list[Callable[[], object]] = []
    _thread.pending = pending
    try:
        return call()
    finally:
        _thread.pending = None
        for work in pending:
            work()


def later(work: Callable[[], object]) -> None:
    """Do work, which raises nothing, after the response of the call that this thread serves; at once without a call."""
    if _thread.pending is None:
        work()
    else:
        _thread.pending.append(work)

"""A thread that makes a library's calls one at a time, each with a deadline; a hung one is left behind and replaced.

It knows nothing of the library. The number of threads that can be left behind is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from dra_agent.errors import RetryableError

MOST_STUCK = 4
"""Threads that may wait for ever at the same time; then calls fail at once until one of them comes back."""


class HungError(RetryableError):
    """A call did not come back in time."""


class _Call:
    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.done = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None

    def make(self) -> None:
        try:
            self.result = self.function(*self.arguments)
        except Exception as error:  # noqa: BLE001 - handed to the caller, who waits in another thread
            self.error = error
        self.done.set()


class Worker:
    """Makes calls for any number of callers, one after the other.

    `key` of a call names what it is about (a device): while a call about it is stuck, others about it fail at once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Call | None] | None = None
        self._stuck: dict[threading.Thread, str] = {}
        self._thread: threading.Thread | None = None

    def call(self, key: str, timeout: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call and give its result, or raise what it raised; HungError after `timeout` seconds."""
        with self._lock:
            if self.is_stuck(key):
                raise HungError(f"an earlier call to {self._name} about {key} has not come back yet")
            if len(self._stuck) >= MOST_STUCK:
                raise HungError(f"{len(self._stuck)} calls to {self._name} have not come back yet")
            queue, thread = self._running()
            call = _Call(function, arguments)
            queue.put(call)
            if not call.done.wait(timeout):
                queue.put(None)
                self._stuck[thread] = key
                self._queue = self._thread = None
                name = getattr(function, "__name__", str(function))
                raise HungError(f"{self._name} did not answer within {timeout:g} s ({name})")
        if call.error is not None:
            raise call.error
        return call.result

    def is_stuck(self, key: str) -> bool:
        """Whether a call about `key` is still out."""
        self._stuck = {thread: about for thread, about in self._stuck.items() if thread.is_alive()}
        return key in self._stuck.values()

    def close(self) -> None:
        """End the thread when its last call is done; a later call starts a new one."""
        with self._lock:
            if self._queue is not None:
                self._queue.put(None)
            self._queue = self._thread = None

    def _running(self) -> tuple[SimpleQueue[_Call | None], threading.Thread]:
        if self._queue is None or self._thread is None:
            self._queue = SimpleQueue()
            # A daemon: a call that never comes back must not keep the agent from ending.
            self._thread = threading.Thread(target=_serve, args=(self._queue,), name=self._name, daemon=True)
            self._thread.start()
        return self._queue, self._thread


def _serve(queue: SimpleQueue[_Call | None]) -> None:
    while (call := queue.get()) is not None:
        call.make()

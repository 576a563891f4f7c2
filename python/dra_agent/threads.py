"""Threads of this process: each has a name, and none keeps the process alive.

A thread that the system refuses is an error with one clear message, on the calling thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dra_agent.errors import RetryableError

TYPE_CHECKING = False  # typing, which has it too, takes 0.5 MiB of the worker processes
if TYPE_CHECKING:
    from typing import Any


class NoThreadError(RetryableError, RuntimeError):
    """The system has no room for another thread; a RuntimeError as that of `threading`, for libraries."""


class NamedThread(threading.Thread):
    """A thread of `start_thread`, as opposed to one of a library."""


def start_thread(name: str, work: Callable[..., object], *args: Any) -> NamedThread:
    """Call `work` on a new thread; an exception of it is logged (`Supervisor.attached`). Raises NoThreadError."""
    thread = NamedThread(target=work, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread(name) from error
    return thread


def no_thread(name: str) -> NoThreadError:
    """Return the error for a thread that the system refuses."""
    return NoThreadError(
        "the system has no room for another thread",
        where=f"thread {name!r}",
        hint="raise the limit of tasks: pids.max of the cgroup, TasksMax= of the unit, or `ulimit -u`",
    )


def require_room(count: int) -> None:
    """Raise NoThreadError unless the system has room for this many more threads now."""
    end = threading.Event()
    try:
        for _ in range(count):
            start_thread("room", end.wait)
    finally:
        end.set()

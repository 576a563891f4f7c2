"""The loops and tasks of this process: none of them ends without notice.

A loop whose work fails is logged, and started again after a growing delay. While it fails again and again, `failing`
names it, which /healthz reports. A task that fails is logged, and its owner gets the error. Nothing else creates tasks,
and `dra_agent.threads` creates the threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from dra_agent.errors import AgentError
from dra_agent.retry import Backoff
from dra_agent.threads import NamedThread, start_thread

log = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
MAX_RETRY_S = 30.0
"""Seconds until a loop that failed is started again."""
MAX_FAILURES = 5
"""Failures in a row after which a loop is reported: about 10 s, so that a short shortage restarts no agent."""
WELL_AFTER_S = 10.0
"""Seconds after which a loop that was started again counts as well, unless its attempts fail as late as that."""
WELL_FACTOR = 3
"""How many times longer than the last failed attempts a loop has to run to count as well."""
MAX_WELL_AFTER_S = 300.0
"""Seconds after which every loop counts as well; longer than any attempt whose calls have a deadline."""

MAX_KINDS = 256
"""Kinds of failures that are counted, each of which is logged once."""

_T = TypeVar("_T")
_ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends a loop on the event loop, and with it the process. Everything else is a failure: also pyo3's
PanicException, which is no Exception, and a CancelledError that does not cancel the loop itself."""


class _Repeated:
    """Logs failures: the first of a kind, then the 10th, the 100th, and so on."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def log(self, message: str, error: BaseException | None, **extra: object) -> None:
        kind = f"{message} {extra} {type(error).__name__}"
        if len(self._counts) >= MAX_KINDS:
            self._counts.clear()
        self._counts[kind] += 1
        count = self._counts[kind]
        if str(count).strip("0") != "1":
            return
        reason = "" if error is None else str(error) or type(error).__name__
        times = {} if count == 1 else {"times": count}
        # A traceback is for a defect only.
        trace = None if count > 1 or isinstance(error, AgentError | OSError) else error
        log.error(message, extra={**extra, "reason": reason, **times}, exc_info=trace)


class _Loop:
    """The record of one loop; its methods may be called from any thread."""

    def __init__(self, supervisor: Supervisor, name: str, of: str) -> None:
        self._supervisor = supervisor
        supervisor.failures.setdefault(name, 0)  # a series that starts at 1 hides its first increase
        self.name = name
        self._of = {"of": of} if of else {}
        self.subject = f"the loop {f'{name} {of}'.rstrip()!r}"
        self._clock = supervisor.clock
        self._backoff = Backoff(first=supervisor.first_retry_s, longest=max(MAX_RETRY_S, supervisor.first_retry_s))
        self._repeated = _Repeated()
        self._failures = 0
        """In a row."""
        self._error = ""
        self._began: float | None = None
        """When the work began that runs now."""
        self._attempts_s: deque[float] = deque(maxlen=MAX_FAILURES - 1)
        """How long the last attempts ran that failed; a loop that is reported is past the run before its failures."""
        self._well_after_s = WELL_AFTER_S

    def begins(self) -> None:
        self._began = self._clock()

    def failed(self, error: BaseException) -> float:
        """Record a failure; return the seconds until the work is to begin again. Raises nothing."""
        # The text of an error may raise as well, also for want of memory.
        with suppress(Exception):
            self._record(error)
        return self._backoff.delay()

    def _record(self, error: BaseException) -> None:
        self._check_well()
        if self._began is not None:
            self._attempts_s.append(self._clock() - self._began)
            self._began = None
        self._well_after_s = min(MAX_WELL_AFTER_S, max(WELL_AFTER_S, WELL_FACTOR * max(self._attempts_s)))
        self._failures += 1
        self._supervisor.failures[self.name] += 1
        self._error = type(error).__name__
        self._error = f"{type(error).__name__}: {error}"
        self._repeated.log("a loop of the agent failed; it is started again", error, loop=self.name, **self._of)

    def failing(self) -> str:
        """Return why the loop counts as failing; "" if it does not."""
        self._check_well()
        if self._failures < MAX_FAILURES:
            return ""
        return f"{self.subject} failed {self._failures} times in a row: {self._error}"

    def _check_well(self) -> None:
        began = self._began
        if self._failures and began is not None and self._clock() - began >= self._well_after_s:
            log.info("a loop of the agent runs again", extra={"loop": self.name, **self._of})
            self._failures, self._repeated = 0, _Repeated()
            self._attempts_s.clear()
            self._backoff.reset()


class Supervisor:
    """The loops and tasks of one process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, first_retry_s: float = FIRST_RETRY_S) -> None:
        """`clock` returns monotonic seconds; `first_retry_s`: until a loop is started again for the first time."""
        self.clock = clock
        self.first_retry_s = first_retry_s
        self.failures: Counter[str] = Counter()
        """Failures of loops since the start of the process, by their name."""
        self._loops: set[_Loop] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        """An event loop has only weak references to its tasks."""
        self._ended_reasons: list[str] = []
        """Loops and threads of libraries that ended with an error, and that only a new process has again."""
        self._repeated = _Repeated()

    def loop(self, name: str, work: Callable[[], Coroutine[Any, Any, None]], *, of: str = "") -> asyncio.Task[None]:
        """Run `work` on the running event loop until it returns or the task is canceled; again after each failure.

        `work` starts from the beginning each time. `name` is one of a few, `of` says which of several loops it is.
        """
        record = _Loop(self, name, of)
        task = self._start(f"{name} {of}".rstrip(), self._repeat(record, work))
        task.add_done_callback(lambda ended: self._loop_ended(record, ended))
        return task

    def start_task(self, name: str, work: Coroutine[Any, Any, _T], *, awaited: bool = False) -> asyncio.Task[_T]:
        """Run `work` once on the running event loop. Its failure is logged, unless the owner has `awaited` the task."""
        task = self._start(name, work)
        if not awaited:
            task.add_done_callback(self._ended)
        return task

    def thread_loop(self, name: str, work: Callable[[], object], stopped: threading.Event) -> NamedThread:
        """Run `work` on a new thread until it returns; again after each failure, unless `stopped` is set.

        Raises NoThreadError.
        """
        return start_thread(name, self._repeat_on_thread, _Loop(self, name, ""), work, stopped)

    def failing(self) -> list[str]:
        """Return the loops that fail again and again, or ended with an error, and threads of libraries that ended.

        Empty if all is well.

        It never waits, and may be called from any thread.
        """
        return [reason for loop in [*self._loops] if (reason := loop.failing())] + self._ended_reasons

    @contextmanager
    def attached(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Log what fails in callbacks of an event loop, and in threads and finalizers of this process, within it.

        Repetitions are counted, and not logged each time.
        """
        hooks = threading.excepthook, sys.unraisablehook
        if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):
            # The default one starts a thread for each process.
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(loop)
            asyncio.set_child_watcher(watcher)
        loop.set_exception_handler(lambda _, context: self._failed_callback(context))
        threading.excepthook, sys.unraisablehook = self._failed_thread, self._failed_finalizer
        try:
            yield
        finally:
            threading.excepthook, sys.unraisablehook = hooks
            loop.set_exception_handler(None)

    def _start(self, name: str, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _repeat(self, loop: _Loop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loops.add(loop)
        task = asyncio.current_task()
        assert task is not None
        try:
            while True:
                loop.begins()
                try:
                    return await work()
                except _ENDS:
                    raise
                except BaseException as error:  # whatever it is must not end the loop
                    if task.cancelling():
                        if isinstance(error, asyncio.CancelledError):
                            raise
                        self._repeated.log("a loop of the agent failed at its end", error, loop=loop.name)
                        raise asyncio.CancelledError from error
                    wait_s = loop.failed(error)
                await asyncio.sleep(wait_s)
        finally:
            self._loops.discard(loop)

    def _repeat_on_thread(self, loop: _Loop, work: Callable[[], object], stopped: threading.Event) -> None:
        self._loops.add(loop)
        try:
            while not stopped.is_set():
                loop.begins()
                try:
                    work()
                    return
                except BaseException as error:  # noqa: BLE001 - whatever it is must not end the loop
                    if stopped.is_set():
                        return
                    wait_s = loop.failed(error)
                stopped.wait(wait_s)
        finally:
            self._loops.discard(loop)

    def _loop_ended(self, loop: _Loop, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ended_reasons.append(f"{loop.subject} ended: {type(error).__name__}")
            self._repeated.log("a loop of the agent ended with an error", error, loop=loop.name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._repeated.log("work of the agent failed", error, work=task.get_name())

    def _failed_callback(self, context: dict[str, Any]) -> None:
        self._repeated.log(f"event loop: {context.get('message', 'failure')}", context.get("exception"))

    def _failed_finalizer(self, args: sys.UnraisableHookArgs) -> None:
        self._repeated.log(args.err_msg or "an exception is ignored", args.exc_value, object=repr(args.object)[:200])

    def _failed_thread(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        name = args.thread.name if args.thread is not None else "unknown"
        self._repeated.log("a thread ended with an error", args.exc_value, of=name)
        if not isinstance(args.thread, NamedThread):
            # The library may not work without it, and only a new process has it again.
            self._ended_reasons.append(f"the thread {name!r} of a library ended: {args.exc_type.__name__}")


def on_thread(call: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
    """Make a call on a thread of the event loop's executor; the result raises what it raises. Raises NoThreadError."""
    return asyncio.get_running_loop().run_in_executor(None, call, *args)


_SUPERVISOR = Supervisor()


def supervisor() -> Supervisor:
    """Return the supervisor of this process."""
    return _SUPERVISOR

"""The agent's side of the NVML worker process: starts it, makes calls with deadlines, and detects its exit.

Calls of one lane (a GPU) are sequential, and those of different lanes concurrent, so that one that
takes long delays only its own lane.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from dra_agent import child
from dra_agent.errors import RetryableError
from dra_agent.json_decode import decode_json
from dra_agent.malloc import without_thread_caches
from dra_agent.nvml.values import Codec, targets
from dra_agent.retry import growing_wait
from dra_agent.threads import NoThreadError, start_thread

_MAX_LINE_BYTES = 16 << 20
"""Maximum bytes of one response; a process that writes more is broken."""
START_TIMEOUT_S = 15.0
"""Seconds that a process gets to come up, before the library is even loaded."""
_STOP_TIMEOUT_S = 2.0
"""Seconds that a process gets to end when it is killed, before it is left to the kernel."""


class CallTimeoutError(RetryableError):
    """A call did not return in time."""


class NvmlBusyError(CallTimeoutError):
    """The call was not made: another call about the same GPU, which is in time, still runs."""


class WorkerExitedError(CallTimeoutError):
    """The process exited before the call returned, or is not running."""


class StaleHandleError(CallTimeoutError):
    """A handle is of a process that has ended: get it again."""


class NvmlCallError(Exception):
    """The library returned an error; `code` is nvmlReturn_t."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class LibraryNotFoundError(Exception):
    """The library cannot be loaded."""


class _Answer(msgspec.Struct):
    id: int
    value: Any = None
    refused: tuple[int, str] | None = None
    stale: str | None = None
    missing: str | None = None
    defect: str | None = None
    busy: str | None = None
    filled: list[tuple[int, str]] = []


class _Call:
    def __init__(self, lane: str, name: str) -> None:
        self.lane = lane
        self.name = name
        self.began = time.monotonic()
        self.late = False
        self.done = threading.Event()
        self.answer: _Answer | None = None


_program: tuple[str, ...] = ("dra_agent.nvml.worker",)
"""The module of the worker process, and arguments after those that every worker has."""


@contextmanager
def worker_program(module: str, *arguments: str) -> Iterator[None]:
    """Start workers with another module until the context ends: one that records, or one that replays."""
    global _program
    before, _program = _program, (module, *arguments)
    try:
        yield
    finally:
        _program = before


class NvmlWorker:
    """A running process; safe to use from several threads. It is never started again: make another."""

    def __init__(self, module: ModuleType, path: Path | None, generation: int) -> None:
        """Start it. Raises OSError where the system has no room for one, or it does not come up."""
        self._codec = Codec(module)
        self._lock = threading.Lock()
        self._lanes: dict[str, threading.Lock] = {}
        self._calls: dict[int, _Call] = {}
        self._last = 0
        self._ended = ""
        self._up = threading.Event()
        parent_end, child_end = socket.socketpair()
        self._socket = parent_end
        library = str(path.absolute()) if path is not None else ""
        with child_end:
            self._process = subprocess.Popen(
                child.command(_program[0], str(child_end.fileno()), str(generation), library, *_program[1:]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[child_end.fileno()],
                env=child.environment(without_thread_caches(os.environ)),
                cwd=child.WORKING_DIRECTORY,
            )
        try:
            self._reader = start_thread("NVML responds", self._read)
        except NoThreadError as error:
            self._process.kill()
            self._process.wait()
            parent_end.close()
            raise OSError(errno.EAGAIN, str(error)) from error
        if not self._up.wait(START_TIMEOUT_S) or self._ended:
            self.close()
            raise TimeoutError(self._ended or f"NVML's process did not come up within {START_TIMEOUT_S:g} s")

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def ended(self) -> str:
        """Why it is not running any more; "" while it is."""
        return self._ended

    @property
    def busy(self) -> bool:
        """Whether calls are pending."""
        with self._lock:
            return any(not call.late for call in self._calls.values())

    def is_hung(self, lane: str) -> bool:
        """True if a call of this lane has missed its deadline and is pending."""
        with self._lock:
            return any(call.late and call.lane == lane for call in self._calls.values())

    def hung_for_s(self) -> float:
        """Return the age in seconds of the oldest call past its deadline; 0 if there is none."""
        with self._lock:
            oldest = min((call.began for call in self._calls.values() if call.late), default=None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    def call(self, lane: str, timeout: float, name: str, *arguments: Any) -> Any:
        """Make a call. Raises CallTimeoutError and the other errors of this module.

        It waits up to `timeout` seconds for its lane, and then as long for the response: a call that had to wait is not
        one that hangs.
        """
        encoded = [self._codec.encode(argument) for argument in arguments]
        with self._lock:
            turn = self._lanes.setdefault(lane, threading.Lock())
        self._reject_hung(lane)
        if not turn.acquire(timeout=timeout):
            self._reject_hung(lane)
            raise NvmlBusyError(f"NVML did not come to {name} about {lane} within {timeout:g} s")
        try:
            self._reject_hung(lane)
            call = self.send(lane, name, encoded)
            if not call.done.wait(timeout) and not self._came_late(call):
                raise CallTimeoutError(f"NVML did not respond within {timeout:g} s ({name})")
        finally:
            turn.release()
        return self._result(call, arguments)

    def close(self) -> None:
        """End the process and its calls; its handles become invalid."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # The reader ends it. One that waits in the kernel goes when the kernel lets it.
        self._reader.join(_STOP_TIMEOUT_S)

    def _reject_hung(self, lane: str) -> None:
        if self.is_hung(lane):
            raise CallTimeoutError(f"an earlier call to NVML about {lane} has not returned yet")

    def send(self, lane: str, name: str, encoded: list[Any]) -> _Call:
        """Send a call to the process without waiting for its response. Raises WorkerExitedError."""
        call = _Call(lane, name)
        with self._lock:
            if self._ended:
                raise WorkerExitedError(self._ended)
            self._last += 1
            number = self._last
            self._calls[number] = call
            line = msgspec.json.encode({"id": number, "lane": lane, "name": name, "args": encoded}) + b"\n"
            # Never waits for long: a lane has one call out, and the other side does nothing but read. An error means
            # that it has exited, which the reader is about to report.
            with suppress(OSError):
                self._socket.sendall(line)
        return call

    def _came_late(self, call: _Call) -> bool:
        with self._lock:
            call.late = not call.done.is_set()
        return not call.late

    def _result(self, call: _Call, arguments: tuple[Any, ...]) -> Any:
        answer = call.answer
        if answer is None:
            raise WorkerExitedError(f"{self._ended} (in {call.name})")
        for number, content in answer.filled:
            self._codec.fill(targets(arguments[number]), content)
        if answer.refused is not None:
            raise NvmlCallError(*answer.refused)
        if answer.stale is not None:
            raise StaleHandleError(f"NVML was restarted, so earlier handles are invalid ({call.name})")
        if answer.missing is not None:
            raise LibraryNotFoundError(answer.missing)
        if answer.busy is not None:
            raise NvmlBusyError(answer.busy)
        if answer.defect is not None:
            raise TypeError(f"{call.name}: {answer.defect}")
        return self._codec.decode(answer.value)

    def _read(self) -> None:
        why = ""
        try:
            with self._socket.makefile("rb") as lines:
                while (line := lines.readline(_MAX_LINE_BYTES)) and line.endswith(b"\n"):
                    answer = decode_json(line, type=_Answer)
                    if answer.id == 0:
                        self._up.set()
                    with self._lock:
                        call = self._calls.pop(answer.id, None)
                    if call is not None:
                        call.answer = answer
                        call.done.set()
        except OSError:
            pass  # reset: it ended while calls were on their way
        except msgspec.DecodeError as error:
            why = f"NVML's process does not speak as agreed: {error}"
        self._process.kill()
        code = self._process.wait()
        with self._lock:
            self._ended = why or _ending(code)
            calls, self._calls = list(self._calls.values()), {}
        self._socket.close()
        self._up.set()
        for call in calls:
            call.done.set()


def _ending(code: int) -> str:
    if code >= 0:
        return f"NVML's process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"NVML's process was ended by {name}"


FIRST_WAIT_S = 2.0
MAX_WAIT_S = 300.0
"""Seconds between the end of a process and the start of the next; doubled with each that ends."""
HANG_TIMEOUT_S = 60.0
MAX_HANG_TIMEOUT_S = 3600.0
"""Seconds for which a call may be out before its process is replaced; doubled with each that was. Long, because other
GPUs are not monitored in this time, and a call that waits in the kernel will also wait in the next process."""
FORGET_AFTER_S = 7200.0
"""Seconds without a failure after which it counts as the first one again."""


class RestartPolicy:
    """Counts the failures of one library. Times are of a monotonic clock."""

    def __init__(self) -> None:
        self._failures = 0
        self._last = 0.0

    def failed(self, now: float) -> None:
        """Take note that a process has ended, or was replaced."""
        self._failures = self._count(now) + 1
        self._last = now

    def remaining(self, now: float) -> float:
        """Return the seconds until the next process may start."""
        failures = self._count(now)
        if failures < 2:
            return 0.0
        wait = growing_wait(failures - 2, first_s=FIRST_WAIT_S, max_s=MAX_WAIT_S)
        return max(0.0, self._last + wait - now)

    def tolerates(self, hung_s: float, now: float) -> bool:
        """Return whether a call that hangs for so many seconds is tolerated."""
        return hung_s < growing_wait(self._count(now), first_s=HANG_TIMEOUT_S, max_s=MAX_HANG_TIMEOUT_S)

    def _count(self, now: float) -> int:
        return self._failures if now - self._last < FORGET_AFTER_S else 0

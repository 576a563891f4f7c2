"""Programs of the host that the agent runs: without a shell, with a deadline, left alone for a while once they hung.

A vendor's tool can hang within its driver, where even SIGKILL does not end it: it is abandoned, never waited for.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dra_agent.errors import RetryableError

BACKOFF_S = 30.0
"""Seconds for which a tool that hung is not run again: it costs one deadline, and not one per device and call."""

MAX_OUTPUT_BYTES = 16 << 20
"""Of one program, output and errors together; facts about ten thousand links are 2 MiB."""
_CHUNK_BYTES = 64 << 10


_PROGRAMS, _LIBRARIES, _PRELOADED = "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"


def inherited_environment(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the agent's variables, plus `added`, for a process that starts in another directory.

    Libraries in directories that are relative to the user's stay the same ones. Empty entries of a search path, which
    mean whichever directory the process is in, are removed, and so are relative ones of PATH (`path_search`).
    """
    variables = {**os.environ, **(added or {})}
    if _PROGRAMS in variables:
        # An empty PATH would be the current directory too.
        entries = filter(os.path.isabs, variables[_PROGRAMS].split(os.pathsep))
        variables[_PROGRAMS] = os.pathsep.join(entries) or os.defpath
    if _LIBRARIES in variables:
        entries = filter(None, variables[_LIBRARIES].split(os.pathsep))
        variables[_LIBRARIES] = os.pathsep.join(map(_absolute, entries))
    if _PRELOADED in variables:
        # ld.so(8): separated by spaces or colons; a name without a slash is looked up in the search path.
        entries = filter(None, re.split("[ :]", variables[_PRELOADED]))
        variables[_PRELOADED] = ":".join(_absolute(entry) if "/" in entry else entry for entry in entries)
    return variables


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


@dataclass(frozen=True, slots=True)
class CompletedCommand:
    """The result of a program that ended on its own."""

    status: int
    output: bytes
    errors: str

    @property
    def last_line(self) -> str:
        """The last line of its output, from standard error first, for messages."""
        for text in (self.errors, self.output.decode(errors="replace")):
            if lines := text.strip().splitlines():
                return lines[-1].strip()
        return "no message"


class HostCommand:
    """A tool at one path; safe to use from several threads."""

    def __init__(
        self, path: Path, deadline: float, *, hint: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """`deadline` is in seconds; `hint` is part of every error; `environment` is added to the agent's own."""
        self.path = path
        self._deadline = deadline
        self._hint = hint
        self._environment = inherited_environment(environment)
        self._hung_at: float | None = None
        self._lock = threading.Lock()

    def run(self, arguments: Sequence[str], stdin: bytes | None = None, files: Sequence[int] = ()) -> CompletedCommand:
        """Run it and return its result with any exit code; RetryableError if it cannot be run, hangs, or hung recently.

        `stdin` is the content of its standard input; `files` are descriptors that it inherits.
        """
        with self._lock:
            if self._hung_at is not None and time.monotonic() - self._hung_at < BACKOFF_S:
                raise self.error(f"hung less than {BACKOFF_S:g} s ago and is left alone")
            self._hung_at = None
        try:
            process = subprocess.Popen(
                # Neither a vendor's tool nor a module of the agent's reads anything of the caller's directory.
                [str(self.path.absolute()), *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=self._environment,
                pass_fds=files,
            )
        except OSError as error:
            raise self.error(f"cannot be run: {error.strerror}") from error
        try:
            output, errors = _communicate(process, stdin, time.monotonic() + self._deadline)
        except subprocess.TimeoutExpired:
            _abandon(process)
            with self._lock:
                self._hung_at = time.monotonic()
            raise self.error(f"did not respond within {self._deadline:g} s") from None
        except OverflowError:
            _abandon(process)
            raise self.error(f"wrote more than {MAX_OUTPUT_BYTES >> 20} MiB") from None
        return CompletedCommand(process.returncode, output, errors.decode(errors="replace"))

    def error(self, operation: str) -> RetryableError:
        """Build an error with the path of the tool."""
        return RetryableError(operation, where=str(self.path), hint=self._hint)


def _communicate(process: subprocess.Popen[bytes], stdin: bytes | None, end: float) -> tuple[bytes, bytes]:
    """Exchange input and outputs until the process has ended; `end` is monotonic time.

    Raises TimeoutExpired, and OverflowError where it writes more than MAX_OUTPUT_BYTES: some tools pass on what a
    container answers.
    """
    written: dict[int, list[bytes]] = {}
    size = 0
    rest = memoryview(stdin or b"")
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                written[stream.fileno()] = []
                selector.register(stream, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _ in selector.select(_remaining_s(process, end)):
                if key.fileobj is process.stdin:
                    try:
                        rest = rest[os.write(key.fd, rest[:_CHUNK_BYTES]) :]
                    except BrokenPipeError:
                        rest = rest[:0]
                    if not rest:
                        selector.unregister(key.fileobj)
                        process.stdin.close()
                    continue
                part = os.read(key.fd, _CHUNK_BYTES)
                if not part:
                    selector.unregister(key.fileobj)
                    continue
                size += len(part)
                if size > MAX_OUTPUT_BYTES:
                    raise OverflowError
                written[key.fd].append(part)
    process.wait(_remaining_s(process, end))
    outputs = [b"".join(parts) for parts in written.values()]
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    return outputs[0], outputs[1]


def _remaining_s(process: subprocess.Popen[bytes], end: float) -> float:
    remaining_s = end - time.monotonic()
    if remaining_s <= 0:
        raise subprocess.TimeoutExpired(process.args, 0)
    return remaining_s


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill a hung tool with its children; one that hangs within the driver remains, and must not be waited for."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)

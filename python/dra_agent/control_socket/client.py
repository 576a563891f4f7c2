"""The asking end of a socket. Plain blocking calls: a command asks once and prints."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from dra_agent.control_socket.protocol import Response, raise_failure
from dra_agent.errors import RetryableError, UsageError

CONNECT_TIMEOUT = 5.0
"""Seconds."""


class Connection:
    """A connection to an agent of this host."""

    def __init__(self, path: Path, *, nobody: str, hint: str) -> None:
        """Connect; raises RetryableError where no agent answers: `nobody` says what that means, `todo` what to do."""
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(CONNECT_TIMEOUT)
        try:
            self._socket.connect(os.fspath(path))
        except OSError as error:
            self._socket.close()
            raise _unreachable(path, error, nobody, hint) from error
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()

    def ask(self, request: msgspec.Struct, *, timeout: float, line_limit: int | None = None) -> Any:
        """Send one request and give its result within `timeout` seconds; raises what the agent raised.

        Raises UsageError, and sends nothing, for a request of more than `line_limit` bytes.
        """
        line = msgspec.json.encode(request) + b"\n"
        if line_limit is not None and len(line) > line_limit:
            raise UsageError(
                f"the request has {len(line)} bytes, {line_limit} at most", hint="apply its objects in several requests"
            )
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(line)
            answered = self._lines.readline()
        except TimeoutError as error:
            raise RetryableError("the agent did not answer in time", where=str(self._path)) from error
        except OSError as error:
            raise RetryableError(f"the connection broke: {error.strerror}", where=str(self._path)) from error
        if not answered:
            raise RetryableError("the agent went away before it answered", where=str(self._path), hint="ask again")
        answer = msgspec.json.decode(answered, type=Response)
        if answer.failure is not None:
            raise_failure(answer.failure)
        return answer.result


def _unreachable(path: Path, error: OSError, nobody: str, hint: str) -> RetryableError:
    if isinstance(error, PermissionError):
        return RetryableError(
            "you may not speak to the agent", where=str(path), hint="be the user that it runs as, or root"
        )
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return RetryableError(nobody, where=str(path), hint=hint)
    return RetryableError(f"cannot reach the agent: {error.strerror or error}", where=str(path))

"""Responses on the wire, and the blocking client: a result, or an error with message, place, hint and family."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from dra_agent.errors import (
    AgentError,
    BusyError,
    NoAgentError,
    NoSuchObjectError,
    PermanentError,
    RetryableError,
    UsageError,
)
from dra_agent.json_decode import decode_json
from dra_agent.retry import Backoff

_Request = TypeVar("_Request")


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """Why a request was not done."""

    message: str = msgspec.field(name="what")
    where: str | None = None
    hint: str | None = msgspec.field(default=None, name="todo")
    family: str = "permanent"


class Response(msgspec.Struct, omit_defaults=True):
    """Either a result or a failure."""

    result: Any = None
    failure: ErrorBody | None = None


_FAMILIES: dict[str, type[AgentError]] = {
    "permanent": PermanentError,
    "retryable": RetryableError,
    "usage": UsageError,
    "missing": NoSuchObjectError,
    "busy": BusyError,
}
"""A client of an earlier version takes one that it does not know for permanent."""


def decode_request(line: bytes, decoder: msgspec.json.Decoder[_Request]) -> _Request:
    """Read one request of a client; raises UsageError for an invalid one."""
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"not a request: {error}") from error


def failure_of(error: AgentError) -> ErrorBody:
    """Encode an error."""
    family = next(name for name, kind in reversed(_FAMILIES.items()) if isinstance(error, kind))
    return ErrorBody(error.message, error.where, error.hint, family)


def raise_failure(failure: ErrorBody) -> None:
    """Raise the error of the other side as if it had occurred here."""
    kind = _FAMILIES.get(failure.family, PermanentError)
    raise kind(failure.message, where=failure.where, hint=failure.hint)


CONNECT_TIMEOUT_S = 5.0
"""Seconds."""
BUSY_TIMEOUT_S = 10.0
"""Seconds that a request is repeated while the agent is too busy to begin with it."""


class Connection:
    """A connection to an agent of this host."""

    def __init__(self, path: Path, *, no_agent: str, hint: str) -> None:
        """Connect; raises NoAgentError with the message `no_agent` and `hint` if no agent listens."""
        self._path = path
        self._no_agent = no_agent
        self._hint = hint
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(CONNECT_TIMEOUT_S)
        try:
            self._socket.connect(os.fspath(self._path))
        except OSError as error:
            self._socket.close()
            raise _unreachable(self._path, error, self._no_agent, self._hint) from error
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()

    def call(
        self,
        request: msgspec.Struct,
        *,
        timeout: float,
        line_limit: int | None = None,
        timeout_hint: str | None = None,
    ) -> Any:
        """Send one request and return its result within `timeout` seconds; raises the error that the agent raised.

        A request that the agent is too busy to begin with is repeated for `BUSY_TIMEOUT_S`. `timeout_hint` is for a
        request that may have been done although no response came.

        Raises UsageError, and sends nothing, for a request of more than `line_limit` bytes.
        """
        line = msgspec.json.encode(request) + b"\n"
        if line_limit is not None and len(line) > line_limit:
            raise UsageError(
                f"the request has {len(line)} bytes, {line_limit} at most", hint="apply its objects in several requests"
            )
        started, backoff = monotonic(), Backoff(first=0.1, longest=1.0)
        deadline = started + timeout
        busy_until = min(deadline, started + BUSY_TIMEOUT_S)
        while True:
            try:
                return self._exchange(line, deadline)
            except TimeoutError as error:
                raise RetryableError(
                    f"the agent did not respond within {timeout:g} s",
                    where=str(self._path),
                    hint=timeout_hint or "repeat the command, or read the agent's log",
                ) from error
            except BusyError as error:
                pause = backoff.delay(error)
                if monotonic() + pause >= busy_until:
                    raise
            sleep(pause)
            self.close()
            self._connect()

    def _exchange(self, line: bytes, deadline: float) -> Any:
        """Send one line and return the result; raises TimeoutError at the deadline."""
        try:
            self._socket.settimeout(max(0.001, deadline - monotonic()))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                # An agent that refuses a client sends the reason before it closes the connection.
                self._socket.sendall(line)
            received = self._lines.readline()
        except TimeoutError:
            raise
        except OSError as error:
            raise RetryableError(
                f"the connection broke: {error.strerror}", where=str(self._path), hint="repeat the command"
            ) from error
        if not received:
            raise RetryableError(
                "the agent closed the connection before it responded", where=str(self._path), hint="repeat the command"
            )
        try:
            response = decode_json(received, type=Response)
        except msgspec.DecodeError as error:
            raise RetryableError(
                "the response of the agent is incomplete", where=str(self._path), hint="repeat the command"
            ) from error
        if response.failure is not None:
            raise_failure(response.failure)
        return response.result


def call(path: Path, request: msgspec.Struct, *, timeout: float) -> Any:
    """Send one request to the agent that listens at `path`, and return its result.

    Raises the error of the agent, NoAgentError if none listens, or RetryableError if it does not respond within
    `timeout` seconds.
    """
    hint = "start one with `dra-agent run`, or name its directory with --state-dir"
    with Connection(path, no_agent="no agent is running here", hint=hint) as connection:
        return connection.call(request, timeout=timeout)


def _unreachable(path: Path, error: OSError, no_agent: str, hint: str) -> RetryableError:
    if isinstance(error, PermissionError):
        return RetryableError(
            "no permission to connect to the agent", where=str(path), hint="be the user that it runs as, or root"
        )
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return NoAgentError(no_agent, where=str(path), hint=hint)
    if isinstance(error, TimeoutError):
        message = f"the agent did not accept a connection within {CONNECT_TIMEOUT_S:g} s"
        return RetryableError(message, where=str(path), hint="read its log, and restart it")
    return RetryableError(f"cannot reach the agent: {error.strerror or error}", where=str(path))

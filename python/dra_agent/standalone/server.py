"""The unix socket that the command line speaks to: mode 0600, one request a line, many clients at once.

It moves bytes and minds its clients; what a request does is the handler's.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.errors import AgentError, PermanentError, UsageError
from dra_agent.standalone.wire import LINE_LIMIT, Answer, Failure, Request, decode_request, failure_of

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Any]]
PATH_LIMIT = 107
"""Bytes of a socket's path: sun_path holds 108 with its final zero (unix(7))."""


class Server:
    """Serves one socket until it is closed."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self.path = path
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; a socket that an agent left behind when it was killed is replaced."""
        if len(os.fsencode(self.path)) > PATH_LIMIT:
            raise UsageError(
                f"the path of the socket is longer than {PATH_LIMIT} bytes",
                where=str(self.path),
                todo="choose a shorter --state-dir",
            )
        listening = socket.socket(socket.AF_UNIX)
        try:
            _remove_stale(self.path)
            # The socket is born 0600: changing the mode after bind would leave a moment in which others can connect.
            before = os.umask(0o177)
            try:
                listening.bind(os.fspath(self.path))
            finally:
                os.umask(before)
        except OSError as error:
            listening.close()
            raise PermanentError(f"cannot listen: {error.strerror}", where=str(self.path)) from error
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=LINE_LIMIT)

    async def stop(self) -> None:
        """Stop listening, drop the clients and remove the socket."""
        if self._server is not None:
            self._server.close()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)
            self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            while line := await reader.readline():
                writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
                await writer.drain()
        except ValueError:  # StreamReader.readline: the line is over the limit
            too_long = Answer(failure=Failure(f"a request is longer than {LINE_LIMIT} bytes", family="usage"))
            writer.write(msgspec.json.encode(too_long) + b"\n")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._clients.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> Answer:
        try:
            return Answer(result=await self._handler(decode_request(line)))
        except AgentError as error:
            return Answer(failure=failure_of(error))
        except Exception as error:  # one client's request must never end the server
            log.exception("request failed")
            return Answer(failure=Failure(f"internal error: {type(error).__name__}: {error}"))


def _remove_stale(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(errno.EEXIST, "something that is not a socket is in the way", str(path))
    path.unlink()

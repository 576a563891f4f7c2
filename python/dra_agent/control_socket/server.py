"""The listening end of a socket: one request a line, many clients at once.

Mode 0600, and SO_PEERCRED must be root or the agent's own user. It transfers bytes and
manages its clients; the handler executes requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.asyncio_server import stop_accepting
from dra_agent.control_socket.protocol import ErrorBody, Response, failure_of
from dra_agent.errors import AgentError, BusyError, PermanentError, UsageError
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

Handler = Callable[[bytes], Awaitable[Any]]
"""Receives one line and returns the result; an AgentError is sent to the client."""

MAX_PATH_BYTES = 107
"""Bytes of a socket's path: sun_path holds 108 with its final zero (unix(7))."""
IDLE_TIMEOUT_S = 60.0
"""Seconds that a client may be idle, or leave a response unread."""
MAX_CONNECTIONS = 256
"""Clients at a time."""
MAX_WAITING = 192
"""Requests that wait at a time, perhaps for an hour. The other connections are left for requests that do not."""
STOP_GRACE_S = 5.0
"""Seconds after a stop in which requests that are being executed are answered. Only one that hangs takes so long."""
CHECK_INTERVAL_S = 1.0
"""Seconds between two checks whether the socket exists and has a listener: another agent may have replaced it."""
_UCRED = struct.Struct("3i")


class Server:
    """Serves one socket from `start` to `stop`."""

    def __init__(
        self,
        path: Path,
        handler: Handler,
        *,
        line_limit: int,
        interval_s: float = CHECK_INTERVAL_S,
        stop_grace_s: float = STOP_GRACE_S,
    ) -> None:
        """`line_limit`: bytes of one request; `interval_s`: seconds between two checks of the socket.

        `stop_grace_s`: seconds after a stop in which requests that are being executed are answered.
        """
        self.path = path
        self._handler = handler
        self._line_limit = line_limit
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._interval_s = interval_s
        self._stop_grace_s = stop_grace_s
        self._keeping: asyncio.Task[None] | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._executing: set[asyncio.Task[Any]] = set()
        """Clients whose request is read and not yet answered."""
        self._waiting: set[asyncio.Task[Any]] = set()
        """Those of `_executing` whose request waits."""
        self._stopped = False

    async def start(self) -> None:
        """Listen; a socket that an agent left behind when it was killed is replaced.

        Another agent of a rolling update may bind the socket later. After it has stopped, this one binds it again.
        UsageError for a path that is too long, PermanentError where it cannot listen.
        """
        if len(os.fsencode(self.path)) > MAX_PATH_BYTES:
            raise UsageError(
                f"the path of the socket is longer than {MAX_PATH_BYTES} bytes",
                where=str(self.path),
                hint="choose a shorter --state-dir",
            )
        await self._listen()
        self._keeping = supervisor().loop("socket", self._keep, of=self.path.name)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[bool]:
        """In a handler: wait for something that may take long. False: it must not, because too many requests wait.

        The request is canceled if its client disconnects meanwhile.
        """
        task = asyncio.current_task()
        if task is None or len(self._waiting) >= MAX_WAITING:
            yield False
            return
        self._waiting.add(task)
        try:
            yield True
        finally:
            self._waiting.discard(task)

    @property
    def waiting_requests(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    async def stop(self) -> None:
        """Stop listening, answer what is being executed, drop all other clients and remove the socket."""
        self._stopped = True
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._server is not None:
            await stop_accepting(self._server)
            # A request may be the reason for the stop: the end of a notice, for which an agent waits before it stops.
            executing = self._executing - self._waiting
            for client in self._clients.keys() - executing:
                client.cancel()
            if executing:
                await asyncio.wait(executing, timeout=self._stop_grace_s)
            for client in [*self._clients]:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)
            await asyncio.sleep(0)  # a closed transport releases its socket in the next iteration of the loop
            with contextlib.suppress(OSError):
                # A newer agent may listen here by now.
                if self.path.stat().st_ino == self._inode:
                    self.path.unlink()

    async def _listen(self) -> None:
        listening = socket.socket(socket.AF_UNIX)
        try:
            _remove_stale(self.path)
            before = os.umask(0o177)  # created with 0600: before a later chmod other users could connect
            try:
                listening.bind(os.fspath(self.path))
            finally:
                os.umask(before)
            self._inode = self.path.stat().st_ino
        except OSError as error:
            listening.close()
            raise PermanentError(f"cannot listen: {error.strerror}", where=str(self.path)) from error
        before_it = self._server
        self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=self._line_limit)
        if before_it is not None:
            await stop_accepting(before_it)

    async def _keep(self) -> None:
        """Listen again if the path has no listener: the other agent stopped, or the file was removed."""
        logged = ""
        while True:
            await asyncio.sleep(self._interval_s)
            for waiting in self._waiting & self._clients.keys():
                if _is_disconnected(self._clients[waiting]):
                    waiting.cancel()
            try:
                if not has_no_listener(self.path, self._inode):
                    continue
                await self._listen()
                logged = ""
                log.info("listens again", extra={"socket": str(self.path)})
            except (AgentError, OSError) as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("cannot listen again", extra={"socket": str(self.path), "reason": logged})

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: one that is canceled before its first step would leave the connection open.
        if self._stopped or not _is_allowed(writer):
            writer.close()
            return
        if len(self._clients) >= MAX_CONNECTIONS:
            busy = BusyError(f"the agent serves {MAX_CONNECTIONS} clients already", hint="repeat the command later")
            writer.write(_encoded(Response(failure=failure_of(busy))))
            writer.close()  # sends what is written first
            return
        task = supervisor().start_task(f"client of {self.path.name}", self._serve(reader, writer))
        self._clients[task] = writer
        task.add_done_callback(self._clients.pop)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self._stopped and (line := await _line(reader)):
                await self._respond(writer, line)
        except ValueError:  # StreamReader.readline: the line is over the limit
            too_long = ErrorBody(f"a request is longer than {self._line_limit} bytes", family="usage")
            with contextlib.suppress(ConnectionError, TimeoutError):
                await _send(writer, Response(failure=too_long))
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # a client that disconnected, timed out, or is dropped

    async def _respond(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._executing.add(task)
        try:
            await _send(writer, await self._handle(line))
        finally:
            self._executing.discard(task)

    async def _handle(self, line: bytes) -> Response:
        try:
            return Response(result=await self._handler(line))
        except AgentError as error:
            return Response(failure=failure_of(error))
        except Exception as error:  # one client's request must never end the server
            log.exception("request failed")
            return Response(failure=ErrorBody(f"internal error: {type(error).__name__}: {error}"))


async def _send(writer: asyncio.StreamWriter, response: Response) -> None:
    writer.write(_encoded(response))
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        await writer.drain()


def _encoded(response: Response) -> bytes:
    return msgspec.json.encode(response) + b"\n"


def _is_disconnected(writer: asyncio.StreamWriter) -> bool:
    """Whether the client has closed its end, and not only for writing."""
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


async def _line(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        return await reader.readline()


def _is_allowed(writer: asyncio.StreamWriter) -> bool:
    peer = writer.get_extra_info("socket")
    _, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if uid in (0, os.geteuid()):
        return True
    log.warning("a connection of another user was refused", extra={"uid": uid})
    return False


def _remove_stale(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(errno.EEXIST, "something that is not a socket is in the way", str(path))
    path.unlink()


def has_no_listener(path: Path, own: int) -> bool:
    """Whether the path has no listener; `own` is the inode of the caller's socket."""
    try:
        if path.lstat().st_ino == own:
            return False
    except FileNotFoundError:
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        # EAGAIN is a server with many clients waiting (connect(2)), and alive.
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED

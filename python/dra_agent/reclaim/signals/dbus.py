"""A connection to a D-Bus daemon on the event loop: jeepney encodes the protocol, this sends bytes and descriptors.

jeepney's own asyncio connection takes no file descriptors, and an inhibitor lock is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

from dra_agent.reclaim.signal import SourceError, ascii_line

if TYPE_CHECKING:
    from jeepney import Message

REQUEST_TIMEOUT_S = 5.0
"""Timeout of requests to the daemon or logind."""
_MAX_QUEUED_SIGNALS = 64
_CHUNK_BYTES = 4096
_DAEMON = "org.freedesktop.DBus"


class Bus:
    """Calls and signals, from `open` to `close`. `signal` and every call raise a failure of it."""

    def __init__(self, connection: socket.socket) -> None:
        from jeepney import Parser

        self._socket = connection
        self._parser = Parser()
        self._serial = 0
        self._replies: dict[int, asyncio.Future[Message]] = {}
        self._signals: asyncio.Queue[Message | SourceError] = asyncio.Queue(_MAX_QUEUED_SIGNALS)
        self._senders = {_DAEMON}
        self._broken: SourceError | None = None

    @classmethod
    async def open(cls, address: str) -> Bus:
        """Connect to a daemon ("unix:path=/run/dbus/system_bus_socket"); raises SourceError if none responds."""
        from jeepney.bus import get_bus

        try:
            path = get_bus(address)
        except (RuntimeError, ValueError, KeyError) as error:
            raise SourceError(f"{address!r} is not an address of a D-Bus daemon on this host") from error
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(connection, path)
                await _authenticate(connection)
        except TimeoutError as error:
            connection.close()
            raise SourceError(f"no response within {REQUEST_TIMEOUT_S:g} s", where=address) from error
        except OSError as error:
            connection.close()
            raise SourceError(f"no connection: {error.strerror or error}", where=address) from error
        except BaseException:
            connection.close()
            raise
        bus = cls(connection)
        asyncio.get_running_loop().add_reader(connection.fileno(), bus.on_readable)
        try:
            await bus.call(_daemon().Hello())
        except BaseException:
            bus.close()
            raise
        return bus

    async def call(self, message: Message) -> tuple[Any, ...]:
        """Call a method and return its result; raises SourceError if it fails or times out."""
        from jeepney import HeaderFields, MessageType

        if self._broken is not None:
            raise self._broken
        self._serial += 1
        serial = self._serial
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()
        self._replies[serial] = future
        name = message.header.fields.get(HeaderFields.member, "call")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await loop.sock_sendall(self._socket, message.serialise(serial))
                reply = await future
        except TimeoutError as error:
            raise SourceError(f"{name}: no response within {REQUEST_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise SourceError(f"{name}: the connection broke: {error.strerror or error}") from error
        finally:
            self._replies.pop(serial, None)
        if reply.header.message_type is MessageType.error:
            kind = reply.header.fields.get(HeaderFields.error_name, "error")
            raise SourceError(f"{name}: {ascii_line(str(kind))}: {ascii_line(str(reply.body))}")
        return tuple(reply.body)

    async def watch(self, rule: str) -> None:
        """Subscribe to the signals of a match rule."""
        await self.call(_daemon().AddMatch(rule))

    async def owner(self, name: str) -> str:
        """Return the unique name of the owner of a well-known name."""
        (owner,) = await self.call(_daemon().GetNameOwner(name))
        return str(owner)

    def accept(self, sender: str) -> None:
        """Accept signals of this unique name, besides the daemon's own; others are dropped."""
        self._senders.add(sender)

    async def signal(self, timeout_s: float) -> Message | None:
        """Wait for the next signal; None where none comes in time."""
        try:
            async with asyncio.timeout(timeout_s):
                received = await self._signals.get()
        except TimeoutError:
            return None
        if isinstance(received, SourceError):
            raise received
        return received

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(ValueError, OSError):
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def on_readable(self) -> None:
        """Read what has arrived, and deliver its messages; for the reader of the event loop."""
        from jeepney.fds import FileDescriptor, fds_buf_size

        try:
            data, ancillary, flags, _ = self._socket.recvmsg(_CHUNK_BYTES, fds_buf_size())
        except BlockingIOError:
            return
        except OSError as error:
            self._break(f"the connection broke: {error.strerror or error}")
            return
        received = FileDescriptor.from_ancdata(ancillary)
        if not data or flags & socket.MSG_CTRUNC:
            for descriptor in received:
                descriptor.close()
            self._break("the D-Bus daemon closed the connection")
            return
        try:
            self._parser.add_data(data, fds=received)
            while (message := self._parser.get_next_message()) is not None:
                self._deliver(message)
        except Exception as error:  # noqa: BLE001  (no D-Bus: jeepney raises any error of its decoder)
            self._break(f"not D-Bus: {ascii_line(str(error))}")

    def _deliver(self, message: Message) -> None:
        from jeepney import HeaderFields, MessageType

        # Any process of the bus may send a message straight to this connection; the daemon adds its name.
        sender = message.header.fields.get(HeaderFields.sender)
        future = self._replies.get(message.header.fields.get(HeaderFields.reply_serial, -1))
        if future is not None:
            if not future.done():
                future.set_result(message)
        elif message.header.message_type is MessageType.signal and sender in self._senders:
            if self._signals.full():
                self._break("more signals than anyone sends")
            else:
                self._signals.put_nowait(message)

    def _break(self, why: str) -> None:
        self._broken = SourceError(why)
        with contextlib.suppress(ValueError, OSError):
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        for future in self._replies.values():
            if not future.done():
                future.set_exception(self._broken)
        if self._signals.full():
            self._signals.get_nowait()
        self._signals.put_nowait(self._broken)


async def _authenticate(connection: socket.socket) -> None:
    from jeepney.auth import BEGIN, AuthenticationError, Authenticator

    loop = asyncio.get_running_loop()
    authenticator = Authenticator(enable_fds=True)
    try:
        for data in authenticator:
            await loop.sock_sendall(connection, data)
            response = await loop.sock_recv(connection, 1024)
            if not response:
                raise SourceError("the D-Bus daemon closed the connection")
            authenticator.feed(response)
    except (AuthenticationError, ValueError) as error:
        raise SourceError(f"the D-Bus daemon refuses: {ascii_line(str(error))}") from error
    await loop.sock_sendall(connection, BEGIN)


def _daemon() -> Any:
    from jeepney import message_bus

    return message_bus

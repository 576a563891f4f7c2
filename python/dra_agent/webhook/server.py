"""The webhook's HTTPS server on asyncio and h11. It serves /validate and /healthz.

If client certificates are required, /validate requires one and /healthz does not: the kubelet's probes have none. What
a client without one sends is never decoded.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress

import h11

from dra_agent.asyncio_server import stop_accepting
from dra_agent.errors import UsageError
from dra_agent.server_certificate import ReloadingCertificate
from dra_agent.webhook.admission import MalformedReviewError, ReviewResult
from dra_agent.webhook.clients import ClientRule, reporting

log = logging.getLogger(__name__)

ReviewFunction = Callable[[bytes], ReviewResult]
"""Returns the response to the body of a review; raises MalformedReviewError."""

MAX_BODY_BYTES = 4 << 20
"""Bytes of a body: an object of the API has 1.5 MiB at most (etcd), and a review has its old version too."""
SMALL_BODY_BYTES = 64 << 10
"""Maximum bytes of a request body; claims usually have a few KiB."""
MAX_LARGE_BODIES = 3
"""Larger bodies in memory at the same time; others wait, within the timeout of their request."""
REVIEW_THREADS = 2
"""Reviews that are evaluated concurrently, on separate threads: probes and small reviews do not wait for them."""
MAX_LOGGED_CHARS = 1024
"""Maximum characters of an error in one line of the log."""
REQUEST_TIMEOUT_S = 10.0
"""Seconds for one request to come in, or for the TLS handshake."""
IDLE_TIMEOUT_S = 120.0
"""Seconds after which an idle connection is closed; the API server keeps its own for 90."""
MAX_CONNECTIONS = 64
"""Maximum connections; one more closes the one that is idle longest, and is refused if all are busy."""
REFUSAL_LOG_INTERVAL_S = 60.0
"""Seconds between two log lines about clients without a valid certificate, which could flood the log."""
_CERTIFICATE_CHECK_INTERVAL_S = 5.0
"""Seconds between two checks whether another process has replaced the files of the certificate."""
_MAX_HEADERS_BYTES = 64 << 10


class ReviewObserver:
    """Observes responses, on the event loop."""

    def review(self, result: str, seconds: float) -> None:
        """Record the result of a POST to /validate: allowed, refused, unreadable, too_large or defect."""

    def unauthenticated_client(self) -> None:
        """Record a client without a valid certificate."""


class Webhook:
    """Listens from `start` to `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        certificate: ReloadingCertificate,
        review: ReviewFunction,
        observer: ReviewObserver | None = None,
        clients: ClientRule | None = None,
    ) -> None:
        """`clients`: the authentication of clients; none without it."""
        self._address = address
        self._clients = clients or ClientRule(required=False)
        self._refusal_logged: float | None = None
        self._certificate = certificate
        self._context = certificate.context
        """The context of new connections."""
        self._review = review
        self._observer = observer or ReviewObserver()
        self._servers: list[asyncio.Server] = []
        """All of one TLS context: one after the start, and one for each of its sockets after a new context."""
        self._connections: dict[asyncio.Task[None], None] = {}
        """Idle connections, longest idle first."""
        self._ended: set[asyncio.Task[None]] = set()
        self.closed = 0
        """Connections that were ended, or refused, because there were too many."""
        self._refresher: asyncio.Task[None] | None = None
        self._closing = False
        self._executor = ThreadPoolExecutor(REVIEW_THREADS, thread_name_prefix="review")
        self._large = asyncio.Semaphore(MAX_LARGE_BODIES)

    @property
    def connections(self) -> int:
        """How many are open; may be read on any thread."""
        return len(self._connections)

    @property
    def port(self) -> int:
        """The port, also if 0 was configured."""
        return int(self._servers[0].sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen; raises UsageError if the address cannot be bound."""
        host, port = self._address
        try:
            self._servers = [await self._listen(self._context, host=host or None, port=port)]
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                where="--listen",
                hint="choose a free port on an address of this host",
            ) from error
        self._refresher = asyncio.create_task(self._refresh(), name="certificate")

    async def close(self, timeout_s: float = 5.0) -> None:
        """Accept no more connections, finish the requests in flight, and end."""
        assert self._refresher is not None
        self._closing = True
        self._refresher.cancel()
        for server in self._servers:
            await stop_accepting(server)
        open_tasks = {task for task in self._connections if not task.done()}
        for task in open_tasks:
            if task.get_name() == _WAITING:
                task.cancel()
        if open_tasks:
            await asyncio.wait(open_tasks, timeout=timeout_s)
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, self._refresher, return_exceptions=True)
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(_CERTIFICATE_CHECK_INTERVAL_S)
            self._certificate.refresh()
            if self._context is self._certificate.context:
                continue
            try:
                await self._renew()
            except OSError as error:
                log.error("cannot listen with the new certificate", extra={"reason": error.strerror or str(error)})
            else:
                log.info("certificate replaced", extra={"files": self._certificate.files})

    async def _listen(self, context: ssl.SSLContext, **where: object) -> asyncio.Server:
        if self._clients.required:
            context.sslobject_class = reporting(self._refused)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connected(reader, writer, context)

        return await asyncio.start_server(connected, ssl=context, ssl_handshake_timeout=REQUEST_TIMEOUT_S, **where)  # type: ignore[arg-type]

    async def _renew(self) -> None:
        """Use the new context for new connections; the sockets and their waiting connections are kept.

        An authority or a session cannot be removed from a context, so each set of files has its own context.
        """
        context = self._certificate.context
        created: list[asyncio.Server] = []
        listening = [found for server in self._servers for found in server.sockets]
        try:
            for one in listening:
                created.append(await self._listen(context, sock=one.dup()))  # noqa: PERF401  (created servers are kept on errors)
        except OSError:
            for server in created:
                await stop_accepting(server)
            raise
        before, self._servers, self._context = self._servers, created, context
        for server in before:
            await stop_accepting(server)
        if self._clients.required:
            for task in [task for task in self._connections if task.get_name() == _WAITING]:
                self._end(task)

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS and not self._make_room():
            writer.close()
            return
        self._connections[task] = None
        try:
            await self._serve(_Connection(reader, writer), task, context)
        except (OSError, ssl.SSLError, TimeoutError, h11.ProtocolError, asyncio.IncompleteReadError):
            pass  # the client closed the connection, was too slow, or speaks another protocol
        except asyncio.CancelledError:
            if (
                not self._closing and task not in self._ended
            ):  # asyncio logs the handler's own end as an error where it is a cancellation
                raise
        finally:
            self._connections.pop(task, None)
            self._ended.discard(task)
            writer.close()
            with suppress(OSError, ssl.SSLError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    def _make_room(self) -> bool:
        self.closed += 1
        idle = next((task for task in self._connections if task.get_name() == _WAITING), None)
        if idle is None:
            return False
        self._end(idle)
        return True

    def _end(self, idle: asyncio.Task[None]) -> None:
        del self._connections[idle]
        self._ended.add(idle)
        idle.cancel()

    async def _serve(self, connection: _Connection, task: asyncio.Task[None], context: ssl.SSLContext) -> None:
        # A client that an authority of before vouched for has to show that it is one of the present authority's.
        while context is self._context or not self._clients.required:
            task.set_name(_WAITING)
            if not await connection.wait_for_request():
                return
            task.set_name("answering")
            async with AsyncExitStack() as resources:
                objection = self._objection(connection)
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    large = None if objection else lambda: resources.enter_async_context(self._large)
                    request, body = await connection.request(large)
                if objection:
                    status, content, kind = 403, f"{objection}\n".encode(), _TEXT
                else:
                    status, content, kind = await self._respond(request, body)
                del body
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                again = await connection.respond(status, content, kind)
            if not again:
                return
            self._connections.pop(task, None)
            self._connections[task] = None

    def _objection(self, connection: _Connection) -> str:
        if connection.path != b"/validate" or not (objection := self._clients.objection(connection.tls)):
            return ""
        self._refused(objection)
        return objection

    def _refused(self, reason: str) -> None:
        self._observer.unauthenticated_client()
        now = time.monotonic()
        if self._refusal_logged is None or now - self._refusal_logged >= REFUSAL_LOG_INTERVAL_S:
            self._refusal_logged = now
            log.warning("client refused", extra={"reason": reason})

    async def _respond(self, request: h11.Request, body: bytes | None) -> tuple[int, bytes, str]:
        method, path = request.method, request.target.partition(b"?")[0]
        if path in (b"/healthz", b"/readyz"):
            return (200, b"ok\n", _TEXT) if method in (b"GET", b"HEAD") else (405, b"GET it\n", _TEXT)
        if path != b"/validate":
            return 404, b"there are /validate and /healthz\n", _TEXT
        if method != b"POST":
            return 405, b"POST an AdmissionReview\n", _TEXT
        began = time.monotonic()
        result, response = await asyncio.get_running_loop().run_in_executor(self._executor, self._run_review, body)
        self._observer.review(result, time.monotonic() - began)
        return response

    def _run_review(self, body: bytes | None) -> tuple[str, tuple[int, bytes, str]]:
        if body is None:
            return "too_large", (413, f"at most {MAX_BODY_BYTES} bytes are read\n".encode(), _TEXT)
        try:
            verdict = self._review(body)
        except MalformedReviewError as error:
            return "unreadable", (400, f"{error}\n".encode(), _TEXT)
        except Exception:  # the API server gets an error, and its failure policy decides
            log.exception("a review failed")
            return "defect", (500, b"internal error; see the log of the webhook\n", _TEXT)
        if verdict.problems:
            log.info(
                "refused", extra={"object": verdict.subject, "problems": "; ".join(verdict.problems)[:MAX_LOGGED_CHARS]}
            )
        else:
            log.debug("allowed", extra={"object": verdict.subject})
        return "refused" if verdict.problems else "allowed", (200, verdict.body, "application/json")


_WAITING = "waiting"
_TEXT = "text/plain; charset=utf-8"


class _Connection:
    """One client's requests, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEADERS_BYTES)
        self._first: h11.Request | None = None
        self._head = False

    @property
    def tls(self) -> ssl.SSLObject:
        """The connection's TLS."""
        found: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return found

    @property
    def path(self) -> bytes:
        """The path without the query; valid after `wait_for_request`."""
        assert self._first is not None
        return self._first.target.partition(b"?")[0]

    async def wait_for_request(self) -> bool:
        """Wait for the head of a request; False if the client closed the connection or is idle for too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                event = await self._next()
                self._first = event if isinstance(event, h11.Request) else None
                return self._first is not None
        return False

    async def request(self, large: Callable[[], Awaitable[object]] | None) -> tuple[h11.Request, bytes | None]:
        """Read a request to its end; the body is None if too large. `large` is awaited above SMALL_BODY_BYTES.

        Without `large`, SMALL_BODY_BYTES is all that is read: enough of a refused request that its client reads why.

        Raises ConnectionError if the client closes the connection within its request.
        """
        request = self._first
        assert request is not None
        self._head = request.method == b"HEAD"
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            self._writer.write(self._http.send(go_on) or b"")
        parts: list[bytes] = []
        size = 0
        while True:
            event = await self._next()
            if isinstance(event, h11.EndOfMessage):
                return request, b"".join(parts) if size <= MAX_BODY_BYTES else None
            if not isinstance(event, h11.Data):
                raise ConnectionError("the client closed the connection within its request")
            before, size = size, size + len(event.data)
            if size > (MAX_BODY_BYTES if large is not None else SMALL_BODY_BYTES):
                return request, None
            if large is not None and before <= SMALL_BODY_BYTES < size:
                await large()
            parts.append(bytes(event.data))

    async def respond(self, status: int, content: bytes, kind: str) -> bool:
        """Send the response; True if the connection stays open."""
        headers = [("Content-Type", kind), ("Content-Length", str(len(content)))]
        response = self._http.send(h11.Response(status_code=status, headers=headers)) or b""
        body = b"" if self._head else self._http.send(h11.Data(data=content)) or b""
        self._writer.write(response + body + (self._http.send(h11.EndOfMessage()) or b""))
        await self._writer.drain()
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(64 << 10))
        return event

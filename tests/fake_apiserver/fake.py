"""A fake API server on loopback with real HTTP: list, watch, get, create, put, apply, delete, and injected failures.

It stores JSON objects of any kind with the semantics that clients depend on: versions, generated names, preconditions,
field selectors, immutable fields, times of taints, bookmarks, 410. It does not validate.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from eventually import eventually
from fake_apiserver.faults import Action, Fault, Faults
from fake_apiserver.foreign_text import PLACE
from fake_apiserver.store import Object, RefusedError, Store

Predicate = Callable[[Object], bool]


@dataclass(frozen=True)
class Seen:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]
    time: float
    """time.monotonic()"""

    @property
    def watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def write(self) -> bool:
        return self.method != "GET" and "dryRun" not in self.query


class FakeApi:
    """Serves between `start` and `stop`; all other methods may be called from the test at any time."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        """With `context` it uses TLS."""
        self.store = Store()
        self.faults = Faults()
        self.requests: list[Seen] = []
        self.tokens: set[str] | None = None
        """Accepted bearer tokens; None: all."""
        self.foreign: bytes = b"{}"
        """The JSON text in the place of each value `foreign_text.PLACE`."""
        self.bookmark_every = 60.0
        """Seconds."""
        self.longest_watch = 3600.0
        """Seconds after which a watch ends, independent of the timeout that the client requested."""
        self.connections = 0
        """Number of accepted connections."""
        self.version = {"major": "1", "minor": "37", "gitVersion": "v1.37.1"}
        self._context = context
        self._server: _Server | None = None
        self._parse_path = _reserve_port()
        weakref.finalize(self, self._parse_path.close)
        self.serving = 0
        """Number of running requests except watches: one whose client has disconnected can still take effect."""
        self.counting = threading.Lock()
        self.stopping = threading.Event()

    # The server itself.

    def start(self) -> None:
        """Listen, after `stop` on the same port again: it stays reserved meanwhile."""
        self.stopping = threading.Event()
        self._server = _Server(self._parse_path.getsockname(), self, self._context)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Break every connection and refuse new ones."""
        if self._server is not None:
            self.stopping.set()
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()
            server.break_connections()
            with self.store.changed:
                self.store.changed.notify_all()

    @property
    def open_connections(self) -> int:
        """Number of connections that neither side has closed."""
        return 0 if self._server is None else self._server.open_connections

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self._parse_path.getsockname()[1]}"

    def kubeconfig(self, path: Path, **user: Any) -> Path:
        """Write a kubeconfig for it. `user` are fields of the user, such as token."""
        cluster: Object = {"server": self.url}
        if self._context is None:
            cluster["insecure-skip-tls-verify"] = True  # a token over plain HTTP on loopback
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "agent"}}],
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "agent", "user": user}],
        }
        path.write_text(json.dumps(config))
        return path

    # Actions of other components of the cluster.

    def put(self, plural: str, given: Object) -> Object:
        """Create or replace an object, as another client would."""
        metadata = given["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
        if name and (namespace, name) in self.store.objects.get(plural, {}):
            return self.store.replace(plural, namespace, name, {**given, "metadata": {**metadata}})
        made = self.store.create(plural, namespace, given)
        if "status" in given:
            made = self.set_status(plural, namespace, made["metadata"]["name"], given["status"])
        return made

    def set_status(self, plural: str, namespace: str, name: str, status: Object) -> Object:
        """Replace the status, as a controller would."""
        before = self.store.get(plural, namespace, name)
        return self.store.replace(plural, namespace, name, {**before, "status": status}, "status")

    def objects(self, plural: str, chosen: Predicate = lambda _: True) -> list[Object]:
        return self.store.select(plural, chosen)[0]

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        """Delete an object, as another client would."""
        self.store.delete(plural, namespace, name)

    def wipe(self, plural: str = "resourceslices", chosen: Predicate = lambda _: True) -> int:
        """Delete all selected objects, as a kubelet does when it starts; return their number."""
        found = self.objects(plural, chosen)
        for document in found:
            self.remove(plural, document["metadata"]["name"], document["metadata"].get("namespace", ""))
        return len(found)

    # Failures.

    def fail(
        self,
        status: int = 500,
        *,
        times: int | None = 1,
        methods: str = "",
        path: str = "",
        retry_after: float | str | None = None,
        body: str | None = None,
        content_type: str = "application/json",
        when: threading.Event | None = None,
    ) -> Fault:
        """Answer with an error, after the event `when`.

        `methods` is a list with spaces, empty for all; `path` a part of path and query.
        """
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        more: dict[str, Any] = {"status": status, "headers": headers, "body": body, "kind": content_type, "when": when}
        return self._fault("answer", times, methods, path, **more)

    def html(self, status: int = 200, *, times: int | None = 1, methods: str = "", path: str = "") -> Fault:
        """Respond as a proxy or a login page does."""
        page = "<html><body><h1>Please log in</h1></body></html>"
        return self.fail(status, times=times, methods=methods, path=path, body=page, content_type="text/html")

    def hang(
        self,
        seconds: float,
        *,
        times: int | None = 1,
        methods: str = "",
        path: str = "",
        when: threading.Event | None = None,
    ) -> Fault:
        """Delay the response for some seconds, or at most that long until the event `when`; then continue normally."""
        return self._fault("hang", times, methods, path, seconds=seconds, when=when)

    def late(self, seconds: float, *, times: int | None = 1, methods: str = "", path: str = "") -> Fault:
        """Carry the request out, and respond later: watches deliver the change first."""
        return self._fault("late", times, methods, path, seconds=seconds)

    def reset(self, *, times: int | None = 1, methods: str = "", path: str = "", done: bool = False) -> Fault:
        """Break the connection instead of a response; with `done` after the request has been carried out."""
        return self._fault("reset-after" if done else "reset", times, methods, path)

    def _fault(self, action: Action, times: int | None, methods: str, path: str, **more: Any) -> Fault:
        if "kind" in more:
            more["content_type"] = more.pop("kind")
        chosen = frozenset(methods.split())
        return self.faults.add(Fault(action=action, times=times, methods=chosen, path=path, **more))

    def drop_fields(self, drop: Callable[[str, Object], None] | None) -> None:
        """Call `drop(plural, object)` on every written object: it removes fields, as a disabled gate does."""
        self.store.drop = drop

    def end_watches(self) -> None:
        """End every running watch."""
        if self._server is not None:
            self._server.watch_epoch += 1
            with self.store.changed:
                self.store.changed.notify_all()

    def compact(self) -> None:
        """Drop the history: a watch from an older version gets 410."""
        self.store.compact()

    def writes(self) -> list[Seen]:
        """Return the requests that change objects, in order."""
        return [seen for seen in self.requests if seen.write]

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; AssertionError, with the last requests, after the deadline."""
        eventually(condition, lambda: "\n".join(f"{seen.method} {seen.path}" for seen in self.requests[-20:]))


def _reserve_port() -> socket.socket:
    """Bind a loopback port that no other process gets, without listening: connections are refused."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_port = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], api: FakeApi, context: ssl.SSLContext | None) -> None:
        self.api = api
        self.watch_epoch = 0
        self._context = context
        self._connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        self.api.connections += 1
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._context is not None:
            raw, request = request, self._context.wrap_socket(request, server_side=True)
            self._connections.discard(raw)
            self._connections.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients."""

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def break_connections(self) -> None:
        for connection in list(self._connections):
            abort(connection)


def abort(connection: socket.socket) -> None:
    """Close with a RST."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: tests read `requests` instead."""

    def _serve(self) -> None:
        api, method = self.server.api, self.command
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length) if length else b""
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = json.loads(data) if data else None
        if query.get("watch") == "true":
            api.requests.append(Seen(method, parts.path, query, body, headers, time.monotonic()))
            self._handle(method, parts.path, query, body, headers)
            return
        with api.counting:
            api.serving += 1
            api.requests.append(Seen(method, parts.path, query, body, headers, time.monotonic()))
        try:
            self._handle(method, parts.path, query, body, headers)
        finally:
            with api.counting:
                api.serving -= 1

    def _handle(self, method: str, path: str, query: dict[str, str], body: Any, headers: dict[str, str]) -> None:
        api = self.server.api
        fault = api.faults.next(method, self.path)
        if fault is not None and fault.action == "hang":
            (fault.when or api.stopping).wait(fault.seconds)
        if fault is not None and fault.action == "reset":
            self._break()
            return
        if fault is not None and fault.action == "answer":
            if fault.when is not None:
                fault.when.wait(30.0)
            self._fault(fault)
            return
        if api.tokens is not None and headers.get("authorization", "").removeprefix("Bearer ") not in api.tokens:
            self._status(401, "Unauthorized", "Unauthorized")
            return
        try:
            if query.get("watch") == "true":
                self._watch(path, query)
                return
            response = self._execute(method, path, query, body)
        except RefusedError as error:
            self._status(error.code, error.reason, error.message, error.name)
            return
        if fault is not None and fault.action == "reset-after":
            self._break()
            return
        if fault is not None and fault.action == "late":
            api.stopping.wait(fault.seconds)
        if fault is not None and fault.action == "stale" and "items" in response:
            response = self._stale(response, path, query)
        if fault is not None and fault.action == "truncate":
            self._truncate(json.dumps(response).encode())
            return
        self._json(201 if method == "POST" else 200, response)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _execute(self, method: str, path: str, query: dict[str, str], body: Any) -> Object:
        if path == "/version":
            return self.server.api.version
        store = self.server.api.store
        plural, namespace, name, subresource = _parse_path(path)
        dry = query.get("dryRun") == "All"
        if method == "GET" and name:
            return store.get(plural, namespace, name)
        if method == "GET":
            return self._list(plural, namespace, query)
        if method == "POST":
            return store.create(plural, namespace, body, dry)
        if method == "PUT":
            return store.replace(plural, namespace, name, body, subresource, dry)
        if method == "PATCH":
            if "apply-patch" not in self.headers.get("Content-Type", ""):
                raise RefusedError(415, "UnsupportedMediaType", "only server-side apply is known here")
            if not query.get("fieldManager"):
                raise RefusedError(400, "BadRequest", "fieldManager is required for apply patch")
            return store.apply(plural, namespace, name, body, query["fieldManager"], subresource)
        if name:
            deleted = store.delete(plural, namespace, name, (body or {}).get("preconditions"))
            return {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Success",
                "details": {"uid": deleted["metadata"]["uid"]},
            }
        raise RefusedError(405, "MethodNotAllowed", method)

    def _list(self, plural: str, namespace: str, query: dict[str, str]) -> Object:
        items, version = self.server.api.store.select(plural, _selector(namespace, query))
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 0)
        metadata: Object = {"resourceVersion": str(version)}
        if limit and start + limit < len(items):
            metadata["continue"] = str(start + limit)
        return {
            "kind": "List",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": [_untyped(item) for item in (items[start : start + limit] if limit else items[start:])],
        }

    def _stale(self, response: Object, path: str, query: dict[str, str]) -> Object:
        """Return the list as it was half of its history ago, with its version at that time."""
        plural, namespace, _, _ = _parse_path(path)
        then, version = self.server.api.store.at_half_of_history(plural, _selector(namespace, query))
        return {**response, "metadata": {"resourceVersion": str(version)}, "items": [_untyped(item) for item in then]}

    def _watch(self, path: str, query: dict[str, str]) -> None:
        api, store = self.server.api, self.server.api.store
        plural, namespace, _, _ = _parse_path(path)
        chosen = _selector(namespace, query)
        version = int(query.get("resourceVersion") or 0)
        epoch, stopping = self.server.watch_epoch, api.stopping
        end = time.monotonic() + min(float(query.get("timeoutSeconds") or 3600), api.longest_watch)
        bookmark = time.monotonic() + api.bookmark_every
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        while not stopping.is_set() and epoch == self.server.watch_epoch:
            with store.changed:
                if version < store.oldest:
                    self._event("ERROR", _status(410, "Expired", f"too old resource version: {version}"))
                    break
                changes = [entry for entry in store.history if entry[0] > version and entry[1] == plural]
                current = store.version  # `changes` is complete up to it: a bookmark must not skip later changes
                if not changes:
                    now = time.monotonic()
                    store.changed.wait(max(0.0, min(end, bookmark) - now))
            if not changes and time.monotonic() >= end:
                break  # never with undelivered changes, however short the watch is
            for at, _, type_, document in changes:
                if chosen(document):
                    self._event(type_, document)
                elif type_ == "MODIFIED" and store.was_selected(at, plural, document, chosen):
                    # As the real server does for an object that the selectors no longer choose.
                    self._event("DELETED", document)
                version = at
            if not changes and time.monotonic() >= bookmark:
                bookmark = time.monotonic() + api.bookmark_every
                if query.get("allowWatchBookmarks") == "true":
                    version = max(version, current)
                    self._event("BOOKMARK", {"kind": "X", "metadata": {"resourceVersion": str(version)}})
        if stopping.is_set():
            self._break()
            return
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _event(self, type_: str, document: Object) -> None:
        line = self._encoded({"type": type_, "object": document}) + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _fault(self, fault: Fault) -> None:
        body = fault.body
        if body is None:
            body = json.dumps(_status(fault.status, "Fault", f"a fault of status {fault.status}"))
        self._send(fault.status, body.encode(), fault.content_type, fault.headers)

    def _status(self, code: int, reason: str, message: str, name: str = "") -> None:
        self._json(code, _status(code, reason, message, name))

    def _json(self, code: int, document: Object) -> None:
        self._send(code, self._encoded(document), "application/json", {})

    def _encoded(self, document: Object) -> bytes:
        return json.dumps(document).encode().replace(f'"{PLACE}"'.encode(), self.server.api.foreign)

    def _send(self, code: int, body: bytes, content_type: str, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _truncate(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.close_connection = True

    def _break(self) -> None:
        self.close_connection = True
        abort(self.connection)


def _status(code: int, reason: str, message: str, name: str = "") -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": {"name": name} if name else {},
    }


def _untyped(item: Object) -> Object:
    """Return the item as the real server lists it: without kind and version."""
    return {key: value for key, value in item.items() if key not in ("apiVersion", "kind")}


def _parse_path(path: str) -> tuple[str, str, str, str | None]:
    """(plural, namespace, name, subresource) of /api/v1/... or /apis/GROUP/VERSION/..."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource = [*parts, "", "", ""][:3]
    return plural, namespace, name, subresource or None


def _selector(namespace: str, query: dict[str, str]) -> Predicate:
    terms = [term.replace("==", "=").split("=", 1) for term in query.get("fieldSelector", "").split(",") if term]
    labels = [term.replace("==", "=").split("=", 1) for term in query.get("labelSelector", "").split(",") if term]

    def chosen(document: Object) -> bool:
        if namespace and document["metadata"].get("namespace") != namespace:
            return False
        labels_of_document = document["metadata"].get("labels") or {}
        return all(
            _field(document, key.removesuffix("!")) != value if key.endswith("!") else _field(document, key) == value
            for key, value in terms
        ) and all(labels_of_document.get(key) == value for key, value in labels)

    return chosen


def _field(document: Object, path: str) -> str:
    found: Any = document
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return "" if found is None else str(found)

"""Common parts of the fake metadata services: HTTP, a control endpoint, a clock, and faults.

`POST /control` with {"set": {...}, "faults": [...], "skew": seconds} changes the state, and returns {"t0": Unix time of
the change}; `GET /control` returns {"requests": [...]}. No cloud has such a path.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Fault:
    """Replaces the response to the next requests with this path prefix."""

    path: str
    status: int = 0
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    how: str = "answer"
    """answer, hang, drop (close without a byte), reset, endless (endless body), garbage (not HTTP), trickle (byte by
    byte), headers (endless headers), short (less than the Content-Length).
    """
    times: int = 1
    method: str = ""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


class FakeService:
    """One metadata service; a subclass implements the protocol of one cloud in `answer`."""

    def __init__(self, port: int = 0) -> None:
        self.state: dict[str, Any] = {}
        self.skew = 0.0
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.changed = threading.Condition()
        self.closing = False
        service = self

        class Handler(_Handler):
            fake = service

        self._server = _Server(("127.0.0.1", port), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.02), daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def set(self, **values: Any) -> float:
        """Change the state, and return the time of the change."""
        with self.changed:
            self.state.update(values)
            self.on_change(values)
            self.changed.notify_all()
            return time.time()

    def on_change(self, values: dict[str, Any]) -> None:
        """Handle a change while the lock is held."""

    def fail(self, path: str, **how: Any) -> None:
        self.faults.append(Fault(path, **how))

    def count(self, path: str, method: str = "GET") -> int:
        return sum(1 for request in self.requests if request.method == method and request.path.startswith(path))

    def answer(self, request: Request) -> tuple[int, str, dict[str, str]]:
        """Return status, body and headers of the response."""
        raise NotImplementedError

    def fault_for(self, request: Request) -> Fault | None:
        for fault in self.faults:
            if request.path.startswith(fault.path) and fault.method in ("", request.method) and fault.times > 0:
                fault.times -= 1
                return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    fake: FakeService
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 120

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if urlsplit(self.path).path == "/control":
            self._control(body)
            return
        request = Request(
            self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body, time.time()
        )
        self.fake.requests.append(request)
        fault = self.fake.fault_for(request)
        if fault is None:
            self._send(*self.fake.answer(request))
        else:
            self._fail(fault)

    do_GET = do_PUT = do_POST = _serve  # noqa: N815  (the base class finds methods by the verb)

    def _control(self, body: bytes) -> None:
        message = json.loads(body or b"{}")
        t0 = self.fake.set(**message.get("set", {}))
        self.fake.skew = message.get("skew", self.fake.skew)
        self.fake.faults += [Fault(**fault) for fault in message.get("faults", [])]
        requests = [
            {"method": request.method, "path": request.path, "at": request.at} for request in self.fake.requests
        ]
        self._send(200, json.dumps({"t0": t0, "requests": requests}), {"Content-Type": "application/json"})

    def _fail(self, fault: Fault) -> None:
        self.close_connection = True
        match fault.how:
            case "hang":
                with self.fake.changed:
                    self.fake.changed.wait_for(lambda: self.fake.closing, 60)
            case "drop":
                pass
            case "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            case "garbage":
                self.wfile.write(fault.body.encode() or b"\x00\xff\x00 who are you\r\n\r\n")
            case "endless":
                self.send_response(200)
                self.end_headers()
                while not self.fake.closing:
                    self.wfile.write(b"A" * 65536)
            case "trickle":
                self.send_response(200)
                self.send_header("Content-Length", str(1000 + len(fault.body)))
                self.end_headers()
                for character in fault.body + " " * 1000:
                    self.wfile.write(character.encode())
                    with self.fake.changed:
                        if self.fake.changed.wait_for(lambda: self.fake.closing, 0.05):
                            return
            case "headers":
                self.send_response(200)
                while not self.fake.closing:
                    self.wfile.write(b"X-More: " + b"A" * 4096 + b"\r\n")
            case "short":
                self.send_response(200)
                self.send_header("Content-Length", str(2 * len(fault.body)))
                self.end_headers()
                self.wfile.write(fault.body.encode())
            case _:
                self.close_connection = False
                self._send(fault.status, fault.body, fault.headers)

    def _send(self, status: int, body: str, headers: dict[str, str]) -> None:
        data = body.encode("latin-1")
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() + self.fake.skew, usegmt=True))
        for name, value in {"Content-Type": "text/plain", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass

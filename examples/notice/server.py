"""A server that drains at the notice, as inference servers such as vLLM and Ray Serve do on SIGTERM.

    python server.py PORT [SECONDS_PER_REQUEST]
    curl --data prompt http://localhost:PORT/generate

At a notice, /healthz and new requests get the status 503, so that clients and load balancers use another server. The
server exits when the current requests are finished. If the notice is canceled before that, it serves again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

POLL_INTERVAL_S = 0.2


class Server(ThreadingHTTPServer):
    """Counts its requests, so that it can end after the last one."""

    daemon_threads = False

    def __init__(self, port: int, seconds: float) -> None:
        super().__init__(("", port), Handler)
        self.seconds = seconds
        self.draining = False
        self.terminated = False
        self._lock = threading.Lock()
        self.current = 0
        """Requests that are not finished."""

    def begin(self) -> bool:
        """Start a request; False while the server drains."""
        with self._lock:
            self.current += not self.draining
            return not self.draining

    def end(self) -> None:
        """Finish a request."""
        with self._lock:
            self.current -= 1

    def follow(self, notice: Path | None) -> None:
        """Drain from the notice or SIGTERM on; returns when the server may exit."""
        phase = "none"
        while True:
            if notice is not None:
                with suppress(OSError):  # Without Kubernetes, the file is removed when the notice ends.
                    phase = json.loads(notice.read_text())["phase"]
            with self._lock:
                if self.draining != (self.terminated or phase == "notice"):
                    self.draining = not self.draining
                    print("drains" if self.draining else "serves again", flush=True)
                if self.draining and not self.current:
                    return
            time.sleep(POLL_INTERVAL_S)


class Handler(BaseHTTPRequestHandler):
    """Answers /healthz with the number of current requests, and /generate."""

    server: Server

    def do_GET(self) -> None:
        self._respond(503 if self.server.draining else 200, str(self.server.current))

    def do_POST(self) -> None:
        if not self.server.begin():
            self._respond(503, "draining")
            return
        try:
            prompt = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            time.sleep(self.server.seconds)  # the work of a request
            self._respond(200, prompt.decode().upper())
        finally:
            self.server.end()

    def _respond(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def main(port: int, seconds: float) -> int:
    """Serve until the notice, or SIGTERM."""
    server = Server(port, seconds)
    directory = os.environ.get("DRA_AGENT_NOTICE_DIR")

    def terminate(number: int, frame: object) -> None:
        server.terminated = True

    signal.signal(signal.SIGTERM, terminate)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"serves port {server.server_port}", flush=True)
    server.follow(None if directory is None else Path(directory) / "notice.json")
    server.shutdown()
    server.server_close()
    print("drained", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1.0))

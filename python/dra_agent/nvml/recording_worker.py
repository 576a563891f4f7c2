"""The worker process that also records: each call goes into a log with its response and the library's latency.

Calls are taken where pynvml's functions are called, so that the agent's own code is the same with and without a log.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

from dra_agent.nvml.worker import WorkerServer, serve_agent


class RecordingServer(WorkerServer):
    """Serves one agent and appends to the log."""

    def __init__(self, connection: socket.socket, generation: int, path: str, log: str) -> None:
        super().__init__(connection, generation, path)
        self._writing = threading.Lock()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def answer(self, name: str, encoded: list[Any]) -> dict[str, Any]:
        """Make a call and record it."""
        began = time.perf_counter()
        answer = super().answer(name, encoded)
        taken = round((time.perf_counter() - began) * 1000, 3)
        line = json.dumps({"name": name, "args": encoded, **answer, "ms": taken}, separators=(",", ":")) + "\n"
        with self._writing:
            os.write(self._log, line.encode())
        return answer


if __name__ == "__main__":
    serve_agent(lambda connection: RecordingServer(connection, int(sys.argv[2]), sys.argv[3], sys.argv[4]))

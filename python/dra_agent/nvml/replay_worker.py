"""A worker process without a library: it responds to the calls of a log with the recorded responses, and to no other.

The n-th call with the same name and arguments gets the n-th recorded response, and later ones the last. A call that is
not in the log is refused as by an older driver, and written to a list of calls that the recording does not have.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from dra_agent.nvml import call_log
from dra_agent.nvml.worker import WorkerServer, serve_agent

FUNCTION_NOT_FOUND = 13
"""Of nvmlReturn_t."""


class ReplayServer(WorkerServer):
    """Serves one agent from a log."""

    def __init__(self, connection: socket.socket, generation: int, log: Path, misses: Path) -> None:
        super().__init__(connection, generation, "")
        self._misses = misses
        self._choosing = threading.Lock()
        self._responses: dict[str, list[call_log.RecordedCall]] = defaultdict(list)
        for call in reversed(call_log.parse(log.read_bytes())):
            self._responses[_key(call.name, call.args)].append(call)

    def answer(self, name: str, encoded: list[Any]) -> dict[str, Any]:
        """Return the recorded response."""
        with self._choosing:
            responses = self._responses.get(_key(name, encoded))
            if not responses:
                with self._misses.open("a") as file:
                    file.write(_key(name, encoded) + "\n")
                return {"refused": [FUNCTION_NOT_FOUND, f"the recording has no call {name}"]}
            call = responses[-1] if len(responses) == 1 else responses.pop()
        answer: dict[str, Any] = {"value": call.value}
        for kind in ("refused", "missing", "defect", "stale"):
            if (found := getattr(call, kind)) is not None:
                answer = {kind: found}
        return {**answer, "filled": call.filled} if call.filled else answer


def _key(name: str, encoded: list[Any]) -> str:
    return f"{name}({json.dumps(encoded, separators=(',', ':'), sort_keys=True)[1:-1]})"


if __name__ == "__main__":
    serve_agent(lambda connection: ReplayServer(connection, int(sys.argv[2]), *map(Path, sys.argv[4:6])))

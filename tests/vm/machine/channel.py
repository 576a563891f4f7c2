"""JSON objects in lines through a unix socket of QEMU, to its monitor and to the shell server of the guest."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_INTERVAL_S = 0.05
MAX_READ_BYTES = 1 << 16


class Channel:
    """A connection that fails when the process at the other end does."""

    def __init__(self, path: Path, check_process: Callable[[], None]) -> None:
        self._check_process = check_process
        self._received = b""
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            check_process()
            try:
                self._socket.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(POLL_INTERVAL_S)
            else:
                break
        self._socket.settimeout(POLL_INTERVAL_S)

    def send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, within_s: float) -> dict[str, Any] | None:
        """Return the next message; None if there is none within that time."""
        end = time.monotonic() + within_s
        while b"\n" not in self._received:
            try:
                data = self._socket.recv(MAX_READ_BYTES)
            except TimeoutError:
                data = b""
            except ConnectionResetError:
                data = b""
                time.sleep(POLL_INTERVAL_S)
            if not data:
                self._check_process()
                if time.monotonic() > end:
                    return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self._socket.close()

"""Runs commands for the host: a JSON line {"id", "command", "timeout"} in, a line {"id", "code", "output"} out.

The lines pass through the virtio-serial port named "shell". Also writes the events of the kernel to a file of the host.
Runs in the guest with the standard library alone, as the first process or below it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

PORTS = Path("/sys/class/virtio-ports")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
EVENTS = Path("/shared/events")
NETLINK_KOBJECT_UEVENT = 15
TIMED_OUT = 124
"""As timeout(1) returns it."""
POLL_INTERVAL_S = 0.05


def find_port() -> Path:
    """Return the device node of the port as soon as it exists."""
    while True:
        for port in PORTS.glob("*/name"):
            node = Path("/dev") / port.parent.name
            if port.read_text().strip() == "shell" and node.exists():
                return node
        time.sleep(POLL_INTERVAL_S)


def record_events() -> None:
    """Write each event of the kernel, with its time, to the host's directory."""
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_KOBJECT_UEVENT) as events,
        EVENTS.open("w") as file,
    ):
        events.bind((0, 1))
        while True:
            header = events.recv(1 << 16).partition(b"\0")[0].decode(errors="replace")
            file.write(f"{time.time()} {header}\n")
            file.flush()


class Server:
    """Each command has a thread, so that one that hangs delays no other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()

    def serve(self) -> None:
        self._send({"id": 0})
        received = b""
        while True:
            data = os.read(self._port, 1 << 16)
            if not data:
                # The host is not connected.
                time.sleep(POLL_INTERVAL_S)
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                threading.Thread(target=self._run, args=(json.loads(line),), daemon=True).start()

    def _run(self, request: dict[str, Any]) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", request["command"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=request["timeout"])
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            code = TIMED_OUT
        self._send({"id": request["id"], "code": code, "output": output.decode(errors="replace")})

    def _send(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._port, data) :]


if __name__ == "__main__":
    threading.Thread(target=record_events, daemon=True).start()
    Server(os.open(find_port(), os.O_RDWR)).serve()

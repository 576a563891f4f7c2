"""The simulated nvidia-cuda-mps-control: the daemon, and the program that sends it commands.

It supports the commands that limit clients, stores their values, and starts servers that do nothing. Faults are in
`mps.json` next to it, read at each command.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent
CONTROL, PID_FILE, LOCK_FILE = "control", "nvidia-cuda-mps-control.pid", "control_lock"
_PERCENT = re.compile(r"\d{1,3}(\.\d+)?")
_SIZE = re.compile(r"\d+[MGmg]?")
_MAX_READ_BYTES = 64 << 10
_POLL_INTERVAL_S = 0.5
"""Seconds between two checks for a request to stop."""


def pipes() -> Path:
    """The pipe directory of daemon and clients."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108 - NVIDIA's default


def logs() -> Path:
    """The log directory of the daemon."""
    return Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"))


def fault(command: str) -> str | None:
    """A fault of a command, which occurs after its delay."""
    path = HOME / "mps.json"
    if not path.exists():
        return None
    with (HOME / "mps.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        faults: list[dict[str, Any]] = json.loads(path.read_text())
        found = next((one for one in faults if one["command"] == command and one.get("times") != 0), None)
        if found is None:
            return None
        if found.get("times") is not None:
            found["times"] -= 1
            temporary = HOME / f"mps.json.{os.getpid()}"
            temporary.write_text(json.dumps(faults))
            temporary.replace(path)
    time.sleep(found.get("milliseconds", 0) / 1000)
    action: str | None = found.get("action")
    return action


class Daemon:
    """The commands that one daemon has received."""

    def __init__(self, *, multi_user: bool) -> None:
        self.multi_user = multi_user
        self.uid: int | None = None
        """The user of the server that has clients."""
        self.visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        self.percentage = 100.0
        self.limits: dict[str, str] = {}
        self.servers: list[int] = []
        self.ends = False
        self._commands: dict[str, Callable[[list[str]], str]] = {
            "get_server_list": self._server_list,
            "start_server": self._start_server,
            "shutdown_server": self._shutdown_server,
            "get_default_active_thread_percentage": lambda _: f"{self.percentage:.1f}",
            "set_default_active_thread_percentage": self._set_percentage,
            "get_default_device_pinned_mem_limit": lambda words: self.limits.get(self._device(words), "N/A"),
            "set_default_device_pinned_mem_limit": self._set_limit,
            "quit": self._quit,
            "connect": self._connect,
        }

    def answer(self, line: str) -> str:
        """Do one command."""
        words = line.split()
        if not words:
            return ""
        log(f"Received command: {line}")
        match fault(words[0]):
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                signal.pause()
            case "fail":
                return f"Failed to {words[0]}"
            case "ignore":
                return ""
        command = self._commands.get(words[0])
        if command is None:
            return f"Unknown command: {words[0]}"
        try:
            return command(words[1:])
        except (ValueError, IndexError) as error:
            return f"Invalid argument: {error}"

    def _set_percentage(self, words: list[str]) -> str:
        if not _PERCENT.fullmatch(words[0]) or not 0 < float(words[0]) <= 100:
            raise ValueError(f"{words[0]} is not a percentage")
        self.percentage = float(words[0])
        return f"{self.percentage:.1f}"

    def _set_limit(self, words: list[str]) -> str:
        device = self._device(words)
        if not _SIZE.fullmatch(words[1]):
            raise ValueError(f"{words[1]} is not a size")
        self.limits[device] = words[1]
        return ""

    def _device(self, words: list[str]) -> str:
        """The daemon numbers its visible GPUs from 0."""
        name = words[0]
        if name.isdecimal():
            if self.visible and int(name) >= len(self.visible):
                raise ValueError(f"no device {name}")
            return str(int(name))
        if name in self.visible:
            return str(self.visible.index(name))
        raise ValueError(f"no device {name}")

    def _server_list(self, _words: list[str]) -> str:
        self._reap()
        return "\n".join(str(pid) for pid in self.servers)

    def _start_server(self, words: list[str]) -> str:
        if words[:1] != ["-uid"] or not words[1].isdecimal():
            raise ValueError("start_server -uid UID")
        daemon = os.getpid()
        server = os.fork()
        if server == 0:
            # Neither the lock nor the socket is a server's, and it ends with its daemon, however that ends.
            os.closerange(3, 64)
            while os.getppid() == daemon:
                time.sleep(_POLL_INTERVAL_S)
            os._exit(0)
        self.servers.append(server)
        log(f"Starting new server {server} for user {words[1]}")
        return ""

    def _connect(self, words: list[str]) -> str:
        """Stand for a client of a user: a real one connects through CUDA, and no command does this."""
        uid = int(words[0])
        if self.multi_user:
            return "connected as user 0"
        if self.uid in (None, uid):
            self.uid = uid
            return f"connected as user {uid}"
        log(f"NEW CLIENT from user {uid}: Server is not ready, push client to pending list")
        return f"pending: the server is of user {self.uid}"

    def _shutdown_server(self, words: list[str]) -> str:
        if int(words[0]) not in self.servers:
            raise ValueError(f"no server {words[0]}")
        os.kill(int(words[0]), signal.SIGTERM)
        return ""

    def _quit(self, _words: list[str]) -> str:
        for server in self.servers:
            os.kill(server, signal.SIGTERM)
        self.ends = True
        return ""

    def _reap(self) -> None:
        for server in list(self.servers):
            if os.waitpid(server, os.WNOHANG)[0]:
                self.servers.remove(server)


def log(text: str) -> None:
    """Add a line to control.log."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S")
    with (logs() / "control.log").open("a") as file:
        file.write(f"[{moment}.000 Control {os.getpid():5d}] {text}\n")


def start(*, background: bool, multi_user: bool) -> int:
    """Start a daemon, one for each directory of pipes."""
    if multi_user and fault("multiuser") == "fail":
        return usage()
    if (action := fault("start")) in ("fail", "crash"):
        print("Failed to start the MPS control daemon", file=sys.stderr)
        return 1
    if action == "hang":
        signal.pause()
    pipes().mkdir(parents=True, exist_ok=True)
    logs().mkdir(parents=True, exist_ok=True)
    lock = os.open(pipes() / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    # The name of a socket is short, and a directory's may be long.
    os.chdir(pipes())
    Path(CONTROL).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(CONTROL)
    listening.listen()
    read_end, write_end = os.pipe()
    if background and os.fork():
        os.close(write_end)
        # Not the handlers of this process: the daemon has the lock and the socket.
        os._exit(0 if os.read(read_end, 1) else 1)
    if background:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
    Path(PID_FILE).write_text(f"{os.getpid()}\n")
    log(f"Starting control daemon using socket {pipes() / CONTROL}")
    os.write(write_end, b"1")
    os.close(read_end)
    os.close(write_end)
    serve(listening, multi_user=multi_user)
    for name in (PID_FILE, CONTROL):
        Path(name).unlink(missing_ok=True)
    return 0


def serve(listening: socket.socket, *, multi_user: bool) -> None:
    """Serve requests until the command to quit."""
    daemon = Daemon(multi_user=multi_user)
    listening.settimeout(_POLL_INTERVAL_S)
    while not daemon.ends:
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            if not Path(CONTROL).exists():
                # Its directory was removed, so no client can connect.
                return
            continue
        with connection:
            connection.settimeout(None)
            for line in connection.recv(_MAX_READ_BYTES).decode(errors="replace").splitlines():
                answer = daemon.answer(line)
                connection.sendall((answer + "\n").encode() if answer else b"")
    log("Exit")


def send() -> int:
    """Send the lines of standard input as commands, and print the responses."""
    text = sys.stdin.read()
    connection = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(pipes())
        connection.connect(CONTROL)
    except OSError:
        print(f"Cannot find MPS control daemon process (or its directory of pipes, {pipes()})")
        return 1
    with connection:
        connection.sendall(text.encode() or b"\n")
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while piece := connection.recv(_MAX_READ_BYTES):
                answer += piece
        except ConnectionError:
            return 1
    sys.stdout.write(answer.decode())
    return 0


def usage() -> int:
    """Print the usage, as for an option that is not known."""
    print("usage: nvidia-cuda-mps-control [-d | -f] [-M | -multiuser-server]", file=sys.stderr)
    return 1


def main(arguments: list[str]) -> int:
    """Run the program."""
    multi_user = [word for word in arguments if word in ("-M", "-multiuser-server")]
    match [word for word in arguments if word not in multi_user]:
        case ["-d"]:
            return start(background=True, multi_user=bool(multi_user))
        case ["-f"]:
            return start(background=False, multi_user=bool(multi_user))
        case [] if not multi_user:
            return send()
    return usage()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Stands for nvidia-cuda-mps-control: a daemon with a socket among its pipes, and commands on standard input.

It knows the commands that are used, answers and exits as nvidia-cuda-mps-control(1) states, and writes the commands
that it received to `commands` next to its logs. While a file `hangs` exists commands hang; `refuses` keeps the daemon
from starting, `denies` lets it refuse limits, and `ends-late` lets it end some time after it was asked to.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

PIPES = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
LOGS = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"])
MAX_LIFE_S = 1800
"""Of a daemon whose test did not live to end it; longer than any test runs."""
TAKEN = ("set_default_device_pinned_mem_limit", "set_device_pinned_mem_limit", "set_default_active_thread_percentage")


def serve(listening: socket.socket) -> None:
    servers = (LOGS / "servers").read_text() if (LOGS / "servers").exists() else ""
    while True:
        client, _ = listening.accept()
        with client:
            command = client.recv(4096).decode().strip()
            with (LOGS / "commands").open("a") as file:
                file.write(f"{command}\n")
            if command == "quit":
                (PIPES / "nvidia-cuda-mps-control.pid").unlink()
                client.sendall(b"\n")
                if (LOGS / "ends-late").exists():
                    time.sleep(0.1)
                    with (LOGS / "commands").open("a") as file:
                        file.write("ended\n")
                return
            known = command == "get_server_list" or (command.split()[0] in TAKEN and not (LOGS / "denies").exists())
            client.sendall((servers if command == "get_server_list" else "").encode() or b"\n" if known else b"!")


def start() -> int:
    if (LOGS / "refuses").exists():
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    path = PIPES / "control"
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    if os.fork():
        return 0
    os.setsid()
    (PIPES / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    with (LOGS / "commands").open("a") as file:
        file.write(f"started {os.environ['CUDA_VISIBLE_DEVICES']}\n")
    signal.alarm(MAX_LIFE_S)
    serve(listening)
    os._exit(0)


def command() -> int:
    text = sys.stdin.readline().strip()
    while (LOGS / "hangs").exists():
        time.sleep(0.05)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(PIPES / "control"))
            client.sendall(text.encode())
            answer = client.recv(4096).decode()
    except OSError:
        print("Cannot find MPS control daemon process")
        return 1
    if answer == "!":
        print(f"Unknown command: {text}")
        return 1
    print(answer, end="")
    return 0


sys.exit(start() if "-d" in sys.argv[1:] else command())

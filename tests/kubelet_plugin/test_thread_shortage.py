"""gRPC in a process for which the system has no room for another thread."""

from __future__ import annotations

import subprocess
import sys

from eventually import DEADLINE_S

FORKS = """
import os, resource, sys, threading
from concurrent.futures import ThreadPoolExecutor
import dra_agent.kubelet_plugin
import grpc

if os.geteuid() == 0:  # for whom there is no limit
    os.setgid(54321)
    os.setuid(54321)
pool = ThreadPoolExecutor(1)
pool.submit(int).result()
server = grpc.server(pool)
server.add_insecure_port("127.0.0.1:0")
server.start()
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    print(error)
try:
    os.fork()
except BlockingIOError:
    print("no room for a process")
print("alive", flush=True)
os._exit(0)
"""


def test_a_fork_without_room_does_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.stdout.splitlines() == ["can't start new thread", "no room for a process", "alive"], done.stderr
    assert done.returncode == 0

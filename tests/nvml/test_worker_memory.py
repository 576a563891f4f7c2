"""The process of the library returns memory that a call of the library has freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PIECES_KIB = 64 * 1024
SERVED = """
import ctypes, json, socket, threading
import pynvml
from dra_agent.nvml import worker

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

def fragment():
    pieces = [libc.malloc(4096) for _ in range(16384)]
    for piece in pieces:
        ctypes.memset(piece, 1, 4096)
    for piece in pieces[:-1]:  # the last one keeps the end of the heap where it is
        libc.free(piece)
    return resident()

pynvml.nvmlSystemGetDriverVersion = fragment
pynvml.nvmlSystemGetNVMLVersion = resident
worker.TRIM_INTERVAL_S = 0.0
here, there = socket.socketpair()
threading.Thread(target=worker.WorkerServer(there, 1, "").serve, daemon=True).start()
lines = here.makefile("r")
lines.readline()

def call(number, name):
    here.sendall(json.dumps({"id": number, "lane": "lane", "name": name, "args": []}).encode() + b"\\n")
    return json.loads(lines.readline())["value"]

# The response does not wait until memory is returned; the next call of the lane does.
print(call(1, "nvmlSystemGetDriverVersion"), call(2, "nvmlSystemGetNVMLVersion"))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the function")
def test_memory_that_the_library_has_freed_is_returned() -> None:
    command = [sys.executable, "-c", SERVED]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    with_free_memory, later = map(int, output.split())
    assert with_free_memory - later > PIECES_KIB * 3 // 4, f"{with_free_memory} KiB were resident, later {later} KiB"

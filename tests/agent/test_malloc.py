"""Threads share arenas, and freed memory is returned to the kernel."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dra_agent.malloc import NO_THREAD_CACHE, TUNABLES, without_thread_caches

ROOT = Path(__file__).resolve().parents[2]

FRAGMENTED = """
import ctypes
from dra_agent.malloc import trim

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

pieces = [libc.malloc(4096) for _ in range(16384)]
for piece in pieces:
    ctypes.memset(piece, 1, 4096)
for piece in pieces[:-1]:  # the last one keeps the end of the heap where it is
    libc.free(piece)
before = resident()
given = trim()
print(given, before - resident())
"""

THREADS = """
import ctypes, threading
from dra_agent.malloc import limit_free_memory

print(limit_free_memory())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.fdopen.restype, libc.fdopen.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_char_p]
libc.malloc_info.argtypes, libc.fflush.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
together = threading.Barrier(16)

def allocate():
    libc.malloc(1024)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(together.parties)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
output = libc.fdopen(1, b"w")
libc.malloc_info(0, output)
libc.fflush(output)
"""

# struct mallinfo2 (mallinfo(3)): the fifth is the number of bytes in separate mappings, the eighth that in use, to
# which free blocks of a thread belong.
MALLINFO = """
import ctypes

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
fields = [(f"n{number}", ctypes.c_size_t) for number in range(10)]
libc.mallinfo2.restype = type("mallinfo2", (ctypes.Structure,), {"_fields_": fields})
"""
LARGE_BLOCKS = f"""{MALLINFO}
from dra_agent.malloc import limit_free_memory

print(limit_free_memory())
for _ in range(3):
    libc.free(libc.malloc(1 << 20))
before = libc.mallinfo2().n4
libc.malloc(512 * 1024)
print(libc.mallinfo2().n4 - before)
"""
SMALL_BLOCKS = f"""{MALLINFO}
sizes = range(24, 1024, 16)
before = libc.mallinfo2().n7
for block in [libc.malloc(size) for size in sizes for _ in range(7)]:
    libc.free(block)
print(libc.mallinfo2().n7 - before)
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these functions")


def test_threads_share_arenas() -> None:
    output = subprocess.run([sys.executable, "-uc", THREADS], check=True, capture_output=True, text=True).stdout
    assert output.startswith("True")
    assert output.count("<heap nr=") == 2


def test_a_large_block_is_apart_from_small_ones_also_after_larger_blocks() -> None:
    output = subprocess.run([sys.executable, "-c", LARGE_BLOCKS], check=True, capture_output=True, text=True).stdout
    given, mapped_bytes = output.split()
    assert given == "True"
    assert int(mapped_bytes) >= 512 * 1024, "the block is between small ones"


def test_a_thread_keeps_no_free_blocks() -> None:
    environment = {**os.environ, **without_thread_caches({TUNABLES: "glibc.malloc.perturb=0"})}
    command = [sys.executable, "-c", SMALL_BLOCKS]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert int(output) < 16 * 1024, f"{output} bytes of free blocks are kept"


def test_tunables_of_the_caller_have_precedence() -> None:
    # The C library reads them in order.
    given = without_thread_caches({TUNABLES: "glibc.malloc.tcache_count=3"})
    assert given == {TUNABLES: "glibc.malloc.tcache_count=0:glibc.malloc.tcache_count=3"}


@pytest.mark.parametrize("file", ["systemd/dra-agent.service", "deploy/Containerfile"])
def test_the_agent_is_started_without_caches_of_threads(file: str) -> None:
    assert f"{TUNABLES}={NO_THREAD_CACHE}" in (ROOT / file).read_text()


def test_free_pages_below_a_used_page_are_returned() -> None:
    output = subprocess.run(
        [sys.executable, "-c", FRAGMENTED], check=True, capture_output=True, text=True
    ).stdout.split()
    assert output[0] == "True"
    assert int(output[1]) > 48 * 1024, f"only {output[1]} KiB of 64 MiB of free memory were returned"

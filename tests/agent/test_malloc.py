"""Freed memory is returned to the kernel."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FRAGMENTED = """
import ctypes
from dra_agent.agent.housekeeping import trim

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_free_pages_below_a_used_page_are_returned() -> None:
    output = subprocess.run(
        [sys.executable, "-c", FRAGMENTED], check=True, capture_output=True, text=True
    ).stdout.split()
    assert output[0] == "True"
    assert int(output[1]) > 48 * 1024, f"only {output[1]} KiB of 64 MiB of free memory were returned"

"""The C library's memory: fewer arenas, large blocks apart, and free pages returned to the kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

TUNABLES = "GLIBC_TUNABLES"
"""The variable that the C library reads when a process starts; musl has none."""
NO_THREAD_CACHE = "glibc.malloc.tcache_count=0"
"""By default each thread keeps up to seven free blocks of each size up to 1 KiB: about 200 KiB, which it returns only
when it ends. The service and the image set this for the agent, since no function can."""

MAX_ARENAS = 2
"""Maximum arenas. By default the C library makes up to 8 for each CPU, one for each new thread, and each keeps free
memory. Few allocations compete: Python allocates small objects itself, one thread at a time."""
LARGE_BLOCK_BYTES = 64 * 1024
"""Blocks from this size on have their own mapping, which is returned to the kernel when they are freed. By default the
C library raises this limit to the size of each such block that is freed: later blocks then lie between small ones, and
what they occupied stays with the process in pieces."""
KEPT_FREE_BYTES = 128 * 1024
"""Free memory at the end of an arena that is kept: the default, which is raised together with the limit above."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""mallopt(3)"""


def limit_free_memory() -> bool:
    """Limit what the C library keeps; return False if it has no mallopt (musl). An existing arena remains."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    limits = ((_M_ARENA_MAX, MAX_ARENAS), (_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES), (_M_TRIM_THRESHOLD, KEPT_FREE_BYTES))
    return all(mallopt(parameter, value) for parameter, value in limits)


def without_thread_caches(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable for a new process whose threads keep no free memory; what `environ` sets has precedence."""
    return {TUNABLES: ":".join(filter(None, (NO_THREAD_CACHE, environ.get(TUNABLES))))}


def trim() -> bool:
    """Release free pages; return True if there were any. A no-op if the C library has no malloc_trim (musl).

    Takes milliseconds, in which other threads wait for memory of the same arena: nothing for the way of a call.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return False
    trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return bool(trim(0))

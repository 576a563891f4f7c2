"""The C library's memory: fewer arenas, and free pages returned to the kernel."""

from __future__ import annotations

import ctypes

MAX_ARENAS = 2
"""Maximum arenas. By default the C library makes up to 8 for each CPU, one for each new thread, and each keeps free
memory. Few allocations compete: Python allocates small objects itself, one thread at a time."""
_M_ARENA_MAX = -8
"""mallopt(3)"""


def limit_arenas() -> bool:
    """Limit the arenas; return False if the C library has no mallopt (musl). An existing arena remains."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(_M_ARENA_MAX, MAX_ARENAS))


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

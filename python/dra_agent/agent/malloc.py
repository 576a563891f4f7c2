"""Gives memory that was freed back to the kernel.

Devices pass between Python and Rust as JSON, which is read into many small pieces and freed a moment later: six MiB
for the 208 partitions of eight GPUs. glibc gives back only what lies at the end of a heap, and something small that
lives on always lies there; malloc_trim(3) gives back every free page. Measured there: 8 MiB of 73 MiB.
"""

from __future__ import annotations


def trim() -> bool:
    """Give every free page back; whether there were any. Nothing happens where the C library has no malloc_trim (musl).

    Takes milliseconds, in which other threads wait for memory of the same arena: nothing for the way of a call.
    """
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return False
    trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return bool(trim(0))

"""A file in memory, for libraries that read files only.

OpenSSL reads keys only from paths, and would wait for a FIFO or a device at a path. What `user_file` has read with a
bound is passed to it as a path of this process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dra_agent import atomic_file


@contextmanager
def memory_file(data: bytes) -> Iterator[str]:
    """Yield a path of this process that leads to `data`, until the end of the block."""
    handle = os.memfd_create("data", os.MFD_CLOEXEC)
    try:
        atomic_file.write_all(handle, data)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)

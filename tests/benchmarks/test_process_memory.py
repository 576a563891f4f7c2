"""Memory of processes as benchmarks count it: each page once."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from process_memory import PAGE_BYTES, family, pages_once_mib

MAPPED_MIB = 32


@contextmanager
def child_that_shares_memory(memory: mmap.mmap) -> Iterator[int]:
    """Yield a child with every page of the memory in its table, which it only has once it reads the page."""
    ready, parents_end = os.pipe()
    end, keep = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(keep)
        for start in range(0, len(memory), PAGE_BYTES):
            memory[start]
        os.write(parents_end, b"1")
        os.read(end, 1)
        os._exit(0)
    os.close(end)
    try:
        assert os.read(ready, 1) == b"1"
        yield pid
    finally:
        os.close(keep)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(parents_end)


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel shows frames only to root")
def test_a_page_of_two_processes_counts_once() -> None:
    with mmap.mmap(-1, MAPPED_MIB << 20) as memory:
        memory.write(b"1" * (MAPPED_MIB << 20))
        with child_that_shares_memory(memory) as child:
            assert child in family(os.getpid())
            parent, both = pages_once_mib([os.getpid()]), pages_once_mib([os.getpid(), child])
    assert parent > MAPPED_MIB
    # Without sharing, the child has the mapped memory again; what it copied after the fork is far less.
    assert both < parent + MAPPED_MIB / 2

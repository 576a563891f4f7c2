"""Tests in the process of root see the permissions of files, as those of any other user do.

Otherwise a test that writes to a read-only file of a simulated host passes for root and fails for everyone else.
Programs that a test starts have all permissions of their user.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

_VERSION_3 = 0x20080522
_IGNORES_FILE_PERMISSIONS = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of linux/capability.h."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def obey() -> None:
    """Have this thread, and those that it starts, obey the permissions of files."""
    _change(lambda effective, _permitted: effective & ~_IGNORES_FILE_PERMISSIONS)


@contextmanager
def ignored() -> Iterator[None]:
    """Have this thread ignore them again during the block, as a service of root does; for root only."""
    _change(lambda effective, permitted: effective | permitted & _IGNORES_FILE_PERMISSIONS)
    try:
        yield
    finally:
        obey()


@pytest.fixture(scope="session", autouse=True)
def permissions_of_root() -> Iterator[None]:
    """For folders whose tests need root, and change what belongs to other users: import it in their `conftest.py`."""
    with ignored():
        yield


def _change(change: Callable[[int, int], int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    if libc.capget(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    data[0].effective = change(data[0].effective, data[0].permitted)
    if libc.capset(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

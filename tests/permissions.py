"""Tests in the process of root see the permissions of files, as those of any other user do.

Otherwise a test that writes to a read-only file of a simulated host passes for root and fails for everyone else.
Programs that a test starts have all permissions of their user.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_VERSION_3 = 0x20080522
_IGNORES_FILE_PERMISSIONS = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of linux/capability.h."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


class Obeyed:
    """Has the main thread of the tests, and those that it starts, obey the permissions of files.

    Until the last test has ended: then pytest removes directories of earlier runs, with what tests gave to other users.
    """

    def __init__(self) -> None:
        self._before = _ignore(0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Return the earlier permissions."""
        _ignore(self._before)


@contextmanager
def ignored() -> Iterator[None]:
    """Have this thread ignore them during the block, as a service of root does; for root only."""
    before = _ignore(_IGNORES_FILE_PERMISSIONS)
    try:
        yield
    finally:
        _ignore(before)


def keep_ignoring() -> None:
    """Have this process and its children ignore them after it became another user than root."""
    _ignore(_IGNORES_FILE_PERMISSIONS, inherited=True)


@pytest.fixture(scope="session", autouse=True)
def permissions_of_root() -> Iterator[None]:
    """For folders whose tests need root, and change what belongs to other users: import it in their `conftest.py`."""
    with ignored():
        yield


def _ignore(wanted: int, *, inherited: bool = False) -> int:
    """Have these of the two capabilities in effect, as far as this user has them; return the earlier ones.

    With `inherited` this process has no others, and the programs that it starts can have them, too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    _check(libc.capget(ctypes.byref(header), data))
    own = data[0]
    before = own.effective & _IGNORES_FILE_PERMISSIONS
    own.effective = own.effective & ~_IGNORES_FILE_PERMISSIONS | wanted & own.permitted
    if inherited:
        own.effective = own.permitted = own.inheritable = wanted & own.permitted
    _check(libc.capset(ctypes.byref(header), data))
    return int(before)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

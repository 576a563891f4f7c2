"""What an open file is: a device by its kind and number, any other by its inode.

The path of a device node does not matter: a container has nodes of the same device elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

_AT_FDCWD = -100
_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE, _STATX_INO = 0x1, 0x100
_STATX_BYTES = 256
_MODE = struct.Struct("=28xH")
_INODE = struct.Struct("=32xQ")
_DEVICES = struct.Struct("=128xIIII")
"""Of struct statx (statx(2)): stx_mode, stx_ino, and stx_rdev_major to stx_dev_minor."""


class FileIdentity(NamedTuple):
    """Equal for two paths of one device, or of one file."""

    kind: Literal["character", "block", "file"]
    """Character and block devices have separate numbers. A file represents a device node on a simulated host."""
    device: int
    """The number of the device, or of the file system."""
    inode: int = 0


def device_identity(major: int, minor: int, *, is_block: bool = False) -> FileIdentity:
    """Return the identity of a character device, or of a block device."""
    return FileIdentity("block" if is_block else "character", os.makedev(major, minor))


def identity_of(path: Path | str) -> FileIdentity:
    """Return what a path refers to, with what the kernel knows: a file server that does not respond never blocks it.

    Raises:
        OSError: The file does not exist, or cannot be read.
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    done = _statx()(_AT_FDCWD, os.fsencode(path), _AT_STATX_DONT_SYNC, _STATX_TYPE | _STATX_INO, buffer)
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(path))
    content = buffer.raw
    major, minor, file_system_major, file_system_minor = _DEVICES.unpack_from(content)
    (mode,) = _MODE.unpack_from(content)
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return device_identity(major, minor, is_block=stat.S_ISBLK(mode))
    file_system = os.makedev(file_system_major, file_system_minor)
    return FileIdentity("file", file_system, _INODE.unpack_from(content)[0])


@cache
def _statx() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).statx
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
    return function

"""Programs on a network interface that rtnetlink does not list: tcx programs, through bpf(2) (Linux 6.6, linux/bpf.h).

Unlike queueing disciplines and their filters, they stay attached if the interface moves to another network namespace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_SYSCALL = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine)
_PROG_DETACH, _PROG_GET_FD_BY_ID, _PROG_QUERY = 9, 13, 16
_INGRESS, _EGRESS = 46, 47
"""BPF_TCX_INGRESS and BPF_TCX_EGRESS."""
_ATTRIBUTES_BYTES = 128
_QUERY = struct.Struct("<IIIIQI")
MAX_PROGRAMS = 64
"""Maximum programs that the kernel attaches for each direction (BPF_MPROG_MAX)."""


def tcx_programs(index: int) -> tuple[int, ...] | None:
    """Return the IDs of the programs of an interface; None without the permission to list them."""
    found: list[int] = []
    for direction in (_INGRESS, _EGRESS):
        programs = _query(index, direction)
        if programs is None:
            return None
        found += programs
    return tuple(sorted(set(found)))


def detach_tcx(index: int, program: int) -> str:
    """Detach a program; return the reason if that fails, otherwise ""."""
    try:
        descriptor, _ = _bpf(_PROG_GET_FD_BY_ID, struct.pack("<I", program))
    except OSError as error:
        return "" if error.errno == errno.ENOENT else str(error.strerror)
    try:
        for direction in (_INGRESS, _EGRESS):
            if program not in (_query(index, direction) or ()):
                continue
            try:
                _bpf(_PROG_DETACH, struct.pack("<III", index, descriptor, direction))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    return str(error.strerror)
    finally:
        os.close(descriptor)
    return ""


def _query(index: int, direction: int) -> list[int] | None:
    ids = (ctypes.c_uint32 * MAX_PROGRAMS)()
    try:
        _, attributes = _bpf(_PROG_QUERY, _QUERY.pack(index, direction, 0, 0, ctypes.addressof(ids), MAX_PROGRAMS))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENODEV):
            return []  # a kernel without tcx, or an interface without programs
        return None
    count = _QUERY.unpack_from(attributes)[5]
    return list(ids[:count])


def _bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """Make the system call; return its result and the attributes that the kernel wrote. Raises the kernel's OSError."""
    if _SYSCALL is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    library = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes.ljust(_ATTRIBUTES_BYTES, b"\0"), _ATTRIBUTES_BYTES)
    result: int = library.syscall(_SYSCALL, command, buffer, _ATTRIBUTES_BYTES)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result, buffer.raw

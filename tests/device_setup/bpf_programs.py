"""Programs for the kernel (eBPF) on an interface, loaded through bpf(2), as a privileged container does."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

XDP, TCX = 6, 3
"""BPF_PROG_TYPE_XDP, and BPF_PROG_TYPE_SCHED_CLS, which is attached at BPF_TCX_INGRESS (linux/bpf.h)."""
_TCX_INGRESS = 46
_ATTACH_TYPE_XDP = 37
_SYSCALL = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
_PROG_LOAD, _PROG_ATTACH, _LINK_CREATE = 5, 8, 28


def _bpf(command: int, attributes: bytes) -> int:
    """Do one call; OSError as the kernel answers."""
    if _SYSCALL is None:
        raise OSError(0, f"the number of bpf(2) is not known on {platform.machine()}")
    library = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    done: int = library.syscall(_SYSCALL, command, buffer, 128)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def load(kind: int) -> int:
    """Load a program that lets every packet pass; gives its descriptor."""
    code = {XDP: 2, TCX: 0}[kind]  # XDP_PASS, TCX_PASS
    instructions = struct.pack("<BBhi", 0xB7, 0, 0, code) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    text, license_ = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"GPL")
    return _bpf(_PROG_LOAD, struct.pack("<IIQQ", kind, 2, ctypes.addressof(text), ctypes.addressof(license_)))


def attach_tcx(index: int, program: int) -> None:
    """Attach a program, which stays with the interface; there is none before Linux 6.6."""
    _bpf(_PROG_ATTACH, struct.pack("<IIIII", index, program, _TCX_INGRESS, 0, 0))


def link(index: int, program: int) -> int:
    """Attach an XDP program by a link, for as long as the descriptor that it returns is open in a process."""
    return _bpf(_LINK_CREATE, struct.pack("<IIII", program, index, _ATTACH_TYPE_XDP, 0))

"""Sysfs attributes that this process serves, so that an access can block in the kernel.

They are files of a FUSE file system, served here without a library. An access waits in the kernel as for a driver that
does not return: once the request has been read from /dev/fuse, not even SIGKILL ends the wait
(request_wait_answer in fs/fuse/dev.c). The connection ends with this process, and with it every wait.
The numbers are those of include/uapi/linux/fuse.h, version 7.31.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE = 1, 2, 3, 4, 14, 15, 16
_RELEASE, _FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 18, 25, 26, 27, 28, 29, 36, 42
_WITHOUT_REPLY = {_FORGET, _INTERRUPT, _BATCH_FORGET}
_EMPTY_REPLY = {_RELEASE, _FLUSH, _READDIR, _RELEASEDIR}
_IN, _OUT, _ATTR = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ"), struct.Struct("<QQQQQQIIIIIIIIII")
_ROOT, _PAGE, _BUFFER = 1, 4096, 1 << 17
_DIRECT_IO = 1
_MS_NOSUID, _MS_NODEV = 2, 4


@dataclass(frozen=True)
class Attribute:
    """Handlers of reads and writes: they may block, or raise an OSError."""

    read: Callable[[], str] = lambda: ""
    write: Callable[[str], object] = lambda _: None


@contextlib.contextmanager
def serve_attributes(directory: Path, attributes: dict[Path, Attribute]) -> Iterator[None]:
    """Serve accesses to the named files with these handlers during the block.

    `directory` is the mount point of the file system. Missing files are created. Each access has its own thread.
    """
    assert Path("/dev/fuse").exists(), "this scenario needs /dev/fuse (`modprobe fuse`)"
    directory.mkdir(parents=True)
    files = list(attributes)
    _Server(directory, [attributes[file] for file in files])
    mounted = [directory]
    try:
        for number, file in enumerate(files):
            if not file.exists():
                file.touch()
            subprocess.run(["mount", "--bind", str(directory / str(number)), str(file)], check=True)
            mounted.append(file)
        yield
    finally:
        # Forced: the connection is aborted, and with it every access that still waits.
        subprocess.run(["umount", "--force", str(directory)], check=False, capture_output=True)
        for point in reversed(mounted):
            subprocess.run(["umount", "--lazy", str(point)], check=False, capture_output=True)


class _Server:
    def __init__(self, directory: Path, attributes: list[Attribute]) -> None:
        self._attributes = attributes
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"attributes", os.fsencode(directory), b"fuse", _MS_NOSUID | _MS_NODEV, options):
            number = ctypes.get_errno()
            os.close(self._device)
            raise OSError(number, os.strerror(number), str(directory))
        self._thread = threading.Thread(target=self._serve, name="attributes", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, _BUFFER)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                os.close(self._device)  # ENODEV: it is unmounted
                return
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            body = request[_IN.size :]
            if opcode in (_READ, _WRITE):
                threading.Thread(target=self._respond, args=(opcode, unique, node, body), daemon=True).start()
            elif opcode not in _WITHOUT_REPLY:
                self._respond(opcode, unique, node, body)

    def _respond(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        try:
            number, reply = 0, self._handle(opcode, node, body)
        except OSError as error:
            number, reply = -(error.errno or errno.EIO), b""
        with contextlib.suppress(OSError):  # the waiting process has ended
            os.write(self._device, _OUT.pack(_OUT.size + len(reply), number, unique) + reply)

    def _handle(self, opcode: int, node: int, body: bytes) -> bytes:
        match opcode:
            case op if op == _INIT:
                readahead = struct.unpack_from("<I", body, 8)[0]
                return struct.pack("<IIIIHHIIHHI28x", 7, 31, readahead, 0, 0, 0, _PAGE, 1, 0, 0, 0)
            case op if op == _LOOKUP:
                name = body.rstrip(b"\0").decode()
                if not name.isdecimal() or int(name) >= len(self._attributes):
                    raise OSError(errno.ENOENT, name)
                found = _ROOT + 1 + int(name)
                return struct.pack("<QQQQII", found, 0, 0, 0, 0, 0) + _attr(found)
            case op if op in (_GETATTR, _SETATTR):
                return struct.pack("<QII", 0, 0, 0) + _attr(node)
            case op if op in (_OPEN, _OPENDIR):
                return struct.pack("<QIi", 0, _DIRECT_IO, 0)
            case op if op == _READ:
                _, offset, size = struct.unpack_from("<QQI", body)
                return self._attribute_of(node).read().encode()[offset : offset + size]
            case op if op == _WRITE:
                size = struct.unpack_from("<QQI", body)[2]
                self._attribute_of(node).write(body[40 : 40 + size].decode())
                return struct.pack("<II", size, 0)
            case op if op in _EMPTY_REPLY:
                return b""
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def _attribute_of(self, node: int) -> Attribute:
        return self._attributes[node - _ROOT - 1]


def _attr(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o644
    return _ATTR.pack(node, _PAGE, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, _PAGE, 0)

"""The initial RAM file system of the guest: busybox, the modules, and the two programs of guest/."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

GUEST = Path(__file__).resolve().parents[1] / "guest"
BUSYBOX = Path("/bin/busybox")
_DIRECTORY, _FILE = 0o040755, 0o100755


def write_initrd(path: Path, modules: Iterable[Path]) -> None:
    """Write it in the format `newc` of cpio (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    files = {"bin/busybox": BUSYBOX, "init": GUEST / "init", "shell_server.py": GUEST / "shell_server.py"}
    files |= {f"modules/{module.name}": module for module in modules}
    entries = [_entry(name, _DIRECTORY, b"") for name in ("bin", "dev", "modules", "proc", "sys")]
    entries += [_entry(name, _FILE, source.read_bytes()) for name, source in files.items()]
    path.write_bytes(gzip.compress(b"".join([*entries, _entry("TRAILER!!!", 0, b"")]), compresslevel=1))


def _entry(name: str, mode: int, content: bytes) -> bytes:
    encoded = name.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, four device numbers, length of the name, checksum
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    header = b"070701" + b"".join(b"%08X" % value for value in fields)
    return _padded(header + encoded) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)

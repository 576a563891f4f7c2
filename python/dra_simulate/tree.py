"""A file tree as a plan: files, links and device nodes below a root, and its writer.

It has no knowledge of PCI or vendors. Read-only files describe the machine; writable ones (mode 0644, as in sysfs) are
state, so writing a plan over an existing tree does not change them.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

READ_ONLY = 0o444
WRITABLE = 0o644


_BUS = "bus/pci/devices/"


@dataclass(frozen=True, slots=True)
class File:
    """A regular file. `traced` files get an access time of 0, so that a later read of them shows."""

    content: bytes
    mode: int = READ_ONLY
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link; the target is as it is written into the link."""

    target: str


@dataclass(frozen=True, slots=True)
class Node:
    """A character device node; a regular file if mknod is not permitted."""

    major: int
    minor: int
    mode: int = 0o666


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that may stay empty; others exist through their entries."""


Entry = File | Link | Node | Directory


class Tree:
    """The plan: paths relative to a root, each once."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def file(self, path: str, content: str | int | bytes, mode: int = READ_ONLY) -> None:
        """Plan an attribute: text and numbers get a newline, as the kernel prints them; bytes are written unchanged."""
        self.entries[path] = File(content if isinstance(content, bytes) else os.fsencode(f"{content}\n"), mode)

    def traced(self, path: str, content: bytes) -> None:
        """Plan a file whose reads can be detected (see `reads`)."""
        self.entries[path] = File(content, WRITABLE, traced=True)

    def files(self, folder: str, contents: Mapping[str, str | int | bytes], mode: int = READ_ONLY) -> None:
        """Plan many attributes of one folder."""
        for name, content in contents.items():
            self.file(f"{folder}/{name}", content, mode)

    def link(self, path: str, target: str) -> None:
        """Plan a link to another path of the tree; it is written relative, as sysfs does."""
        self.entries[path] = Link(relative(path, target))

    def node(self, path: str, major: int, minor: int, mode: int = 0o666, *, linked: bool = True) -> None:
        """Plan a character device node, and its link in dev/char, which udev makes if the kernel reports the device."""
        self.entries[path] = Node(major, minor, mode)
        if linked:
            self.link(f"dev/char/{major}:{minor}", path)

    def directory(self, path: str) -> None:
        """Plan a directory."""
        self.entries.setdefault(path, Directory())


def relative(link: str, target: str) -> str:
    """Return the relative target of a link at one path to another: `../d` for `("a/b/c", "a/d")`."""
    here, there = link.split("/")[:-1], target.split("/")
    shared = 0
    while shared < min(len(here), len(there) - 1) and here[shared] == there[shared]:
        shared += 1
    return "/".join([".."] * (len(here) - shared) + there[shared:])


def write(tree: Tree, root: Path, *, fresh: bool = False) -> None:
    """Write the tree to the disk: missing or different files are written, each by rename; nothing is removed.

    Links are last, and links of the PCI bus, by which devices are found, the very last: a device that is found is
    complete. A fresh tree, which has no readers, is written directly.
    """
    made = {""}
    for path, entry in sorted(tree.entries.items(), key=lambda item: (isinstance(item[1], Link), _BUS in item[0])):
        folder = path if isinstance(entry, Directory) else path.rpartition("/")[0]
        _make_folders(folder, root, made)
        if not isinstance(entry, Directory):
            where = f"{root}/{path}"
            if fresh:
                create(where, entry)
            elif not _is_there(where, entry):
                # The remains of an interrupted write would prevent the creation of a link or node.
                Path(f"{where}.new").unlink(missing_ok=True)
                create(f"{where}.new", entry)
                os.replace(f"{where}.new", where)  # noqa: PTH105


def remove(paths: Iterable[str], root: Path, keep: Collection[str] = ()) -> None:
    """Remove paths, links first so that no reader follows one into a partly removed directory, and empty directories.

    Directories in `keep` stay.
    """
    present = [(path, root / path) for path in paths if os.path.lexists(root / path)]
    for _, path in sorted(present, key=lambda item: (not item[1].is_symlink(), item[0])):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for folder in sorted({parent for path, _ in present for parent in _parents(path)}, key=len, reverse=True):
        where = root / folder
        if folder not in keep and where.is_dir() and not any(where.iterdir()):
            where.rmdir()


def reads(root: Path, name: str = "config") -> list[Path]:
    """Return the traced files of that name that were read since they were written.

    This uses access times, so the file system must record them: `relatime`, the default, does for a file's first read.
    """
    return sorted(path for path in (root / "sys").rglob(name) if path.is_file() and path.stat().st_atime_ns > 0)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by rename, so that a reader gets the old or the new content, never a mix."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def _make_folders(folder: str, root: Path, made: set[str]) -> None:
    if folder in made:
        return
    _make_folders(folder.rpartition("/")[0], root, made)
    with suppress(FileExistsError):
        os.mkdir(f"{root}/{folder}")  # noqa: PTH102  # thousands for a host
    made.add(folder)


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    # The first folder (sys, dev, proc) stays: it is a root of the host.
    return ["/".join(parts[:length]) for length in range(2, len(parts) + 1)]


def create(path: str, entry: File | Link | Node) -> None:
    """Create one file, link or device node of a tree."""
    match entry:
        case File(content, mode, traced):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            os.write(descriptor, content)
            if traced:
                os.utime(descriptor, ns=(0, os.fstat(descriptor).st_mtime_ns))
            os.close(descriptor)
        case Link(target):
            os.symlink(target, path)  # noqa: PTH211
        case Node(major, minor, mode):
            _make_node(path, major, minor, mode)


def _is_there(path: str, entry: File | Link | Node) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    match entry:
        case File(content, mode):
            if not stat.S_ISREG(status.st_mode):
                return False
            if mode & 0o200:
                return True
            return status.st_size == len(content) and _read(path, len(content)) == content
        case Link(target):
            return stat.S_ISLNK(status.st_mode) and os.readlink(path) == target  # noqa: PTH115
        case Node(major, minor):
            is_node = stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(major, minor)
            return is_node or stat.S_ISREG(status.st_mode)


def _read(path: str, size: int) -> bytes:
    # Thousands for a host: a file object takes several times as long.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def _make_node(path: str, major: int, minor: int, mode: int) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    except PermissionError:
        # Only root may make nodes, and not in every container; a file at least takes the node's place.
        with open(path, "wb"):  # noqa: PTH123
            pass
    os.chmod(path, mode)  # noqa: PTH101

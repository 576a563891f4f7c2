"""Reads small attribute files of one folder of sysfs: missing is None, unreadable is None and a problem.

It never opens `config`: reading PCI configuration space wakes sleeping devices.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from dra_agent.diagnostic import Diagnostic

_MAX_FILE_BYTES = 65536
"""Bytes: a sysfs attribute is at most a page long, a procfs table may be longer."""

# Errors of the kernel for "not supported by this device" and "not now" (a link that is down).
_NOT_HERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP, errno.ENODEV})


class SysfsDir:
    """One folder, and the list that its problems go to."""

    def __init__(self, folder: Path | str, problems: list[Diagnostic]) -> None:
        # Not a Path: a scan opens thousands of files, and most of its time would be spent on paths.
        self._folder = str(folder)
        self._problems = problems

    @property
    def folder(self) -> Path:
        """The path of the directory."""
        return Path(self._folder)

    def subdir(self, name: str) -> SysfsDir:
        """Return a directory inside this one."""
        return SysfsDir(f"{self._folder}/{name}", self._problems)

    def text(self, name: str) -> str | None:
        """Return a file's contents without surrounding white space; None if it is missing or empty."""
        path = f"{self._folder}/{name}"
        try:
            # Non-blocking: a damaged tree may contain a FIFO, which would block indefinitely.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    self._problems.append(Diagnostic(path, "is not a regular file"))
                    return None
                raw = os.read(descriptor, _MAX_FILE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._unreadable(path, error)
            return None
        return raw.decode(errors="replace").strip("\0 \t\r\n") or None

    def number(self, name: str) -> int | None:
        """Return a file's number, decimal or 0x...; other contents are reported as a problem."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return int(text, 16 if text[:2].lower() == "0x" else 10)
        except ValueError:
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            self._problems.append(Diagnostic(str(self.folder / name), f"expected a number, found {shown!r}"))
            return None

    def names(self, name: str = ".") -> list[str]:
        """Return the sorted names in a directory; none if it is missing."""
        path = self._folder if name == "." else f"{self._folder}/{name}"
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - a name, not a Path, per entry
        except OSError as error:
            self._unreadable(path, error)
            return []

    def link(self, name: str) -> str | None:
        """Return the last component of a link's target."""
        path = f"{self._folder}/{name}"
        try:
            return os.readlink(path).rpartition("/")[2] or None  # noqa: PTH115
        except OSError as error:
            self._unreadable(path, error)
            return None

    def key_values(self, name: str, separator: str = " ") -> dict[str, str]:
        """Return a file of lines "KEY VALUE" as a dict."""
        lines = (self.text(name) or "").splitlines()
        return {key: value.strip() for key, found, value in (line.partition(separator) for line in lines) if found}

    def _unreadable(self, path: Path | str, error: OSError) -> None:
        if error.errno not in _NOT_HERE:
            self._problems.append(Diagnostic(str(path), error.strerror or "cannot be read", _hint(error)))


def _hint(error: OSError) -> str | None:
    return "run the agent as root, or allow its user to read it" if error.errno in (errno.EACCES, errno.EPERM) else None

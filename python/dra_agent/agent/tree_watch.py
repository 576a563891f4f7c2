"""Notices changes below directories that are not the kernel's, such as those of a simulated host, without uevents."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dra_agent.agent.inotify import CREATE, DELETE, MODIFY, MOVED_FROM, MOVED_TO, Inotify
from dra_agent.host import Host

log = logging.getLogger(__name__)

_EVENTS = MODIFY | MOVED_FROM | MOVED_TO | CREATE | DELETE
"""Without CLOSE_WRITE: a file that is opened as a lock does not change."""
_KERNEL = Host()


def unannounced_trees(host: Host) -> tuple[Path, ...]:
    """Return the roots of the host for which the kernel sends no uevents; none for the machine of this process."""
    library = None if host.nvml_library is None else host.nvml_library.parent
    roots = (host.sysfs, host.dev, host.proc, host.net, library)
    known = {_KERNEL.sysfs, _KERNEL.dev, _KERNEL.proc}
    return tuple(root for root in roots if root is not None and root not in known)


class TreeWatch:
    """Calls back after changes below its directories, from `start` to `stop`, on the running event loop."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = tuple(roots)
        self._inotify: Inotify | None = None

    def start(self, changed: Callable[[], None]) -> bool:
        """Start; return False where changes cannot be followed. `changed` is called for each burst of events."""
        if any(_is_of_kernel(root) for root in self._roots):
            return False  # sysfs and procfs report no changes of their files
        try:
            self._inotify = Inotify()
            self.follow()
        except OSError as error:
            log.info("the host is scanned at an interval: its files cannot be followed", extra={"reason": str(error)})
            self.stop()
            return False
        asyncio.get_running_loop().add_reader(self._inotify.descriptor, self._receive, changed)
        return True

    def follow(self) -> None:
        """Follow directories that are new, too. Safe on any thread; raises OSError if one cannot be followed."""
        assert self._inotify is not None
        for root in self._roots:
            for folder, _, _ in os.walk(root):
                with suppress(FileNotFoundError):  # removed meanwhile
                    self._inotify.add(folder, _EVENTS)

    def stop(self) -> None:
        """Stop."""
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.descriptor)
            self._inotify.close()
            self._inotify = None

    def _receive(self, changed: Callable[[], None]) -> None:
        assert self._inotify is not None
        self._inotify.drain()
        changed()


def _is_of_kernel(root: Path) -> bool:
    """Return whether the kernel makes the files of a directory, or that is not known."""
    try:
        device = root.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return True
    number = f"{os.major(device)}:{os.minor(device)}"
    fields = [line.split() for line in mounts.splitlines()]
    types = [one[one.index("-") + 1] for one in fields if one[2] == number and "-" in one]
    return any(kind in ("sysfs", "proc", "devtmpfs") for kind in types)

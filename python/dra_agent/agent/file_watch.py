"""Notices changes of one file through inotify(7) on its directory, which also reports a replaced file.

An editor renames a new file over the old one; the kubelet renames a new `..data` link over the old one, below which
every key of a ConfigMap is (pkg/volume/util/atomic_writer.go). Both change the directory, and not the file itself.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from pathlib import Path

from dra_agent.agent.inotify import CLOSE_WRITE, CREATE, DELETE, MOVED_FROM, MOVED_TO, Inotify

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.2
"""Seconds without a further event before the change is reported: an editor causes several."""
_EVENTS = CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE


class FileWatch:
    """Calls back after changes in the directory of a file, from `start` to `stop`, on the running event loop."""

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        """`changed` is called after a burst of events of the directory, which may be about other files of it."""
        self._path = path.absolute()
        self._changed = changed
        self._inotify: Inotify | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> bool:
        """Start; returns False if the directory cannot be followed, which is logged."""
        try:
            inotify = Inotify()
        except OSError as error:
            return self._failed(error)
        failures: list[OSError] = []
        # A link to a file elsewhere: that file is replaced or written in its own directory.
        folders = tuple(dict.fromkeys((self._path.parent, self._path.resolve().parent)))
        for folder in folders:
            try:
                inotify.add(folder, _EVENTS)
            except OSError as error:
                failures.append(error)
        if len(failures) == len(folders):
            inotify.close()
            return self._failed(failures[0])
        self._inotify = inotify
        asyncio.get_running_loop().add_reader(inotify.descriptor, self._receive)
        return True

    def stop(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.descriptor)
            self._inotify.close()
            self._inotify = None

    def _failed(self, error: OSError) -> bool:
        # Without a directory there is no file yet: the default one is optional.
        log.log(
            logging.DEBUG if error.errno == errno.ENOENT else logging.WARNING,
            "changes of the configuration file are not followed; SIGHUP reloads it",
            extra={"file": str(self._path), "reason": error.strerror},
        )
        return False

    def _receive(self) -> None:
        assert self._inotify is not None
        self._inotify.drain()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._changed)

"""Beats of the agents that share a state directory: one that is stopped or hangs holds its lock, but does not beat.

A beat is the size of a file, in tenths of a second since the host's boot: a size needs no block on a full disk, and
no step of a clock changes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

BEAT_INTERVAL_S = 1.0
BEAT_TIMEOUT_S = 5.0
"""Seconds without a beat after which an instance no longer counts: a notice may be as short as 30 s."""
_UNITS_PER_S = 10


class Beats:
    """The beats of all instances of one folder, by their orders."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        """`clock` returns the seconds since the host's boot."""
        self._folder = folder
        self._clock = clock

    def write(self, order: int) -> None:
        """Record that an instance runs. On a disk that refuses, none beats, and none is late."""
        path = self._path(order)
        with suppress(OSError):
            if not path.exists():
                path.touch(mode=0o600)
            os.truncate(path, int(self._clock() * _UNITS_PER_S))

    def is_late(self, order: int) -> bool:
        """Return whether an instance has not beaten for `BEAT_TIMEOUT_S`; False for a version without beats.

        A beat that is later than now is of an earlier boot: it does not say when the instance ran last.
        """
        try:
            beaten = self._path(order).stat().st_size / _UNITS_PER_S
        except OSError:
            return False
        return self._clock() - beaten >= BEAT_TIMEOUT_S

    def remove(self, order: int) -> None:
        """Forget an instance that has ended."""
        self._path(order).unlink(missing_ok=True)

    def _path(self, order: int) -> Path:
        return self._folder / f".beat-{order}"

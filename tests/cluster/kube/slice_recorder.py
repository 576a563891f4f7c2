"""Records the changes of ResourceSlices during a block, with the time of each event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from .api import SLICES, Api, Object
from .process import LONG_TIMEOUT_S


@dataclass(frozen=True)
class Event:
    """One event of a watch."""

    at: float
    """Time of time.monotonic()."""
    type: str
    """ADDED, MODIFIED or DELETED."""
    object: Object

    @property
    def name(self) -> str:
        """The slice's name."""
        return str(self.object["metadata"]["name"])


class SliceWatch:
    """Collects events during the `with` block."""

    def __init__(self, api: Api, fields: Mapping[str, str] | None = None) -> None:
        """`fields` as {"spec.driver": "..."}; all slices without it."""
        self._api = api
        self._fields = fields
        self._events: list[Event] = []
        self._started = threading.Event()
        self._end: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._collect, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(LONG_TIMEOUT_S), "the watch does not begin"
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._thread.join()

    @property
    def events(self) -> list[Event]:
        """The events so far."""
        return list(self._events)

    def of(self, *types: str) -> list[Event]:
        """Return the events of these types."""
        return [event for event in self.events if event.type in types]

    def _collect(self) -> None:
        for type_, item in self._api.watch(SLICES, fields=self._fields, begun=self._begun):
            self._events.append(Event(time.monotonic(), type_, item))

    def _begun(self, end: Callable[[], None]) -> None:
        self._end = end
        self._started.set()

"""What happens to the ResourceSlices while something else is going on, with the time of each event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from .api import SLICES, Api, Object
from .process import LONG


@dataclass(frozen=True)
class Event:
    """One event of a watch."""

    at: float
    """Seconds of time.monotonic()."""
    type: str
    """ADDED, MODIFIED or DELETED."""
    object: Object

    @property
    def name(self) -> str:
        """The slice's name."""
        return str(self.object["metadata"]["name"])


class SliceWatch:
    """Collects events from the beginning of the `with` block to its end."""

    def __init__(self, api: Api, fields: Mapping[str, str] | None = None) -> None:
        """`fields` as {"spec.driver": "..."}; every slice without."""
        self._api = api
        self._fields = fields
        self._events: list[Event] = []
        self._listed = threading.Event()
        self._end: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._collect, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listed.wait(LONG), "the watch does not begin"
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._thread.join()

    @property
    def events(self) -> list[Event]:
        """What has happened so far."""
        return list(self._events)

    def of(self, *types: str) -> list[Event]:
        """The events of these types."""
        return [event for event in self.events if event.type in types]

    def _collect(self) -> None:
        for type_, item in self._api.watch(SLICES, fields=self._fields, begun=self._begun):
            self._events.append(Event(time.monotonic(), type_, item))

    def _begun(self, end: Callable[[], None]) -> None:
        self._end = end
        self._listed.set()

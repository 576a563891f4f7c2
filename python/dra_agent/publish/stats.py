"""Statistics of the publisher for metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from dra_agent.errors import AgentError
from dra_agent.publish.errors import DroppedFieldsError, UnsupportedTaintEffectError


class PublisherStats(msgspec.Struct, frozen=True):
    """The publisher at one moment."""

    writes: dict[str, int]
    """Successful writes by operation: create, update, delete."""
    errors: dict[str, int]
    """Failures by kind: unavailable, throttled, conflict, forbidden, invalid, dropped_fields, untold_taints, ..."""
    slices: int
    """The driver's slices of this node that are published, as far as is known."""
    pending: tuple[str, ...]
    """Pools that differ from the desired slices."""
    last_write: float | None
    """Unix time."""
    lag_s: float
    """Seconds without a watch; 0 while the watch is open."""
    unpublishable: int
    """Devices that cannot be published."""
    problems: tuple[str, ...]
    """The reason why slices are not published, for messages."""


class PublisherCounters:
    """Counts since the start."""

    def __init__(self, on_failure: Callable[[AgentError], None] = lambda error: None) -> None:
        """`on_failure` is called for every failure."""
        self._on_failure = on_failure
        self.writes: Counter[str] = Counter(create=0, update=0, delete=0)
        self.errors: Counter[str] = Counter()
        self.last_write: float | None = None
        self.gates_off: dict[str, DroppedFieldsError] = {}
        """By pool: fields that the server drops."""
        self.unsupported_taints: dict[str, UnsupportedTaintEffectError] = {}
        """By pool: taints that the last server rejected; the next one may accept them."""

    def record_write(self, operation: str) -> None:
        """Count a write with a response."""
        self.writes[operation] += 1
        self.last_write = time.time()  # noqa: TID251 - a moment that is exported as a metric

    def record_failure(self, error: AgentError) -> None:
        """Count a failure."""
        self.errors[_kind(error)] += 1
        self._on_failure(error)

    def dropped(self, error: DroppedFieldsError) -> None:
        """Count a write that was stored in part, and keep the error: only the cluster's configuration can fix it."""
        self.record_failure(error)
        self.gates_off[error.pool] = error

    def record_unsupported_taints(self, error: UnsupportedTaintEffectError) -> bool:
        """Count a write that was rejected because of taints with effect None; return whether it is the first."""
        first = not self.errors[_kind(error)]
        self.record_failure(error)
        self.unsupported_taints[error.pool] = error
        return first


_KINDS: dict[type[AgentError], str] = {UnsupportedTaintEffectError: "untold_taints"}
"""Values of the label `kind` that differ from the name of the class: dashboards know them."""


def _kind(error: AgentError) -> str:
    """DroppedFieldsError → dropped_fields."""
    if (kind := _KINDS.get(type(error))) is not None:
        return kind
    name = type(error).__name__.removesuffix("Error")
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")

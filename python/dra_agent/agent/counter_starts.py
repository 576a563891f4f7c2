"""When exported counters were 0. OTLP requires that a cumulative sum that falls has a new start.

Source: the metrics data model of OpenTelemetry, "Resets and Gaps".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from dra_agent.clock import wall_now
from dra_agent.metrics.telemetry import CLAIM_COUNTERS, DEVICE_COUNTERS, XID_COUNTER

if TYPE_CHECKING:
    from dra_agent.otlp.encoding import StartOf
    from dra_agent.prepare.ledger import LedgerEntry

UNKNOWN = 0
"""A start that is not known, in OTLP."""


class _LastPoint(NamedTuple):
    start_ns: int
    value: float
    time_ns: int


class CounterStarts:
    """Returns the starts of one agent's counters; called on the thread that exports.

    Counters of this process: when it began. Of the hardware: when the host started, and once the value has fallen, as
    after a reload of the driver, the time of the point before. Of a claim: when it was recorded.
    """

    def __init__(self, entries: Callable[[], list[LedgerEntry]], *, process_ns: int, boot_ns: int) -> None:
        """`entries` are the claims in the ledger; times are nanoseconds since the epoch."""
        self._entries = entries
        self._process_ns = process_ns
        self._boot_ns = boot_ns
        self._last: dict[tuple[str, frozenset[tuple[str, str]]], _LastPoint] = {}
        """Of counters of devices. A host has a limited number of them."""

    def read(self) -> StartOf:
        """Return the function for one export."""
        entries = self._entries()
        recorded = {(entry.namespace, entry.name): entry.started_at for entry in entries}

        def start_of(name: str, labels: Mapping[str, str], value: float, time_ns: int) -> int:
            if name in CLAIM_COUNTERS:
                return int((recorded.get((labels.get("namespace", ""), labels.get("claim", ""))) or 0) * 1e9)
            if name not in DEVICE_COUNTERS:
                return self._process_ns
            key = name, frozenset(labels.items())
            last = self._last.get(key)
            if last is None:
                start_ns = self._first_start(name, labels.get("device", ""), entries)
            elif value < last.value:
                # The clock of the host may have been set back.
                start_ns = min(last.time_ns, time_ns)
            else:
                start_ns = last.start_ns
            self._last[key] = _LastPoint(start_ns, value, time_ns)
            return start_ns

        return start_of

    def _first_start(self, name: str, device: str, entries: list[LedgerEntry]) -> int:
        """Return the start of a series that this process has not exported yet."""
        if name != XID_COUNTER:
            return self._boot_ns
        # Each agent counts XIDs from 0, unless the claim of the device has the count of an earlier agent.
        is_continued = any(
            held.device == device and held.request and held.share_id is None and not held.admin_access
            for entry in entries
            if (entry.started_at or 0) * 1e9 < self._process_ns
            for held in entry.devices
        )
        return UNKNOWN if is_continued else self._process_ns


def counter_starts(entries: Callable[[], list[LedgerEntry]]) -> CounterStarts:
    """Return the starts of counters of a process that begins now."""
    now_s = wall_now().timestamp()
    # In whole seconds, so that it does not differ from one process to the next.
    boot_ns = round(now_s - time.clock_gettime(time.CLOCK_BOOTTIME)) * 10**9
    return CounterStarts(entries, process_ns=int(now_s * 1e9), boot_ns=boot_ns)

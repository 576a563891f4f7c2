"""Allocates partitions only by the counters of ResourceSlices, which is much faster than the allocator.

The rule is the scheduler's: the first requested device in published order for which the counters of its GPU have
sufficient capacity. packing.py compares the result with the agent's allocator in every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_agent import _native


@dataclass(frozen=True, slots=True)
class Partition:
    """A published device: what it consumes of which counter set."""

    device: str
    counter_set: str
    takes: tuple[tuple[int, int], ...]
    """The index of a counter, and the amount."""


class Replay:
    """A node with devices that are allocated and released."""

    def __init__(self, slices: Iterable[Mapping[str, Any]], whole: str) -> None:
        """Use slices in published order; `whole` is the name under which a device without a profile is requested."""
        specs = [slice_["spec"] for slice_ in slices]
        sets = {one["name"]: _amounts(one["counters"]) for spec in specs for one in spec.get("sharedCounters", ())}
        names = {name: index for index, name in enumerate(sorted({name for one in sets.values() for name in one}))}
        self._left = {
            name: [amounts.get(counter, 0) for counter in sorted(names, key=names.__getitem__)]
            for name, amounts in sets.items()
        }
        self._offered: dict[str, list[Partition]] = {}
        for spec in specs:
            for device in spec.get("devices", ()):
                (consumed,) = device["consumesCounters"]
                takes = tuple((names[name], amount) for name, amount in _amounts(consumed["counters"]).items())
                wanted = device["attributes"].get("profile", {}).get("string", whole)
                self._offered.setdefault(wanted, []).append(Partition(device["name"], consumed["counterSet"], takes))

    def place(self, wanted: str) -> Partition | None:
        """Allocate and return the first device that fits, or None."""
        for partition in self._offered[wanted]:
            left = self._left[partition.counter_set]
            if all(left[counter] >= amount for counter, amount in partition.takes):
                self._change(partition, -1)
                return partition
        return None

    def release(self, partition: Partition) -> None:
        """Release a device."""
        self._change(partition, 1)

    def _change(self, partition: Partition, sign: int) -> None:
        left = self._left[partition.counter_set]
        for counter, amount in partition.takes:
            left[counter] += sign * amount


def _amounts(counters: Mapping[str, Any]) -> dict[str, int]:
    return {name: _native.quantity_value(counter["value"]) for name, counter in counters.items()}

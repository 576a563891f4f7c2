"""Devices that can still be claimed: by kind, and how much memory they have. Computed from counters, without a search.

Devices of one GPU exclude each other through shared counters: the number of those that fit alone exceeds what is left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from dra_agent import _native
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.model import Device, Inventory

Key = tuple[str, str]
"""Family and name of a device."""
_Counter = tuple[str, str, str]
"""Family, counter set and counter."""
_MEMORY = "memory"
WHOLE = "whole"
"""The partition of a device that is not a part of another one."""


class Kind(NamedTuple):
    """Devices that a claim sees as equal."""

    family: str
    product: str
    partition: str
    """The attribute `profile` ("1g.10gb", "cpx-nps1"), else "vf" for virtual functions, else WHOLE."""


class FreeMemory(msgspec.Struct, frozen=True):
    """Memory that no claim holds, in bytes. Devices with a taint that excludes claims have none."""

    total: int = 0
    fitting: int = 0
    """For each GPU, the memory of the largest device that still fits; summed up. Less than `total`: fragmentation."""
    largest: int = 0
    """Of the largest device that can still be claimed."""


class Allocatable(msgspec.Struct, frozen=True):
    """What is left of an inventory."""

    blocked: frozenset[str]
    """Names of devices for which prepared devices leave too little of the shared counters."""
    devices: dict[Kind, int]
    memory: dict[tuple[str, str], FreeMemory]
    """By family and product; without those whose memory is not known."""


class Held(msgspec.Struct, frozen=True):
    """What claims hold."""

    devices: frozenset[Key]
    shares: dict[Key, dict[str, int]] = {}
    """Consumed capacity of shared devices."""


class AllocatableTracker:
    """Computes what is left; keeps the result until inventory or claims change. Safe for threads."""

    def __init__(self) -> None:
        self._model: tuple[Inventory, _Model] | None = None
        self._last: tuple[tuple[Inventory, Held, Collection[str]], Allocatable] | None = None

    def compute(self, inventory: Inventory, held: Held, excluded: Collection[str] = ()) -> Allocatable:
        """Return what is left; `excluded` are names of devices that cannot be claimed for other reasons."""
        known = self._last
        if known is not None and known[0][0] is inventory and known[0][1:] == (held, excluded):
            return known[1]
        model = self._model
        if model is None or model[0] is not inventory:
            model = self._model = (inventory, _Model(inventory))
        result = model[1].compute(held, excluded)
        self._last = ((inventory, held, excluded), result)
        return result


class _Entry:
    """A device with its amounts as numbers."""

    __slots__ = ("consumed", "device", "group", "key", "kind", "memory", "tainted")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.key: Key = (device.family, device.name)
        self.kind = Kind(device.family, product_of(device), _partition_of(device))
        self.group = device.consumes_counters[0].counter_set if device.consumes_counters else device.name
        self.consumed: tuple[tuple[_Counter, int], ...] = tuple(
            ((device.family, consumption.counter_set, name), _native.quantity_value(counter.value))
            for consumption in device.consumes_counters
            for name, counter in consumption.counters.items()
        )
        memory = device.capacity.get(_MEMORY)
        self.memory = None if memory is None else _native.quantity_value(memory.value)
        self.tainted = any(taint.effect != "None" for taint in device.taints)


class _Model:
    """An inventory as numbers."""

    def __init__(self, inventory: Inventory) -> None:
        self._entries = [_Entry(device) for device in inventory.devices]
        self._counters: dict[_Counter, int] = {
            (family, counters.name, name): _native.quantity_value(counter.value)
            for family, sets in inventory.counter_sets.items()
            for counters in sets
            for name, counter in counters.counters.items()
        }
        self._kinds: dict[Kind, list[_Entry]] = {}
        self._groups: dict[tuple[str, str], list[_Entry]] = {}
        for entry in self._entries:
            self._kinds.setdefault(entry.kind, []).append(entry)
            self._groups.setdefault((entry.kind.family, entry.group), []).append(entry)
        for kind, entries in self._kinds.items():
            self._kinds[kind] = _by_end(entries)

    def compute(self, held: Held, excluded: Collection[str]) -> Allocatable:
        remaining = dict(self._counters)
        for entry in self._entries:
            if entry.key in held.devices:
                for counter, amount in entry.consumed:
                    remaining[counter] = remaining.get(counter, 0) - amount
        fitting = {entry.key for entry in self._entries if _fits(entry, remaining)}
        free = {
            entry.key
            for entry in self._entries
            if entry.key in fitting
            and entry.key not in held.devices
            and not entry.tainted
            and entry.device.name not in excluded
            and _has_share(entry.device, held.shares.get(entry.key, {}))
        }
        return Allocatable(
            blocked=frozenset(entry.device.name for entry in self._entries if entry.key not in fitting),
            devices={
                kind: _count([entry for entry in entries if entry.key in free], remaining)
                for kind, entries in self._kinds.items()
            },
            memory=self._memory(held, free, remaining, excluded),
        )

    def _memory(
        self, held: Held, free: set[Key], remaining: Mapping[_Counter, int], excluded: Collection[str]
    ) -> dict[tuple[str, str], FreeMemory]:
        found: dict[tuple[str, str], FreeMemory] = {}
        for (family, group), entries in self._groups.items():
            whole = max((entry.memory for entry in entries if entry.memory is not None), default=None)
            if whole is None:
                continue
            product = (family, entries[-1].kind.product)
            before = found.setdefault(product, FreeMemory())
            if all(entry.tainted or entry.device.name in excluded for entry in entries):
                continue
            fits = max((_left(entry, held) for entry in entries if entry.key in free), default=0)
            total = remaining.get((family, group, _MEMORY))
            if total is None:
                taken = sum((entry.memory or 0) for entry in entries if entry.key in held.devices)
                shared = sum(held.shares.get(entry.key, {}).get(_MEMORY, 0) for entry in entries)
                total = whole - taken - shared
            # The counters of a GPU can be less than the memory of the whole GPU, which includes reserved memory.
            found[product] = FreeMemory(
                before.total + max(total, fits, 0), before.fitting + fits, max(before.largest, fits)
            )
        return found


def product_of(device: Device) -> str:
    """Return the name of the product, or ""."""
    product = device.attributes.get("productName")
    return (product.string if product is not None else None) or ""


def _partition_of(device: Device) -> str:
    for name in ("profile", "type"):
        attribute = device.attributes.get(name)
        if attribute is not None and attribute.string and (name == "profile" or attribute.string == "vf"):
            return attribute.string
    return WHOLE


def _by_end(entries: list[_Entry]) -> list[_Entry]:
    """Order devices of one kind by the last counter that not all of them consume.

    MIG partitions of one profile are intervals of equal length over the memory slices. Taking intervals by their ends
    finds the greatest number that do not overlap, and all other counters are consumed by each in the same amount.
    """
    common = frozenset.intersection(*(frozenset(_relative(entry)) for entry in entries))
    placements = sorted({name for entry in entries for name, _ in set(_relative(entry)) - common}, key=_natural)
    position = {name: number for number, name in enumerate(placements)}

    def end(entry: _Entry) -> tuple[str, int, int]:
        numbers = [position[name] for (_, _, name), _ in entry.consumed if name in position]
        return (entry.group, max(numbers, default=-1), -min(numbers, default=-1))

    return sorted(entries, key=end)


def _relative(entry: _Entry) -> Iterator[tuple[str, int]]:
    return ((name, amount) for (_, _, name), amount in entry.consumed)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _fits(entry: _Entry, remaining: Mapping[_Counter, int]) -> bool:
    return all(amount <= remaining.get(counter, 0) for counter, amount in entry.consumed)


def _count(entries: list[_Entry], remaining: Mapping[_Counter, int]) -> int:
    left: dict[_Counter, int] = {}
    count = 0
    for entry in entries:
        if all(amount <= left.get(counter, remaining.get(counter, 0)) for counter, amount in entry.consumed):
            count += 1
            for counter, amount in entry.consumed:
                left[counter] = left.get(counter, remaining.get(counter, 0)) - amount
    return count


def _left(entry: _Entry, held: Held) -> int:
    return max(0, (entry.memory or 0) - held.shares.get(entry.key, {}).get(_MEMORY, 0))


def _has_share(device: Device, consumed: Mapping[str, int]) -> bool:
    """Return whether the smallest share of a shared device still fits; True for devices without shares."""
    return all(
        _native.quantity_value(capacity.value) - consumed[name] >= _smallest(capacity)
        for name, capacity in device.capacity.items()
        if name in consumed
    )


def _smallest(capacity: Capacity) -> int:
    policy = capacity.request_policy
    if policy is None:
        return 0
    amounts = policy.valid_values or (() if policy.valid_range is None else (policy.valid_range.min,))
    return min((_native.quantity_value(amount) for amount in amounts), default=0)

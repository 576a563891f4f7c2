"""The slices of one node without an API server, computed again only for pools with another device."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dra_agent import _native
from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.model import FAMILIES, Device, Family, Inventory
from dra_agent.slices.desired import DesiredSlices, Slice, SliceProblem, compute, encode_request


class _Changed(msgspec.Struct, frozen=True):
    slices: list[Slice | None]
    """None for one that is equal to the last one at its position."""
    problems: list[SliceProblem]


class _Pool(NamedTuple):
    devices: tuple[Device, ...]
    counter_sets: tuple[CounterSet, ...]
    kept: _native.KeptSlices
    slices: list[Slice]
    problems: list[SliceProblem]


class CurrentSlices:
    """Each update equals `desired_slices` of the inventory, published over the result of the update before."""

    def __init__(self, *, node: str, driver: str) -> None:
        self._node = node
        self._driver = driver
        self._pools: dict[Family, _Pool] = {}

    def update(self, inventory: Inventory) -> DesiredSlices:
        """Return the slices of the inventory; raises PermanentError where `desired_slices` does."""
        for family in FAMILIES:
            devices, sets = inventory.family(family), inventory.counter_sets.get(family, ())
            last = self._pools.get(family)
            if not devices:
                self._pools.pop(family, None)
            elif last is None or not _is_of(last, devices, sets):
                self._pools[family] = self._pool(family, devices, sets, last)
        pools = [self._pools[family] for family in FAMILIES if family in self._pools]
        return DesiredSlices(
            [slice_ for pool in pools for slice_ in pool.slices],
            [problem for pool in pools for problem in pool.problems],
        )

    def _pool(
        self, family: Family, devices: tuple[Device, ...], sets: tuple[CounterSet, ...], last: _Pool | None
    ) -> _Pool:
        kept = last.kept if last is not None else _native.KeptSlices()
        inventory = Inventory(devices=devices, counter_sets={family: sets})
        request = encode_request(inventory, self._node, self._driver, (), "fixed", None)
        changed = msgspec.json.decode(compute(kept.update, request, self._node), type=_Changed)
        before = last.slices if last is not None else []
        slices = [before[at] if slice_ is None else slice_ for at, slice_ in enumerate(changed.slices)]
        return _Pool(devices, sets, kept, slices, changed.problems)


def _is_of(pool: _Pool, devices: tuple[Device, ...], sets: tuple[CounterSet, ...]) -> bool:
    return (
        len(pool.devices) == len(devices)
        and all(known is now for known, now in zip(pool.devices, devices, strict=True))
        and pool.counter_sets == sets
    )

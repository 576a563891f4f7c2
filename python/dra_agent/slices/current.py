"""The slices of one node without an API server, computed again only for pools with another device."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.model import FAMILIES, Device, Family, Inventory
from dra_agent.slices.desired import DesiredSlices, Slice, SliceProblem, SliceRequest


class _Pool(NamedTuple):
    devices: tuple[Device, ...]
    counter_sets: tuple[CounterSet, ...]
    encoded: list[msgspec.Raw]
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
        pools: dict[Family, _Pool] = {}
        for family in FAMILIES:
            devices, sets = inventory.family(family), inventory.counter_sets.get(family, ())
            if devices:
                last = self._pools.get(family)
                if last is None or not _is_of(last, devices, sets):
                    last = self._pool(family, devices, sets, last)
                pools[family] = last
        self._pools = pools
        return DesiredSlices(
            [slice_ for pool in pools.values() for slice_ in pool.slices],
            [problem for pool in pools.values() for problem in pool.problems],
        )

    def _pool(
        self, family: Family, devices: tuple[Device, ...], sets: tuple[CounterSet, ...], last: _Pool | None
    ) -> _Pool:
        desired = SliceRequest(
            Inventory(devices=devices, counter_sets={family: sets}),
            node=self._node,
            driver=self._driver,
            published=last.encoded if last else (),
            naming="fixed",
        ).slices()
        known = {bytes(raw): slice_ for raw, slice_ in zip(last.encoded, last.slices, strict=True)} if last else {}
        slices = [known.get(bytes(raw)) or msgspec.json.decode(raw) for raw in desired.slices]
        return _Pool(devices, sets, desired.slices, slices, desired.problems)


def _is_of(pool: _Pool, devices: tuple[Device, ...], sets: tuple[CounterSet, ...]) -> bool:
    return (
        len(pool.devices) == len(devices)
        and all(known is now for known, now in zip(pool.devices, devices, strict=True))
        and pool.counter_sets == sets
    )

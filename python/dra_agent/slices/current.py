"""The slices of one node without an API server, computed again only for pools with another device."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dra_agent import _native
from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.model import Device, Family, Inventory, Pool
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
        self._pools: dict[tuple[Family, str], _Pool] = {}

    def update(self, inventory: Inventory) -> DesiredSlices:
        """Return the slices of the inventory; raises PermanentError where `desired_slices` does."""
        pools: dict[tuple[Family, str], _Pool] = {}
        for pool in inventory.pools():
            key = (pool.family, pool.group)
            last = self._pools.get(key)
            pools[key] = last if last is not None and _is_of(last, pool) else self._pool(pool, last)
        self._pools = pools
        return DesiredSlices(
            [slice_ for pool in pools.values() for slice_ in pool.slices],
            [problem for pool in pools.values() for problem in pool.problems],
        )

    def _pool(self, pool: Pool, last: _Pool | None) -> _Pool:
        kept = last.kept if last is not None else _native.KeptSlices()
        inventory = Inventory(devices=pool.devices, counter_sets={pool.family: pool.counter_sets})
        request = encode_request(inventory, self._node, self._driver, (), "fixed", None)
        changed = msgspec.json.decode(compute(kept.update, request, self._node), type=_Changed)  # noqa: TID251 - the response of the Rust part
        before = last.slices if last is not None else []
        slices = [before[at] if slice_ is None else slice_ for at, slice_ in enumerate(changed.slices)]
        return _Pool(pool.devices, pool.counter_sets, kept, slices, changed.problems)


def _is_of(last: _Pool, pool: Pool) -> bool:
    return (
        len(last.devices) == len(pool.devices)
        and all(known is now for known, now in zip(last.devices, pool.devices, strict=True))
        and last.counter_sets == pool.counter_sets
    )

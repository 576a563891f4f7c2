"""Slices and allocated claims of a whole cluster, and of them what matters on one node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Object = dict[str, Any]
Pool = tuple[str, str]
"""Driver and name of the pool."""


class SliceIndex:
    """Finds the pools that may have devices for a node; in a large cluster nearly all are of other nodes alone."""

    def __init__(self, slices: Sequence[Object], claims: Iterable[Object]) -> None:
        self._slices: dict[Pool, list[Object]] = {}
        self._pools: dict[str, dict[Pool, None]] = {}
        """By node; under "" those of which labels, or each device, say which nodes they are for."""
        self._claims: dict[Pool, list[Object]] = {}
        for entry in slices:
            pool = _pool_of_slice(entry)
            self._slices.setdefault(pool, []).append(entry)
            self._pools.setdefault((entry.get("spec") or {}).get("nodeName") or "", {})[pool] = None
        for claim in claims:
            for pool in dict.fromkeys(_pools_of_claim(claim)):
                self._claims.setdefault(pool, []).append(claim)

    def of(self, node: str) -> tuple[list[Object], list[Object]]:
        """Give the slices of every pool with a slice that may be for the node, and the claims that hold devices there.

        All slices of such a pool: whether it is complete depends on all of them.
        """
        pools = {**self._pools.get("", {}), **self._pools.get(node, {})}
        slices = [entry for pool in pools for entry in self._slices[pool]]
        claims = {id(claim): claim for pool in pools for claim in self._claims.get(pool, ())}
        return slices, list(claims.values())


def _pool_of_slice(entry: Object) -> Pool:
    spec = entry.get("spec") or {}
    return spec.get("driver") or "", (spec.get("pool") or {}).get("name") or ""


def _pools_of_claim(claim: Object) -> Iterable[Pool]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        yield result.get("driver") or "", result.get("pool") or ""

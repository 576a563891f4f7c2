"""The allocator of standalone mode: a cluster of one node that is kept between claims.

Slices and classes are read again only after a change, and of the allocated claims only those that are new. So a long
queue of waiting claims costs one query for each of them.
"""

from __future__ import annotations

from typing import Any

from dra_agent.api_object import Object
from dra_agent.cluster import Cluster
from dra_agent.errors import PermanentError

GATES = ("DRAListTypeAttributes",)
"""Without an API server list-typed attributes need no feature gate."""


class ClusterAllocator:
    """Not safe for threads: the queue calls it from one."""

    def __init__(self) -> None:
        self._slices: list[Object] = []
        self._classes: list[Object] = []
        self._held: dict[str, Object] = {}
        self._allocated: list[Object] = []
        self._cluster: Cluster | None = None

    def allocate(
        self, *, node: str, classes: list[Object], slices: list[Object], claims: list[Object], allocated: list[Object]
    ) -> Object:
        """Return {"allocated": bool, "results": [AllocationResult per claim], "error": str | None}.

        An object that cannot be read is an error.
        """
        try:
            cluster = self._current(classes, slices)
            if allocated:
                self._hold(cluster, allocated)
            result = cluster.allocate(node, claims, ignore_held=not allocated)
        except PermanentError as error:
            return {"allocated": False, "results": [], "error": str(error)}
        return dict(result)

    @property
    def cluster(self) -> Cluster | None:
        """The cluster of the last query; None before the first one."""
        return self._cluster

    def _current(self, classes: list[Object], slices: list[Object]) -> Cluster:
        same_slices = slices is self._slices or slices == self._slices
        same_classes = classes is self._classes or classes == self._classes
        if self._cluster is None or not same_slices or not same_classes:
            self._cluster = None  # if an object cannot be read, the next query tries again
            self._cluster = Cluster(slices, classes, gates=GATES)
            self._slices, self._classes, self._held, self._allocated = slices, classes, {}, []
        return self._cluster

    def _hold(self, cluster: Cluster, allocated: list[Object]) -> None:
        """Hold the claims that are allocated now, and only those."""
        if allocated == self._allocated:  # fast for the same objects, which are compared by identity first
            return
        now: dict[str, Any] = {claim["metadata"]["uid"]: claim for claim in allocated}
        if gone := [claim for uid, claim in self._held.items() if uid not in now]:
            cluster.release(gone)
        if new := [claim for uid, claim in now.items() if self._held.get(uid) is not claim]:
            cluster.hold(new)
        self._held, self._allocated = now, [*allocated]

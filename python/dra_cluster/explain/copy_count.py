"""Counts copies of a pod on nodes: with claims for their devices, or with what a device plugin serves, or both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dra_agent.api_object import Object, allocation_of
from dra_agent.cluster import Capacity, Cluster, NodeCapacity
from dra_agent.deadline import Deadline
from dra_agent.explain.gates import derived_attributes
from dra_cluster.explain.device_plugins import DevicePlugins, named

DEVICE_PLUGIN = "device_plugin"
"""The cause of a node whose device plugin serves an extended resource of the pod, and has no more of it."""
DERIVED = "derived_attributes"
"""The cause of a node on which copies are not counted, because a request has derived attributes."""


class CopyCount:
    """The copies on the nodes that the pod permits, and in total."""

    def __init__(
        self,
        cluster: Cluster,
        claims: Sequence[Object],
        shared: Sequence[Object],
        plugins: DevicePlugins,
        limit: int,
        deadline: Deadline,
    ) -> None:
        """Count nothing yet.

        Arguments:
            cluster: The devices.
            claims: The claims of one copy, as they are where no device plugin serves the pod.
            shared: The claims that all copies use together.
            plugins: Where a copy needs no claim for its extended resources.
            limit: The maximum number of copies on a node.
            deadline: For all nodes together.
        """
        self._cluster = cluster
        self._claims = claims
        self._shared = shared
        self._plugins = plugins
        self._limit = limit
        self._deadline = deadline
        self.total = 0
        self.total_is_partial = False
        """`total` is a lower bound."""
        self.unexamined: list[str] = []
        """The nodes without a complete result."""
        self.errors: dict[str, tuple[int, str]] = {}
        """By node, an error at which kube-scheduler places no copy anywhere, and after how many copies on the node."""

    def on(self, nodes: Mapping[str, Object]) -> list[Object]:
        """Count the copies on nodes; return a row for each."""
        alike: dict[tuple[tuple[str, ...], int], list[str]] = {}
        rows: list[Object] = []
        derived: dict[tuple[str, ...], str | None] = {}
        for name, node in nodes.items():
            served = self._plugins.serves(node)
            more = self._plugins.more(node)
            if served not in derived:
                derived[served] = self._derived(served)
            if served and more is None:
                self.total_is_partial = True
                reason = f"not counted: {named(served)}, and the pods of the node are not known"
                rows.append(row_of(name, reason=reason, causes=[DEVICE_PLUGIN]))
            elif more == 0:
                rows.append(row_of(name, reason=self._plugins.lacks(node), causes=[DEVICE_PLUGIN]))
            elif cause := derived[served]:
                self.total_is_partial = True
                rows.append(row_of(name, reason=f"not counted: {cause}", causes=[DERIVED]))
            else:
                alike.setdefault((served, self._limit if more is None else min(self._limit, more)), []).append(name)
        totals = []
        for (served, limit), names in alike.items():
            total, found = self._counted(served, limit, names)
            totals.append(total)
            rows += found
        self._add_up(totals, rows)
        return rows

    def check(self, nodes: Mapping[str, Object]) -> None:
        """Add the errors of nodes of which no copies are counted."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for name, node in nodes.items():
            if self._plugins.more(node) != 0 and not self._derived(self._plugins.serves(node)):
                alike.setdefault(self._plugins.serves(node), []).append(name)
        for served, names in alike.items():
            claims = [*self._shared, *map(_fresh, self._plugins.claims(self._claims, served))]
            sweep = self._cluster.fits(claims, nodes=names, deadline=self._deadline.remaining())
            self.errors |= {name: (0, sweep.errors[name]) for name in sweep.fatal}

    def _derived(self, served: tuple[str, ...]) -> str | None:
        """Return why copies cannot be counted where the device plugin serves these resources; None if they can be."""
        copies = [_fresh(claim) for claim in self._plugins.claims(self._claims, served)]
        return derived_attributes([*copies, *self._shared])

    def _counted(self, served: tuple[str, ...], limit: int, names: Sequence[str]) -> tuple[int, list[Object]]:
        """Count on nodes whose device plugins serve the same resources, for at most as many copies."""
        claims = [_fresh(claim) for claim in self._plugins.claims(self._claims, served)]
        if claims or self._shared or not served:
            found = self._cluster.capacity(
                claims, shared=self._shared, nodes=names, limit=limit, deadline=self._deadline.remaining()
            )
        else:
            found = Capacity(
                [NodeCapacity(name, limit, True, "", [], False) for name in names], limit * len(names), True, []
            )
        rows = _rows(found)
        self.errors |= {entry.node: (entry.copies, entry.reason) for entry in found.nodes if entry.fatal}
        self.unexamined += found.unexamined
        if limit == self._limit:
            self.total_is_partial |= found.total_is_partial
            return found.total, rows
        # The search did not end early at what the device plugin has left: the number of such a node is complete.
        for row in rows:
            if row["at_limit"]:
                reason = f"{named(served)}, and has enough for {limit} more"
                row.update(at_limit=False, causes=[DEVICE_PLUGIN], reason=reason)
        self.total_is_partial |= bool(found.unexamined) or (found.total_is_partial and self._is_common(rows))
        return found.total, rows

    def _is_common(self, rows: Iterable[Object]) -> bool:
        """Return whether copies of several nodes can use the same devices, so that a total is not a sum."""
        return any(allocation_of(claim) is None for claim in self._shared) or any(
            row["has_network_devices"] for row in rows
        )

    def _add_up(self, totals: Sequence[int], rows: Sequence[Object]) -> None:
        """Add the totals of parts. Where copies of two parts can use the same devices, the largest is a lower bound."""
        if len(totals) > 1 and self._is_common(rows):
            self.total = max(totals)
            self.total_is_partial = True
        else:
            self.total = sum(totals)


def row_of(
    node: str,
    *,
    copies: int = 0,
    at_limit: bool = False,
    reason: str = "",
    causes: list[str],
    has_network_devices: bool = False,
) -> Object:
    """Return the result of one node; docs/how-to/operate/capacity.md describes the members."""
    return {
        "node": node,
        "copies": copies,
        "at_limit": at_limit,
        "causes": causes,
        "reason": reason,
        "has_network_devices": has_network_devices,
    }


def _fresh(claim: Object) -> Object:
    """Return the claim as it is before its allocation."""
    metadata = {key: claim["metadata"][key] for key in ("name", "namespace") if key in claim["metadata"]}
    return {"metadata": metadata, "spec": claim.get("spec") or {}}


def _rows(found: Capacity) -> list[Object]:
    return [
        row_of(
            entry.node,
            copies=entry.copies,
            at_limit=entry.at_limit,
            reason=entry.reason,
            causes=entry.causes,
            has_network_devices=entry.has_network_devices,
        )
        for entry in found.nodes
    ]

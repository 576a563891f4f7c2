"""Nodes whose device plugin serves extended resources of the members of a gang: what these members use there.

A member on such a node gets no devices for these resources, and its claim for extended resources has the others only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dra_agent.api_object import Object
from dra_cluster.explain.device_plugins import DevicePlugins
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.snapshot import Snapshot

NO_DEVICES: Object = {"devices": {"results": []}}
"""The allocation of a claim that a member does not need."""


class GangPlugins:
    """The device plugins of the nodes, for the kinds of members of one gang, and their use by one order of members."""

    def __init__(self, snapshot: Snapshot, gang: Gang, nodes: Mapping[str, Object]) -> None:
        """Find the nodes; nothing is in use by members."""
        self.use = Counter[tuple[str, str]]()
        """What members that are placed use, by node and resource."""
        self._nodes = nodes
        self._kinds = [
            DevicePlugins(snapshot, kind.pod, [] if kind.extended is None else [kind.extended]) for kind in gang.kinds
        ]
        self._served: list[dict[str, tuple[str, ...]]] = [
            {name: served for name, node in nodes.items() if (served := plugins.serves(node))}
            if plugins.resources
            else {}
            for plugins in self._kinds
        ]

    def __bool__(self) -> bool:
        """Return whether a device plugin serves a resource of a member."""
        return any(self._served)

    @property
    def others(self) -> list[str]:
        """The extended resources of members that no DeviceClass provides, which this does not count."""
        return sorted({name for plugins in self._kinds for name in plugins.others})

    def of_kind(self, kind: int) -> DevicePlugins:
        """Return the device plugins, for the pods of a kind."""
        return self._kinds[kind]

    def nodes(self, kind: int) -> frozenset[str]:
        """Return the nodes whose device plugin serves a resource of this kind."""
        return frozenset(self._served[kind])

    def lacks(self, kind: int, node: str) -> str:
        """Return what the device plugin of a node has not enough of for one more member; "" if there is enough."""
        return self._kinds[kind].lacks(self._nodes[node], self.use) if node in self._served[kind] else ""

    def claims(self, kind: int, node: str, claims: Sequence[Object]) -> list[Object]:
        """Return the claims of a member as it needs them on a node; the one for extended resources is the last."""
        served = self._served[kind].get(node)
        if not served:
            return list(claims)
        rest = self._kinds[kind].rest(served)
        others = list(claims[:-1])
        return others if rest is None else [*others, {**claims[-1], "spec": rest["spec"]}]

    def by_claims(
        self, kind: int, nodes: Iterable[str], claims: Sequence[Object]
    ) -> list[tuple[list[Object], list[str]]]:
        """Return the nodes by the claims that a member needs there."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for node in nodes:
            alike.setdefault(self._served[kind].get(node, ()), []).append(node)
        return [(self.claims(kind, names[0], claims), names) for names in alike.values()]

    def take(self, kind: int, node: str) -> Counter[tuple[str, str]]:
        """Count what one more member uses on a node; return it."""
        resources = self._kinds[kind].resources
        taken = Counter({(node, name): resources[name] for name in self._served[kind].get(node, ())})
        self.use.update(taken)
        return taken

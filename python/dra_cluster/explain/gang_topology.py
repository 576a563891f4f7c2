"""Where all members of a gang have to be: on any nodes, or on those with one value of a label of its group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_cluster.explain.gang_members import Gang


class Topology(NamedTuple):
    """Nodes on which all members may be."""

    nodes: frozenset[str]
    label: str | None = None
    """The label that all of them have; None if the group requires none."""
    value: str = ""

    @property
    def suffix(self) -> str:
        """The end of a phrase about these nodes."""
        return "" if self.label is None else f" with {self.label}={self.value}"


def topologies(gang: Gang, nodes: Mapping[str, Object], fitting: Sequence[Sequence[str]]) -> list[Topology]:
    """Return the topologies, by value, without those of which no node is one of `fitting`, unless all are such.

    Arguments:
        gang: The members. Those that run have decided for the value of their nodes.
        nodes: All nodes.
        fitting: For each kind, the nodes on which one member may fit.
    """
    running = {name for kind in gang.kinds for name in kind.running}
    return topologies_of(gang.topology, nodes, running, {name for names in fitting for name in names})


def topologies_of(
    label: str | None, nodes: Mapping[str, Object], running: set[str], useful: set[str]
) -> list[Topology]:
    """Return the topologies of members: of which some are `running` on nodes, and others may fit on `useful` ones."""
    if label is None:
        return [Topology(frozenset(nodes))]
    by_value: dict[str, set[str]] = {}
    for name, node in nodes.items():
        value = ((node.get("metadata") or {}).get("labels") or {}).get(label)
        if value is not None:
            by_value.setdefault(str(value), set()).add(name)
    permitted = [
        Topology(frozenset(names), label, value) for value, names in sorted(by_value.items()) if names >= running
    ]
    return [one for one in permitted if not one.nodes.isdisjoint(useful)] or permitted[:1]

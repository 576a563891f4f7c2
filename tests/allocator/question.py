"""Questions to the allocator as the corpora record them: a cluster, a node of it, and claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dra_agent.cluster import Allocation, Cluster, Object


def cluster_of(
    *,
    node: str | Object,
    classes: Iterable[Object],
    slices: Iterable[Object],
    allocated: Iterable[Object] = (),
    gates: Iterable[str] = (),
    claims: object = None,
) -> Cluster:
    """Return the cluster of a question; its `claims` are not part of it."""
    nodes = [] if isinstance(node, str) else [node]
    return Cluster(slices, classes, nodes=nodes, claims=allocated, gates=gates)


def has_names(question: Mapping[str, Any]) -> bool:
    """Return whether slices and node have the unique names that the API server guarantees."""
    names = [(entry.get("metadata") or {}).get("name") for entry in question["slices"]]
    return all(names) and len(set(names)) == len(names) and bool(node_name(question["node"]))


def node_name(node: str | Object) -> str:
    return node if isinstance(node, str) else (node.get("metadata") or {}).get("name") or ""


def allocate(
    *,
    node: str | Object,
    claims: Iterable[Object],
    deadline: float = 10.0,
    share_id_seed: int | None = None,
    **objects: Any,
) -> Allocation:
    """Ask a cluster with these objects; the arguments are those of `cluster_of` and of `Cluster.allocate`."""
    cluster = cluster_of(node=node, **objects)
    return cluster.allocate(node_name(node), claims, deadline=deadline, share_id_seed=share_id_seed)

"""Answers a query of `allocate` with a `Cluster`."""

from __future__ import annotations

from typing import Any

from dra_agent.cluster import Cluster

Json = dict[str, Any]


def has_names(query: Json) -> bool:
    """Return whether slices and node have the unique names that the API server guarantees."""
    names = [(entry.get("metadata") or {}).get("name") for entry in query["slices"]]
    return all(names) and len(set(names)) == len(names) and bool(node_name(query))


def node_name(query: Json) -> str:
    node = query["node"]
    return node if isinstance(node, str) else (node.get("metadata") or {}).get("name") or ""


def cluster_of(query: Json) -> Cluster:
    node = query["node"]
    nodes = [] if isinstance(node, str) else [node]
    held, gates = query.get("allocated") or (), query.get("gates") or ()
    return Cluster(query["slices"], query["classes"], nodes=nodes, claims=held, gates=gates)


def allocate(query: Json) -> Json:
    return dict(cluster_of(query).allocate(node_name(query), query["claims"]))

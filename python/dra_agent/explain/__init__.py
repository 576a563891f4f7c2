"""Explains the allocation of a claim: every device of a node, with all reasons against it.

The allocator (rust/engine/allocator) evaluates the claims; this package is its Python interface, and reads files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dra_agent.cluster import Cluster, Object
from dra_agent.explain.files import QueryInputs, read_inputs

__all__ = ["QueryInputs", "explain", "read_inputs"]


def explain(
    node: str | Object,
    classes: Iterable[Object],
    slices: Iterable[Object],
    claims: Iterable[Object],
    allocated: Iterable[Object] = (),
    *,
    gates: Iterable[str] = (),
    deadline: float = 10.0,
) -> dict[str, Any]:
    """Explain the result of `Cluster.allocate`; docs/how-to/operate/explain.md describes the members.

    Raises PermanentError where an object is not one of resource.k8s.io/v1.
    """
    nodes = [] if isinstance(node, str) else [node]
    cluster = Cluster(relevant_slices(slices, node), classes, nodes=nodes, claims=allocated, gates=gates)
    return cluster.explain(_name(node), list(claims), deadline=deadline)


def relevant_slices(slices: Iterable[Object], node: str | Object) -> list[Object]:
    """Return the slices of every pool that has a slice for the node, in their order.

    Whether a pool is complete depends on all of its slices. A slice of an unexpected form is kept, to report its error.
    """
    name = _name(node)
    slices = list(slices)
    pools = {_pool(entry) for entry in slices if not _is_of_other_node(entry, name)}
    return [entry for entry in slices if not _is_of_other_node(entry, name) or _pool(entry) in pools]


def _is_of_other_node(entry: Object, name: str) -> bool:
    named = _member(_member(entry, "spec"), "nodeName")
    return isinstance(named, str) and named not in ("", name)


def _pool(entry: Object) -> tuple[str, str]:
    spec = _member(entry, "spec")
    return str(_member(spec, "driver")), str(_member(_member(spec, "pool"), "name"))


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _name(node: str | Object) -> str:
    return node if isinstance(node, str) else str(_member(_member(node, "metadata"), "name") or "")

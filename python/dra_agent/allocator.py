"""What-if queries about claims: `allocate` returns what kube-scheduler would, for JSON objects of the API.

It changes nothing: the caller records the allocation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, cast

import msgspec

Object = Mapping[str, Any]
"""An object of the Kubernetes API, as JSON has it."""


class Allocation(TypedDict):
    """An AllocationResult for each claim, or none for any."""

    allocated: bool
    results: list[dict[str, Any]]
    """In the order of the claims; empty where they are not allocated."""
    error: str | None
    """Why there is no result; None if the claims do not fit."""


def encode_query(
    *,
    node: str | Object,
    classes: Iterable[Object],
    slices: Iterable[Object],
    claims: Iterable[Object],
    allocated: Iterable[Object] = (),
    gates: Iterable[str] = (),
    deadline: float = 10.0,
    share_id_seed: int | None = None,
) -> bytes:
    """Encode a query for the extension, without the slices that only other nodes can use."""
    seed = int.from_bytes(os.urandom(8), "big") if share_id_seed is None else share_id_seed
    return msgspec.json.encode(
        {
            "node": node,
            "classes": list(classes),
            "slices": relevant_slices(slices, node),
            "claims": list(claims),
            "allocated": list(allocated),
            "gates": list(gates),
            "deadline_ms": int(deadline * 1000),
            "share_id_seed": seed,
        }
    )


def relevant_slices(slices: Iterable[Object], node: str | Object) -> list[Object]:
    """Return the slices of every pool that has a slice for the node, in their order.

    Whether a pool is complete depends on all of its slices. A slice of an unexpected form is kept, to report its error.
    """
    name = node if isinstance(node, str) else _member(_member(node, "metadata"), "name")
    slices = list(slices)
    pools = {_pool(entry) for entry in slices if not _is_of_other_node(entry, name)}
    return [entry for entry in slices if not _is_of_other_node(entry, name) or _pool(entry) in pools]


def _is_of_other_node(entry: Object, name: Any) -> bool:
    named = _member(_member(entry, "spec"), "nodeName")
    return isinstance(named, str) and named not in ("", name)


def _pool(entry: Object) -> tuple[str, str]:
    spec = _member(entry, "spec")
    return str(_member(spec, "driver")), str(_member(_member(spec, "pool"), "name"))


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def allocate(
    *,
    node: str | Object,
    classes: Iterable[Object],
    slices: Iterable[Object],
    claims: Iterable[Object],
    allocated: Iterable[Object] = (),
    gates: Iterable[str] = (),
    deadline: float = 10.0,
    share_id_seed: int | None = None,
) -> Allocation:
    """Find the devices that kube-scheduler would allocate to `claims`, all together, on `node`.

    Arguments:
        node: The node's name, or the Node object where its labels matter.
        classes: The DeviceClasses.
        slices: The ResourceSlices; may include those of other nodes, which are ignored. For many queries about many
            nodes, `dra_agent.cluster.Cluster` reads them once.
        claims: The ResourceClaims to allocate. An allocated claim keeps its devices.
        allocated: Other ResourceClaims; those that are allocated hold their devices.
        gates: Feature gates of kube-scheduler that are on, of those that are off by default:
            DRAListTypeAttributes, DRAOptionalNodeOperations.
        deadline: Seconds after which the search gives up with an error, as kube-scheduler does.
        share_id_seed: Makes the share IDs of shared devices repeatable; random if omitted.

    An object that is not one of resource.k8s.io/v1 is an `error`, as is everything without a result: a loop of
    what-if questions is never ended by one of them.
    """
    from dra_agent import _native

    query = encode_query(
        node=node,
        classes=classes,
        slices=slices,
        claims=claims,
        allocated=allocated,
        gates=gates,
        deadline=deadline,
        share_id_seed=share_id_seed,
    )
    try:
        response = _native.allocate(query)
    except ValueError as error:
        why = f"an object cannot be read: {error}; check it with `kubectl apply --dry-run=server`"
        return {"allocated": False, "results": [], "error": why}
    return cast("Allocation", msgspec.json.decode(response))

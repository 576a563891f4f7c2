"""Explains the allocation of a claim: every device of a node, with all reasons against it.

The allocator (rust/allocator) evaluates the claims; this package is its Python interface, and reads files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dra_agent.allocator import Object, encode_query
from dra_agent.errors import PermanentError
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
    """Explain the result that `allocate` has for the same query; docs/how-to/operate/explain.md describes the members.

    Raises PermanentError where an object is not one of resource.k8s.io/v1.
    """
    from dra_agent import _native

    query = encode_query(
        node=node, classes=classes, slices=slices, claims=claims, allocated=allocated, gates=gates, deadline=deadline
    )
    try:
        response = _native.explain(query)
    except ValueError as error:
        raise PermanentError(
            f"an object cannot be read: {error}", hint="check it with `kubectl apply --dry-run=server`"
        ) from None
    explanation: dict[str, Any] = msgspec.json.decode(response)
    return explanation

"""The feature gates of kube-scheduler that the slices of a cluster show to be on, of those that are off by default.

An API server drops a field while its gate is off, so a slice has the field only if the gate was on when it was written
(k8s.io/kubernetes v1.37.1, pkg/registry/resource/resourceslice/strategy.go, dropDisabledFields). The gates of
kube-scheduler cannot be queried: it is assumed to have the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain

from dra_agent.api_object import Object, allocation_of, full_name, requests_of, subrequests_of

OVERHEAD_NOTE = "devices have an overhead of memory or CPU of the node, which is not considered"
"""KEP-5517: kube-scheduler adds it to the requests of each pod with such a device."""
DERIVED_ATTRIBUTES = "DRADerivedAttributes"
"""The feature gate of attributes that a claim computes for its constraints."""
COMPATIBILITY_GROUPS = "DRADeviceCompatibilityGroups"
"""The feature gate of groups of devices that exclude each other; the allocator names it in its error about such a pool
(rust/engine/allocator/src/pools.rs)."""
_LIST_TYPES = frozenset({"ints", "bools", "strings", "versions"})


def gates_in_use(slices: Iterable[Object]) -> tuple[str, ...]:
    """Return the gates of which the slices use fields, as `allocate` takes them."""
    found: set[str] = set()
    for entry in slices:
        # A value of a wrong type is reported, with its field, when the allocator reads the slice.
        with suppress(AttributeError, TypeError):
            found.update(_used(entry))
    return tuple(sorted(found))


def notes_of(gates: Iterable[str]) -> list[str]:
    """Return the assumption on each gate, for users."""
    return [
        f"slices use fields of the feature gate {gate}, which kube-scheduler is assumed to have on" for gate in gates
    ]


def have_overhead(slices: Iterable[Object]) -> bool:
    """Return whether a device has overhead, which no explanation considers."""
    for entry in slices:
        with suppress(AttributeError, TypeError):
            devices = (entry.get("spec") or {}).get("devices") or ()
            if any(device.get("nodeAllocatableResources") for device in devices):
                return True
    return False


def derived_attributes(claims: Iterable[Object]) -> str | None:
    """Return which request cannot be evaluated because it has derived attributes; None if all can be.

    The allocator has no such attributes. The API server keeps the field only while the gate is on, so kube-scheduler
    can allocate the claim.
    """
    for claim in claims:
        for request in requests_of(claim) if allocation_of(claim) is None else ():
            alternatives = subrequests_of({"spec": {"devices": {"requests": [request]}}})
            if any(one.get("derivedAttributes") for one in alternatives):
                name = f"request {request.get('name')} of claim {full_name(claim)}"
                return f"{name} has derivedAttributes ({DERIVED_ATTRIBUTES}), which only kube-scheduler evaluates"
    return None


def is_unevaluated(error: str | None) -> bool:
    """Return whether an error of the allocator is about a pool that it does not evaluate."""
    return error is not None and COMPATIBILITY_GROUPS in error


def _used(entry: Object) -> Iterator[str]:
    spec = entry.get("spec") or {}
    if spec.get("skipNodeOperations"):
        yield "DRAOptionalNodeOperations"
    for device in spec.get("devices") or ():
        values = filter(None, (device.get("attributes") or {}).values())
        if not _LIST_TYPES.isdisjoint(chain.from_iterable(values)):
            yield "DRAListTypeAttributes"

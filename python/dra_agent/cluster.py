"""A cluster for what-if queries: slices, classes, nodes and held claims, read once for any number of queries.

The results are those of kube-scheduler for the same objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypedDict, TypeVar, cast

import msgspec

from dra_agent.errors import PermanentError

Object = Mapping[str, Any]
"""An object of the Kubernetes API, as JSON has it."""
Claims = bytes | Iterable[Object]
"""ResourceClaims: objects, or JSON as the API server returns it (a list object, an array or one object)."""
Source = bytes | Iterable[Object | bytes]
"""Objects of one kind: as `Claims`, or the pages of a list one after another."""

DEFAULT_MINOR = 37
"""The minor version of Kubernetes whose rules apply where another one is not named."""
BATCH_OBJECTS = 64
"""Objects that are encoded at a time: an iterable of any length needs memory for so many."""
MAX_COPIES = 1000
"""Default maximum of copies on one node: shares without a capacity, and admin access, have no limit."""
_HINT = "check it with `kubectl apply --dry-run=server`"
_Result = TypeVar("_Result")


class Allocation(TypedDict):
    """An AllocationResult for each claim, or none for any."""

    allocated: bool
    results: list[dict[str, Any]]
    """In the order of the claims; empty where they are not allocated."""
    error: str | None
    """Why there is no result; None if the claims do not fit."""
    fatal: bool
    """At the error, kube-scheduler places the pod on no node."""


class Sweep(msgspec.Struct, frozen=True):
    """On which nodes claims fit; every examined node is in one of `fits`, `reasons` and `errors`."""

    fits: list[str]
    """Names of nodes, in order."""
    reasons: dict[str, str]
    """By node: why the claims do not fit. `explain` has every device."""
    errors: dict[str, str]
    """By node: the error that kube-scheduler would report, such as an unknown class."""
    unexamined: list[str]
    """The nodes without a result at the deadline; empty if the sweep is complete."""
    fatal: list[str] = []
    """The nodes of `errors` at whose error kube-scheduler places the pod on no node, in order."""


class NodeCapacity(msgspec.Struct, frozen=True):
    """How many copies of claims fit on one node, if all of them are placed there."""

    node: str
    copies: int
    at_limit: bool
    """More copies may fit: `limit` ended the search."""
    reason: str
    """Why the next copy does not fit; empty at the limit or the deadline."""
    causes: list[str]
    """The causes of `reason`: `no_devices`, `no_match`, `too_few`, `in_use`, `placed` (these copies have the devices),
    `counter`, `node_operations`, `taint`, `capacity`, `constraint`, `combination`, `pool`, `not_evaluated`,
    `allocated_elsewhere` or `error`."""
    has_network_devices: bool
    """Other nodes can use devices of this node too, so the sum over the nodes may exceed the total."""
    fatal: bool = False
    """`reason` is an error at which kube-scheduler places no further copy, on this node or another one."""


class Capacity(msgspec.Struct, frozen=True):
    """How many copies of claims fit, placed one after another; another order of placement may reach more."""

    nodes: list[NodeCapacity]
    """By name; each node is examined as if no copy was placed on another one."""
    total: int
    """The copies that fit together on all nodes."""
    total_is_partial: bool
    """`total` is a lower bound, because of the limit or the deadline."""
    unexamined: list[str]
    """The nodes without a complete result at the deadline; their `copies` is a lower bound."""


class Counts(msgspec.Struct, frozen=True):
    """How many objects a cluster has, and the work that it did so far."""

    slices: int
    classes: int
    nodes: int
    """Node objects; slices can name more nodes."""
    held: int
    """Claims that hold devices."""
    slices_decoded: int
    expressions_compiled: int
    selectors_evaluated: int
    """Evaluations of one selector on one device; a known result is not evaluated again."""


class Cluster:
    """The objects of a cluster, for queries about claims. It changes nothing in a real cluster.

    Safe for threads: a query works on the objects that exist at its start, changes neither wait for queries nor affect
    those that run. Long calls release the GIL, so queries of several threads run in parallel.

    Every method raises PermanentError for an object that is not one of resource.k8s.io/v1; it names the object and the
    field, and nothing changes.
    """

    def __init__(
        self,
        slices: Source = (),
        classes: Source = (),
        *,
        nodes: Source = (),
        claims: Source = (),
        gates: Iterable[str] = (),
        scheduler_minor: int = DEFAULT_MINOR,
    ) -> None:
        """Read the objects.

        Arguments:
            slices: The ResourceSlices, with unique names.
            classes: The DeviceClasses.
            nodes: The Node objects, where their labels matter. Without any, the nodes are those that slices name.
            claims: ResourceClaims; those that are allocated hold their devices.
            gates: Feature gates of kube-scheduler that are on, of those that are off by default:
                DRAListTypeAttributes, DRAOptionalNodeOperations.
            scheduler_minor: The minor version of kube-scheduler. It decides which errors are fatal, and from 38 on
                `DRIVER/memory` and `memory` are one capacity of a device of DRIVER.
        """
        from dra_agent import _native

        try:
            self._native = _native.Cluster(list(gates), scheduler_minor)
        except ValueError as error:
            raise PermanentError(str(error), hint="leave out the other gates") from None
        for batch in _batches(slices):
            _call(self._native.update_slices, batch, True)
        for batch in _batches(classes):
            _call(self._native.update_classes, batch)
        for batch in _batches(nodes):
            _call(self._native.update_nodes, batch)
        for batch in _batches(claims):
            _call(self._native.hold, batch, True)

    def allocate(
        self,
        node: str,
        claims: Claims,
        *,
        deadline: float = 10.0,
        share_id_seed: int | None = None,
        ignore_held: bool = False,
    ) -> Allocation:
        """Find the devices that kube-scheduler would allocate to `claims`, all together, on a node.

        The result is not recorded: `hold` does that.

        Arguments:
            node: The name of the node.
            claims: The ResourceClaims to allocate. One that is allocated already keeps what it has.
            deadline: Seconds after which the search ends with an error, as in kube-scheduler.
            share_id_seed: Makes the share IDs of shared devices repeatable; random if omitted.
            ignore_held: Compute the result as if no claim was held.

        Raises:
            PermanentError: A claim cannot be read, or there are Node objects but none of this name.
        """
        seed = _seed(share_id_seed)
        response = _call(self._native.allocate, node, _encode(claims), _milliseconds(deadline), seed, ignore_held)
        return cast("Allocation", msgspec.json.decode(response))  # noqa: TID251 - the response of the Rust part

    def explain(self, node: str, claims: Claims, *, deadline: float = 10.0) -> dict[str, Any]:
        """Explain the result of `allocate`: every device with the reasons against it.

        docs/how-to/operate/explain.md describes the members. It takes at most twice `deadline` plus 5 seconds.

        Raises:
            PermanentError: As for `allocate`.
        """
        response = _call(self._native.explain, node, _encode(claims), _milliseconds(deadline), _seed(None), False)
        explanation: dict[str, Any] = msgspec.json.decode(response)  # noqa: TID251 - the response of the Rust part
        return explanation

    def fits(
        self,
        claims: Claims,
        *,
        nodes: Iterable[str] | None = None,
        deadline: float = 10.0,
        ignore_held: bool = False,
    ) -> Sweep:
        """Find the nodes on which `claims` fit, all together, and why they do not fit on others.

        Arguments:
            claims: The ResourceClaims; nothing is recorded.
            nodes: The names of the nodes to examine; all if omitted.
            deadline: Seconds for all nodes together. A node that needs long is examined after the others, and a
                partial result names the nodes that are not examined.
            ignore_held: Compute the result as if no claim was held.

        Raises:
            PermanentError: As for `allocate`.
        """
        names = None if nodes is None else list(nodes)
        response = _call(self._native.fits, names, _encode(claims), _milliseconds(deadline), ignore_held)
        return msgspec.json.decode(response, type=Sweep)  # noqa: TID251 - the response of the Rust part

    def capacity(
        self,
        claims: Claims,
        *,
        shared: Claims = (),
        nodes: Iterable[str] | None = None,
        limit: int = MAX_COPIES,
        deadline: float = 10.0,
        ignore_held: bool = False,
    ) -> Capacity:
        """Find how many copies of `claims` fit, one after another: on each node alone, and on all nodes together.

        A copy shares no device with another one, as pods with claims from templates. Each copy gets the devices that
        kube-scheduler would choose after the earlier ones. Nothing is recorded.

        Arguments:
            claims: The ResourceClaims of one copy, without an allocation.
            shared: The ResourceClaims that all copies use together. One that is not allocated gets devices with the
                first copy.
            nodes: The names of the nodes to examine; all if omitted.
            limit: The maximum number of copies on a node.
            deadline: Seconds for all nodes together. A partial result names the nodes that are not examined.
            ignore_held: Compute the result as if no claim was held.

        Raises:
            PermanentError: As for `allocate`, or a claim of `claims` has an allocation.
        """
        names = None if nodes is None else list(nodes)
        response = _call(
            self._native.capacity,
            names,
            _encode(claims),
            _encode(shared),
            max(0, limit),
            _milliseconds(deadline),
            ignore_held,
        )
        return msgspec.json.decode(response, type=Capacity)  # noqa: TID251 - the response of the Rust part

    def hold(self, claims: Source) -> None:
        """Record that allocated claims hold their devices; one that is held already gets its new allocation.

        Raises:
            PermanentError: A claim has no `status.allocation`, or neither uid nor name.
        """
        for batch in _batches(claims):
            _call(self._native.hold, batch, False)

    def release(self, claims: Source) -> int:
        """Release the devices of claims, found by uid, or by name where they have none; return how many were held."""
        return sum(_call(self._native.release, batch) for batch in _batches(claims))

    def update(self, slice: bytes | Object) -> None:
        """Add a ResourceSlice, or replace the one of its name."""
        _call(self._native.update_slices, _encode_one(slice), False)

    def delete(self, name: str) -> bool:
        """Remove a ResourceSlice; return whether there was one. Held claims keep their devices."""
        return self._native.delete_slice(name)

    def update_class(self, device_class: bytes | Object) -> None:
        """Add a DeviceClass, or replace the one of its name."""
        _call(self._native.update_classes, _encode_one(device_class))

    def delete_class(self, name: str) -> bool:
        """Remove a DeviceClass; return whether there was one."""
        return self._native.delete_class(name)

    def update_node(self, node: bytes | Object) -> None:
        """Add a Node, or replace the one of its name. Once there is one, only nodes with a Node object exist."""
        _call(self._native.update_nodes, _encode_one(node))

    def delete_node(self, name: str) -> bool:
        """Remove a Node; return whether there was one."""
        return self._native.delete_node(name)

    @property
    def counts(self) -> Counts:
        """The numbers of objects, and of the work so far."""
        return msgspec.json.decode(self._native.counts(), type=Counts)  # noqa: TID251 - the response of the Rust part


def _call(method: Callable[..., _Result], *arguments: Any) -> _Result:
    try:
        return method(*arguments)
    except ValueError as error:
        raise PermanentError(f"an object cannot be used: {error}", hint=_HINT) from None


def _encode(objects: Claims) -> bytes:
    return objects if isinstance(objects, bytes) else _array(list(objects))


def _encode_one(value: bytes | Object) -> bytes:
    return value if isinstance(value, bytes) else _array([value])


def _array(values: list[Object]) -> bytes:
    try:
        return msgspec.json.encode(values)
    except TypeError as error:
        raise PermanentError(f"an object has a value without a JSON form: {error}", hint=_HINT) from None


def _batches(objects: Source) -> Iterator[bytes]:
    """Encode objects a few at a time; JSON is passed on as it is."""
    if isinstance(objects, bytes):
        yield objects
        return
    if isinstance(objects, Mapping):
        raise PermanentError("there is one object instead of a list of objects", hint="put it into a list")
    batch: list[Object] = []
    for entry in objects:
        if isinstance(entry, bytes):
            yield entry
            continue
        batch.append(entry)
        if len(batch) == BATCH_OBJECTS:
            yield _array(batch)
            batch.clear()
    if batch:
        yield _array(batch)


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))


def _seed(share_id_seed: int | None) -> int:
    # Any int is a seed; the search takes 64 bits.
    return int.from_bytes(os.urandom(8), "big") if share_id_seed is None else share_id_seed % (1 << 64)

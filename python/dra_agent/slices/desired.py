"""Slices of an inventory: passes devices to the Rust crate that shards, orders, checks and compares slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from dra_agent import _native
from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Inventory, Pool

Slice = dict[str, Any]
"""A resource.k8s.io/v1 ResourceSlice as JSON values."""

Naming = Literal["generated", "fixed"]
"""generated: the API server completes `generateName`. fixed: names are complete, for a store that generates none."""


class SliceProblem(msgspec.Struct, frozen=True):
    """A device (or, where `device` is empty, a counter set) that is omitted because the API would reject it."""

    pool: str
    device: str
    field: str
    message: str

    def __str__(self) -> str:
        where = f"{self.pool}/{self.device}" if self.device else self.pool
        return f"{where}: {self.field + ': ' if self.field else ''}{self.message}"


class DesiredSlices(msgspec.Struct, frozen=True):
    """The desired slices."""

    slices: list[Slice]
    """In the order in which the scheduler walks them."""
    problems: list[SliceProblem]


class EncodedSlices(msgspec.Struct, frozen=True):
    """The same, with each slice as JSON."""

    slices: list[msgspec.Raw]
    problems: list[SliceProblem]


class Write(msgspec.Struct, frozen=True):
    """One write toward the desired slices."""

    op: Literal["create", "update", "delete"]
    slice: Slice
    """The slice to write; for a deletion, the published slice."""
    reason: str
    """Names of added, removed and changed devices, for messages."""


class _Writes(msgspec.Struct, frozen=True):
    writes: list[Write]


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Metadata


def desired_slices(
    inventory: Inventory,
    *,
    node: str,
    driver: str,
    published: Sequence[Slice] = (),
    naming: Naming = "generated",
    owner: dict[str, Any] | None = None,
) -> DesiredSlices:
    """Compute the slices of the pools of the inventory, with at most 64 devices per slice.

    `published` are the driver's slices of this node as they are now: devices keep their slice, and slices their name,
    generation and the times of their taints, so that little has to be written. `owner` is the ownerReference of new
    slices.

    Raises PermanentError where the node's or the driver's name is one that the API would refuse.
    """
    response = compute(_native.desired_slices, encode_request(inventory, node, driver, published, naming, owner), node)
    return msgspec.json.decode(response, type=DesiredSlices)  # noqa: TID251 - the response of the Rust part, and slices that it made


class SliceRequest:
    """Like `desired_slices`, from JSON to JSON: Python values of hundreds of partitions take megabytes."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        node: str,
        driver: str,
        published: Sequence[msgspec.Raw] = (),
        naming: Naming = "generated",
        owner: dict[str, Any] | None = None,
    ) -> None:
        """The parameters are those of `desired_slices`."""
        self._node = node
        self._query = encode_request(inventory, node, driver, published, naming, owner)

    @property
    def fingerprint(self) -> int:
        """Equal, within one process, for inventories with equal slices."""
        return hash(self._query)

    def slices(self) -> EncodedSlices:
        """Raise PermanentError where `desired_slices` does."""
        return msgspec.json.decode(compute(_native.desired_slices, self._query, self._node), type=EncodedSlices)  # noqa: TID251 - the response of the Rust part, and slices that it made


def diff_slices(desired: Sequence[Slice | msgspec.Raw], published: Sequence[Slice | msgspec.Raw]) -> list[Write]:
    """Return the writes in their order: deletions, updates, creations.

    `published` holds this driver's slices of this node only: one that is not desired is deleted.
    """
    response = _native.diff_slices(msgspec.json.encode(list(desired)), msgspec.json.encode(list(published)))
    return msgspec.json.decode(response, type=_Writes).writes  # noqa: TID251 - the response of the Rust part, and slices that it made


def slice_name(encoded: msgspec.Raw) -> str:
    """Return the name of a slice; "" if it has none yet."""
    return msgspec.json.decode(encoded, type=_Named).metadata.name  # noqa: TID251 - the response of the Rust part, and slices that it made


def encode_request(
    inventory: Inventory,
    node: str,
    driver: str,
    published: Sequence[Slice | msgspec.Raw],
    naming: Naming,
    owner: dict[str, Any] | None,
) -> bytes:
    """Encode the input of the Rust part; `desired_slices` has the parameters."""
    pools = [_pool(pool, node) for pool in inventory.pools()]
    request: dict[str, Any] = {
        "driver": driver,
        "node": node,
        "pools": pools,
        "published": list(published),
        "naming": naming,
    }
    if owner is not None:
        request["owner"] = owner
    return msgspec.json.encode(request)


def compute(call: Callable[[bytes], bytes], request: bytes, node: str) -> bytes:
    """Call the Rust part; raises PermanentError for a name that the API would refuse."""
    try:
        return call(request)
    except ValueError as error:
        raise PermanentError(f"the devices of node {node!r} cannot be published: {error}") from error


def _pool(pool: Pool, node: str) -> dict[str, Any]:
    devices = [
        {
            "order": {
                "numa_node": device.numa_node,
                "pcie_switch": device.pcie_switch,
                "pci_address": device.pci_address,
                "rank": device.order,
            },
            "device": msgspec.Raw(device.json),
        }
        for device in pool.devices
    ]
    return {
        "name": pool.name(node),
        "devices": devices,
        "counter_sets": list(pool.counter_sets),
    }

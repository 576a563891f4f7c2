"""The writes that one pool needs, planned from scratch each time.

It follows from the devices, the published slices, and the fields that the API server drops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import RESOURCE_SLICES, ApiClient, ForbiddenError, InvalidObjectError
from dra_agent.publish.access import NodeOwnerReference, WriteAccess
from dra_agent.publish.errors import DroppedFieldsError, UnsupportedTaintEffectError
from dra_agent.publish.feature_gates import (
    COUNTERS,
    EFFECT_NONE,
    LISTS,
    OVERHEAD,
    Gates,
    dropped_fields,
    gate_of,
    refused_counters,
    refused_effects,
    refused_lists,
    refused_overhead,
    remedy,
    used,
)
from dra_agent.publish.reflector import SliceReflector
from dra_agent.publish.slice_store import CachedSlice, SliceStore
from dra_agent.publish.stats import PublisherCounters
from dra_agent.slices import Slice, SliceRequest, Write, diff_slices, slice_name

log = logging.getLogger(__name__)


class PublishContext(msgspec.Struct, frozen=True):
    """The state that all pools share."""

    api: ApiClient
    node: str
    driver: str
    inventory: Callable[[], Inventory]
    is_leader: Callable[[], bool]
    urgent: Callable[[], bool]
    """Whether the node is being reclaimed."""
    published: SliceStore
    following: SliceReflector
    ownership: NodeOwnerReference
    gates: Gates
    tally: PublisherCounters
    access: WriteAccess | None = None
    """None where no other agent shares the node."""


class Planner:
    """Plans one pool."""

    def __init__(self, context: PublishContext, pool: str) -> None:
        self._context = context
        self._pool = pool
        self._adopted: dict[str, tuple[Any, Any]] = {}
        """By name: a spec as sent and as stored, if the server dropped fields of no known gate."""
        self._published_fingerprint: int | None = None
        """Fingerprint of the last plan without writes: a change of unpublished values needs no plan, which would decode
        hundreds of devices and take megabytes."""
        self.problems: tuple[str, ...] = ()
        """Devices that cannot be published."""

    def desired(self) -> Inventory:
        """Return the devices to publish."""
        return self._of_this_pool(self._context.inventory())

    def fingerprint(self, inventory: Inventory) -> int:
        """Equal for equal desired slices, independent of the published ones."""
        return SliceRequest(inventory, node=self._context.node, driver=self._context.driver).fingerprint

    async def plan(self) -> list[Write]:
        """Return the writes, from the published slices, the agent's own writes and the fields that the server drops."""
        self._context.gates.expire_off()
        return await self._plan()

    async def _plan(self) -> list[Write]:
        context = self._context
        owner = await context.ownership.reference()
        published = context.published.kept(self._pool)
        for found in published:
            context.gates.record_stored(found.gates)
        request = SliceRequest(
            self._of_this_pool(context.gates.reduce(context.inventory())),
            node=context.node,
            driver=context.driver,
            published=[self._as_sent(found) for found in published],
            naming="generated",
            owner=owner,
        )
        if request.fingerprint == self._published_fingerprint:
            return []
        drawn = request.slices()
        self._describe(tuple(str(problem) for problem in drawn.problems))
        slices = [self._as_adopted(slice_) for slice_ in drawn.slices]
        writes = diff_slices(slices, [found.encoded for found in published])
        by_name = {found.name: found for found in published}
        named = {write.slice["metadata"].get("name") for write in writes}
        for slice_ in slices:
            name = slice_name(slice_)
            if name not in by_name or name in named:
                continue
            if owner not in (by_name[name].metadata.get("ownerReferences") or ()):
                writes.append(Write("update", msgspec.json.decode(slice_), "belongs to another Node object"))  # noqa: TID251 - slices that the API server returned and the client decoded
        if not writes:
            self._published_fingerprint = request.fingerprint
        complete = [self._complete(write, by_name, owner) for write in writes]
        unsafe = [write for write in complete if write.op != "delete" and context.gates.needs_probe(write.slice)]
        if unsafe:
            # Kubernetes 1.34 accepts a slice of counters, and then rejects the devices that consume them.
            await self._probe(next((write for write in unsafe if write.slice["spec"].get("devices")), unsafe[0]))
            return await self._plan()
        return complete

    def _of_this_pool(self, inventory: Inventory) -> Inventory:
        for pool in inventory.pools():
            if pool.name(self._context.node) == self._pool:
                sets = {pool.family: pool.counter_sets} if pool.counter_sets else {}
                return Inventory(devices=pool.devices, counter_sets=sets)
        return Inventory()

    def _complete(self, write: Write, by_name: dict[str, CachedSlice], owner: dict[str, Any]) -> Write:
        """Return an update with all metadata of the published slice, including labels of other clients."""
        found = by_name.get(write.slice["metadata"].get("name"))
        if write.op != "update" or found is None:
            return write
        others = [
            reference
            for reference in found.metadata.get("ownerReferences") or ()
            if reference.get("kind") != "Node" and not reference.get("controller")
        ]
        metadata = {**found.metadata, "ownerReferences": [*others, owner]}
        return Write("update", {**write.slice, "metadata": metadata}, write.reason)

    async def _probe(self, write: Write) -> None:
        """Dry-run a slice: no device may be published without the fields that restrict its allocation."""
        api = self._context.api
        try:
            if write.op == "create":
                response = await api.create(RESOURCE_SLICES, write.slice, dry_run=True)
            else:
                response = await api.replace(RESOURCE_SLICES, write.slice, dry_run=True)
        except (InvalidObjectError, ForbiddenError) as error:
            if self.refused(write.slice, error):
                return
            raise
        self.learn(write.slice, response)
        self._context.gates.record_stored(used(write.slice))

    def learn(self, sent: Slice, response: Slice) -> bool:
        """Compare a write with the response; return whether another plan is needed for what the server dropped."""
        missing = dropped_fields(sent, response)
        if not missing:
            return False
        gates = {gate for path in missing if (gate := gate_of(path)) is not None}
        self._context.gates.record_dropped(gates)
        others = [path for path in missing if gate_of(path) != EFFECT_NONE]
        if not others:
            self._omit_unsupported_taints(missing)
            return True
        gates.discard(EFFECT_NONE)
        self._report_dropped(others, gates)
        # Without fields of a known gate the slices are planned again, also when the gate is on again.
        if not gates and "name" in response["metadata"]:
            self._adopted[response["metadata"]["name"]] = (sent["spec"], response["spec"])
        return bool(gates)

    def refused(self, sent: Slice, error: InvalidObjectError | ForbiddenError) -> bool:
        """Record a rejection; return whether another plan can avoid it."""
        message = str(error)
        effects = refused_effects(sent, message)
        if effects:
            self._omit_unsupported_taints(effects)
        of_gates = {
            COUNTERS: refused_counters(sent, message),
            LISTS: refused_lists(sent, message),
            OVERHEAD: refused_overhead(sent, message),
        }
        for gate, paths in of_gates.items():
            if paths:
                self._context.gates.record_dropped({gate})
                self._report_dropped(paths, {gate})
        return bool(effects) or any(of_gates.values())

    def _report_dropped(self, paths: list[str], gates: set[str]) -> None:
        before = self._context.tally.gates_off.get(self._pool)
        if before is not None:
            # Another gate may have been found before: the fields of both are missing.
            still_off = self._context.gates.off
            paths = [*paths, *(path for path in before.fields if path not in paths and gate_of(path) in still_off)]
            gates = gates | (set(before.gates) & still_off)
        error = DroppedFieldsError(self._pool, paths, gates, remedy(gates))
        if before is None or str(before) != str(error):
            log.error("slices are published without some fields", extra={"reason": str(error)})
        self._context.tally.dropped(error)

    def _omit_unsupported_taints(self, paths: list[str]) -> None:
        self._context.gates.record_dropped({EFFECT_NONE})
        error = UnsupportedTaintEffectError(self._pool, paths)
        if self._context.tally.record_unsupported_taints(error):
            log.warning("slices are published without taints that prevent nothing", extra={"reason": str(error)})

    def _as_sent(self, found: CachedSlice) -> msgspec.Raw:
        """Return a published slice with the fields that the server dropped: without them it would count as changed."""
        sent, stored = self._adopted.get(found.name, (None, None))
        if sent is None or stored is None:
            return found.encoded
        slice_ = found.decoded()
        if _content(stored) != _content(slice_["spec"]):
            return found.encoded
        return msgspec.Raw(msgspec.json.encode({**slice_, "spec": {**sent, "pool": slice_["spec"]["pool"]}}))

    def _as_adopted(self, drawn: msgspec.Raw) -> msgspec.Raw:
        """Return the slice as the server stored it before: it would drop the same fields again."""
        sent, stored = self._adopted.get(slice_name(drawn), (None, None))
        if sent is None:
            return drawn
        slice_ = msgspec.json.decode(drawn)  # noqa: TID251 - slices that the API server returned and the client decoded
        if _content(sent) != _content(slice_["spec"]):
            return drawn
        return msgspec.Raw(msgspec.json.encode({**slice_, "spec": {**stored, "pool": slice_["spec"]["pool"]}}))

    def _describe(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self.problems:
                log.error("device is not published", extra={"problem": problem})
        self.problems = problems


def _content(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "pool"}

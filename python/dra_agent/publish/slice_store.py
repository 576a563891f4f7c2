"""The published slices: those of the watch, overlaid by the agent's own later writes.

The watch reports a write later than its response. A plan from the watch alone would write
the same twice.

Slices are kept as JSON: Python values need eight times the memory, and the planner reads JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from dra_agent.kube_client import ObjectList, WatchEvent
from dra_agent.publish.feature_gates import used
from dra_agent.slices import Slice

MAX_DELETED = 1000
"""Maximum recorded deletions."""


class ChangedSlice(NamedTuple):
    """A slice that changed, and a pool that it is or was part of."""

    pool: str
    slice: str


class CachedSlice(msgspec.Struct, frozen=True):
    """One slice that is published."""

    metadata: dict[str, Any]
    """Without managedFields."""
    pool: str
    gates: frozenset[str]
    """Gates of which it has fields."""
    encoded: msgspec.Raw
    """All of it."""

    @property
    def name(self) -> str:
        """metadata.name."""
        return str(self.metadata["name"])

    @classmethod
    def of(cls, entry: Slice) -> CachedSlice:
        """Store a slice that `is_well_formed`."""
        # The managed fields are large and not needed here.
        metadata = {key: value for key, value in entry["metadata"].items() if key != "managedFields"}
        encoded = msgspec.json.encode({**entry, "metadata": metadata})
        return cls(metadata, entry["spec"]["pool"]["name"], used(entry), msgspec.Raw(encoded))

    def decoded(self) -> Slice:
        """Return it as JSON values, which the caller may change."""
        slice_: Slice = msgspec.json.decode(self.encoded)  # noqa: TID251 - slices that the API server returned and the client decoded
        return slice_


class SliceStore:
    """The driver's slices of this node."""

    def __init__(self, stored: Callable[[], None] = lambda: None) -> None:
        """`stored` is called after every change of the slices."""
        self._stored = stored
        self._slices: dict[str, CachedSlice] = {}
        self._deleted: dict[str, None] = {}
        """Uids of deleted slices for which an older event may still arrive: from the watch if the agent
        deleted them, or a late response to a write if another client did."""
        self._listed_at: int | None = None
        self.complete = False
        """Whether the first list is complete: before it the published slices are unknown."""

    def kept(self, pool: str) -> list[CachedSlice]:
        """The slices of one pool, of all generations."""
        return [found for found in self._slices.values() if found.pool == pool]

    def all(self) -> Iterable[CachedSlice]:
        """Return the slices of every pool."""
        return self._slices.values()

    def slices(self, pool: str) -> list[Slice]:
        """The same as JSON values, made for each call."""
        return [found.decoded() for found in self.kept(pool)]

    def pools(self) -> set[str]:
        """The pools that anything is published of."""
        return {found.pool for found in self._slices.values()}

    def __len__(self) -> int:
        return len(self._slices)

    def listed(self, found: ObjectList) -> set[ChangedSlice]:
        """Store a list; return the slices that differ from the previous state.

        A slice that was written after the list is kept.
        """
        changed: set[ChangedSlice] = set()
        listed = {entry["metadata"]["name"]: entry for entry in found.items if is_well_formed(entry)}
        for entry in listed.values():
            changed |= self._store(entry)
        at = self._listed_at = _version(found.resource_version)
        for name, known in list(self._slices.items()):
            if name not in listed and not _newer(known, at):
                changed.add(ChangedSlice(known.pool, known.name))
                del self._slices[name]
                self._stored()
        self.complete = True
        return changed

    def changed(self, event: WatchEvent) -> set[ChangedSlice]:
        """Store a watch event; return the slice that it changes, once for each pool that it is or was part of.

        The author is not known: the watch may report the agent's own write before the response arrives.
        """
        if not is_well_formed(event.object):
            return set()
        if event.type != "DELETED":
            return self._store(event.object)
        known = self._slices.get(event.object["metadata"]["name"])
        self.deleted(event.object)
        if known is None or known.metadata["uid"] != event.object["metadata"]["uid"]:
            return set()
        return {ChangedSlice(known.pool, known.name)}

    def wrote(self, response: Slice) -> None:
        """Store the response to a creation or an update.

        The response may be older than a list without the slice, if it was deleted at once.
        """
        if not is_well_formed(response):
            return
        metadata = response["metadata"]
        version = _version(metadata["resourceVersion"])
        passed = version is not None and self._listed_at is not None and version <= self._listed_at
        if metadata["name"] in self._slices or not passed:
            self._store(response)

    def is_newest(self, response: Slice) -> bool:
        """Whether this response is the newest known version of its slice."""
        known = self._slices.get(response["metadata"]["name"])
        return known is not None and known.metadata["resourceVersion"] == response["metadata"]["resourceVersion"]

    def deleted(self, slice_: Slice) -> None:
        """Record that the slice with this uid was deleted."""
        metadata = slice_["metadata"]
        known = self._slices.get(metadata["name"])
        if known is not None and known.metadata["uid"] == metadata["uid"]:
            del self._slices[metadata["name"]]
            self._stored()
        self._deleted[metadata["uid"]] = None
        if len(self._deleted) > MAX_DELETED:
            del self._deleted[next(iter(self._deleted))]

    def _store(self, entry: Slice) -> set[ChangedSlice]:
        metadata = entry["metadata"]
        if metadata["uid"] in self._deleted:
            return set()
        known = self._slices.get(metadata["name"])
        if known is not None and known.metadata["uid"] == metadata["uid"]:
            if known.metadata["resourceVersion"] == metadata["resourceVersion"]:
                return set()
            if _newer(known, _version(metadata["resourceVersion"])):
                return set()
        stored = self._slices[metadata["name"]] = CachedSlice.of(entry)
        self._stored()
        return {ChangedSlice(slice_.pool, slice_.name) for slice_ in (known, stored) if slice_ is not None}


def is_well_formed(entry: Any) -> bool:
    """Whether the object has a name and a pool: a server may return anything."""
    try:
        metadata, pool = entry["metadata"], entry["spec"]["pool"]["name"]
        texts = (metadata["name"], metadata["uid"], metadata["resourceVersion"], pool)
    except (TypeError, KeyError):
        return False
    return all(isinstance(text, str) for text in texts)


def _newer(known: CachedSlice, at: int | None) -> bool:
    version = _version(known.metadata["resourceVersion"])
    return version is not None and at is not None and version > at


def _version(text: str) -> int | None:
    """Resource versions are compared as numbers (KEP-5504); an invalid one is older than all others."""
    return int(text) if text.isdigit() else None

"""Selects waiting claims for another attempt: those with a result that may have changed since the last one.

Claims with equal specs have equal results, so they are tried as one group. The result "no" of a group is valid until
something changes that it depends on: a class that it names, the devices of the host, or a release, unless the group
does not even fit on an empty host. An allocation never changes a "no" to a "yes".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec


@dataclass(slots=True)
class Refusal:
    """Why the claims of a group have no devices."""

    message: str
    named: str
    """The claim that the message names."""
    fits_empty_host: bool


@dataclass(slots=True)
class Group:
    """Waiting claims with equal specs."""

    digest: bytes
    classes: frozenset[str]
    positions: dict[str, int] = field(default_factory=dict)
    """Of each claim, by uid, its place in the order of arrival."""
    order: list[tuple[int, str]] = field(default_factory=list)
    refusal: Refusal | None = None
    """None: the group needs a try."""
    fits_empty_host: bool | None = None
    """None: not known for the devices and classes of now."""
    version: int = 0
    """Grows with every change that a try has to take in."""

    def first(self) -> tuple[int, str]:
        """Return position and uid of the oldest claim."""
        while self.positions.get(self.order[0][1]) != self.order[0][0]:
            heapq.heappop(self.order)
        return self.order[0]


class WaitingClaims:
    """The claims that wait for devices. Not safe for threads: the queue holds its lock."""

    def __init__(self) -> None:
        self._groups: dict[bytes, Group] = {}
        self._of_claim: dict[str, Group] = {}
        self._due: list[tuple[int, bytes]] = []
        """A heap with the oldest claim's position of each group that needs a try, and entries that hold no more."""

    def __len__(self) -> int:
        return len(self._of_claim)

    def __contains__(self, uid: str) -> bool:
        return uid in self._of_claim

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_claim)

    def add(self, uid: str, position: int, digest: bytes, spec: dict[str, Any]) -> None:
        """Add a claim; it is tried unless the result for its spec is known."""
        group = self._groups.get(digest)
        if group is None:
            group = self._groups[digest] = Group(digest, _classes(spec))
        group.positions[uid] = position
        heapq.heappush(group.order, (position, uid))
        self._of_claim[uid] = group
        if group.refusal is None and group.first()[0] == position:
            heapq.heappush(self._due, (position, digest))

    def discard(self, uid: str) -> None:
        """Remove a claim that was allocated or deleted."""
        group = self._of_claim.pop(uid, None)
        if group is None:
            return
        del group.positions[uid]
        if not group.positions:
            del self._groups[group.digest]
        elif group.refusal is None:
            heapq.heappush(self._due, (group.first()[0], group.digest))

    def oldest(self, limit: int) -> list[tuple[str, Group]]:
        """Return up to `limit` groups that need a try, each with its oldest claim, in the order of these claims."""
        found: dict[bytes, tuple[str, Group]] = {}
        entries = []
        while self._due and len(found) < limit:
            position, digest = entry = heapq.heappop(self._due)
            group = self._groups.get(digest)
            if group is None or group.refusal is not None or digest in found or group.first()[0] != position:
                continue
            found[digest] = group.first()[1], group
            entries.append(entry)
        for entry in entries:
            heapq.heappush(self._due, entry)
        return [*found.values()]

    def refuse(self, group: Group, version: int, refusal: Refusal) -> None:
        """Record the result of an attempt that started at `version`; an outdated one is dropped."""
        if group.version == version:
            group.refusal = refusal
            group.fits_empty_host = refusal.fits_empty_host

    def released(self) -> None:
        """Try those again that wait for devices which other claims hold."""
        self._retry([group for group in self._groups.values() if group.fits_empty_host is not False])

    def class_changed(self, name: str) -> None:
        """Try those again that name a class."""
        self._invalidate_empty_host([group for group in self._groups.values() if name in group.classes])

    def devices_changed(self) -> None:
        """Try all again."""
        self._invalidate_empty_host(list(self._groups.values()))

    def refusal(self, uid: str) -> Refusal | None:
        """Return why a claim has no devices; None where it is to be tried."""
        return self._of_claim[uid].refusal

    def untried(self) -> list[int]:
        """Return the positions of the claims that are still to be tried, in order."""
        return sorted(
            position
            for group in self._groups.values()
            if group.refusal is None
            for position in group.positions.values()
        )

    def _invalidate_empty_host(self, groups: list[Group]) -> None:
        for group in groups:
            group.fits_empty_host = None
        self._retry(groups)

    def _retry(self, groups: list[Group]) -> None:
        for group in groups:
            group.version += 1
            if group.refusal is not None:
                group.refusal = None
                heapq.heappush(self._due, (group.first()[0], group.digest))


def digest_of(spec: Any) -> bytes:
    """Return a value that is equal for claims with equal specs."""
    return blake2b(msgspec.json.encode(spec, order="sorted"), digest_size=16).digest()


def _classes(spec: dict[str, Any]) -> frozenset[str]:
    names = set()
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if one and one.get("deviceClassName"):
                names.add(str(one["deviceClassName"]))
    return frozenset(names)

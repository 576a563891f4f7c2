"""Selects waiting claims for another attempt: those with a result that may have changed since the last one.

Claims with equal specs have equal results, so they are tried as one group. The result "no" of a group is valid until
something changes that it depends on: a class that it names, the devices of the host, or a release, unless the group
does not even fit on an empty host. An allocation never changes a "no" to a "yes".

After a release, groups with the same relaxed spec are asked for together first: while a claim with that spec does not
fit, none of theirs does, and their results stay valid. So a release costs one query for thousands of different specs,
unless the relaxed one fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from dra_agent.standalone.relaxed import relaxed

MIN_KINDRED = 4
"""Groups with the same relaxed spec from which on a query for all of them is worth it."""


@dataclass(slots=True)
class Refusal:
    """Why the claims of a group have no devices."""

    message: str
    named: str
    """The claim that the message names."""
    fits_empty_host: bool


@dataclass(slots=True)
class Kindred:
    """Groups with the same relaxed spec."""

    digest: bytes
    size: int = 0
    members: list[Group] = field(default_factory=list)
    """The groups, and some that have ended: a dictionary for each would need more memory."""
    is_released: bool = False
    """A release came after the refusals of the groups, and the relaxed spec was not tried since."""
    releases: int = 0
    """The number of releases so far, which a try has to take in."""
    is_undecided: bool = False
    """A try of the relaxed spec took long, or ended with an error: it is not tried again."""

    def add(self, group: Group) -> None:
        """Add a group."""
        self.size += 1
        self.members.append(group)
        if len(self.members) > 2 * self.size:
            self.members = [one for one in self.members if one.positions or one is group]

    def waiting_for_devices(self) -> Iterator[Group]:
        """Return the groups that would fit on an empty host, as far as that is known."""
        return (group for group in self.members if group.positions and group.fits_empty_host is not False)


@dataclass(slots=True)
class Group:
    """Waiting claims with equal specs."""

    digest: bytes
    kindred: Kindred
    classes: frozenset[str]
    positions: dict[str, int] = field(default_factory=dict)
    """Of each claim, by uid, its place in the order of arrival."""
    order: list[tuple[int, str]] = field(default_factory=list)
    last_refusal: Refusal | None = None
    """The result of the last try; None: the group needs a try."""
    fits_empty_host: bool | None = None
    """None: not known for the devices and classes of now."""
    changes: int = 0
    """The number of other changes so far, which a try has to take in."""

    @property
    def version(self) -> tuple[int, int]:
        """Differs after every change that a try has to take in."""
        return self.changes, self.kindred.releases

    @property
    def refusal(self) -> Refusal | None:
        """Why the claims have no devices; None where they are to be tried, or their relaxed spec is."""
        return None if self.kindred.is_released and self.fits_empty_host is not False else self.last_refusal

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
        self._kindred: dict[bytes, Kindred] = {}
        self._released: dict[bytes, Kindred] = {}
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
            relaxed_digest = digest_of(relaxed(spec))
            kindred = self._kindred.setdefault(relaxed_digest, Kindred(relaxed_digest))
            group = self._groups[digest] = Group(digest, kindred, _classes(spec))
            kindred.add(group)
        group.positions[uid] = position
        heapq.heappush(group.order, (position, uid))
        self._of_claim[uid] = group
        if group.last_refusal is None and group.first()[0] == position:
            heapq.heappush(self._due, (position, digest))

    def discard(self, uid: str) -> None:
        """Remove a claim that was allocated or deleted."""
        group = self._of_claim.pop(uid, None)
        if group is None:
            return
        del group.positions[uid]
        if not group.positions:
            del self._groups[group.digest]
            kindred = group.kindred
            kindred.size -= 1
            if not kindred.size:
                del self._kindred[kindred.digest]
                self._released.pop(kindred.digest, None)
        elif group.last_refusal is None:
            heapq.heappush(self._due, (group.first()[0], group.digest))

    def oldest(self, limit: int) -> list[tuple[str, Group]]:
        """Return up to `limit` groups that need a try, each with its oldest claim, in the order of these claims.

        Those of `released_kindred` come first: which of their groups need a try is known only afterwards.
        """
        found: dict[bytes, tuple[str, Group]] = {}
        entries = []
        while self._due and len(found) < limit:
            position, digest = entry = heapq.heappop(self._due)
            group = self._groups.get(digest)
            if group is None or group.last_refusal is not None or digest in found or group.first()[0] != position:
                continue
            found[digest] = group.first()[1], group
            entries.append(entry)
        for entry in entries:
            heapq.heappush(self._due, entry)
        return [*found.values()]

    def needs_try(self) -> bool:
        """Return whether any claim is to be tried."""
        return bool(self._released or self.oldest(1))

    def released_kindred(self) -> Kindred | None:
        """Return groups whose relaxed spec needs a try after a release."""
        while self._released:
            kindred = next(iter(self._released.values()))
            if any(kindred.waiting_for_devices()):
                return kindred
            self._settle(kindred)
        return None

    def keep_refusals(self, kindred: Kindred, releases: int) -> None:
        """Record that the relaxed spec did not fit after so many releases; an outdated result is dropped."""
        if kindred.releases == releases:
            self._settle(kindred)

    def try_all(self, kindred: Kindred) -> None:
        """Have the groups tried one by one, because their relaxed spec may fit."""
        self._settle(kindred)
        self._retry([*kindred.waiting_for_devices()])

    def refuse(self, group: Group, version: tuple[int, int], refusal: Refusal) -> None:
        """Record the result of an attempt that started at `version`; an outdated one is dropped."""
        if group.version == version:
            group.last_refusal = refusal
            group.fits_empty_host = refusal.fits_empty_host

    def released(self) -> None:
        """Try those again that wait for devices which other claims hold."""
        for kindred in self._kindred.values():
            if kindred.size < MIN_KINDRED or kindred.is_undecided:
                self._retry([*kindred.waiting_for_devices()])
            else:
                kindred.releases += 1
                kindred.is_released = True
                self._released[kindred.digest] = kindred

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

    def _settle(self, kindred: Kindred) -> None:
        kindred.is_released = False
        self._released.pop(kindred.digest, None)

    def _invalidate_empty_host(self, groups: list[Group]) -> None:
        for group in groups:
            group.fits_empty_host = None
        self._retry(groups)

    def _retry(self, groups: list[Group]) -> None:
        for group in groups:
            group.changes += 1
            if group.last_refusal is not None:
                group.last_refusal = None
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

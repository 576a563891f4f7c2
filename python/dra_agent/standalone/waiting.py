"""Selects waiting claims for another attempt: those with a result that may have changed since the last one.

Claims with equal specs have equal results, so they are tried as one group. The same is true of specs that differ only
in their selectors, if these choose the same devices: thousands of such specs are one group too, once `selection` knows
their devices.

The result "no" of a group is valid until something changes that it depends on: a class that it names, the devices of
the host, or a release, unless the group does not even fit on an empty host. An allocation never changes a "no" to a
"yes".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

MIN_SPECS = 4
"""Different specs from which on it is worth a query for each to find out which of them choose the same devices."""


@dataclass(slots=True)
class Refusal:
    """Why the claims of a group have no devices."""

    message: str
    named: str
    """The claim that the message names."""
    fits_empty_host: bool | None
    """None: not known, because not the spec was tried but its relaxed form."""


@dataclass(slots=True)
class Group:
    """Waiting claims with equal results."""

    key: bytes
    """The digest of the spec of all of them, or that of what several specs have in common."""
    positions: dict[str, int] = field(default_factory=dict)
    """Of each claim, by uid, its place in the order of arrival."""
    order: list[tuple[int, str]] = field(default_factory=list)
    refusal: Refusal | None = None
    """The result of the last try; None: the group needs a try."""
    fits_empty_host: bool | None = None
    """None: not known for the devices and classes of now."""
    is_classified: bool = False
    """Specs with the same results are in the group, as far as they are known."""
    version: int = 0
    """Grows with every change that a try has to take in."""

    def add(self, uid: str, position: int) -> None:
        """Add a claim."""
        self.positions[uid] = position
        heapq.heappush(self.order, (position, uid))

    def first(self) -> tuple[int, str]:
        """Return position and uid of the oldest claim."""
        while self.positions.get(self.order[0][1]) != self.order[0][0]:
            heapq.heappop(self.order)
        return self.order[0]


@dataclass(slots=True)
class _Spec:
    """What is known of the waiting claims with one spec."""

    digest: bytes
    classes: frozenset[str]
    group: Group
    claims: int = 0
    """How many there are."""


class WaitingClaims:
    """The claims that wait for devices. Not safe for threads: the queue holds its lock."""

    def __init__(self) -> None:
        self._groups: dict[bytes, Group] = {}
        self._specs: dict[bytes, _Spec] = {}
        self._of_claim: dict[str, _Spec] = {}
        self._untried: set[int] = set()
        """The positions of the claims of all groups that need a try."""
        self._unclassified: dict[bytes, Group] = {}
        """Groups that were refused for their relaxed form, in this order. Reading them removes outdated entries."""
        self._due: list[tuple[int, bytes]] = []
        """A heap with the oldest claim's position of each group that needs a try, and entries that hold no more."""

    def __len__(self) -> int:
        return len(self._of_claim)

    def __contains__(self, uid: str) -> bool:
        return uid in self._of_claim

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_claim)

    @property
    def has_many_specs(self) -> bool:
        """Whether it is worth a query for each spec to find out which of them have the same results."""
        return len(self._specs) >= MIN_SPECS

    def add(self, uid: str, position: int, digest: bytes, spec: dict[str, Any]) -> None:
        """Add a claim; it is tried unless the result for its spec is known."""
        known = self._specs.get(digest)
        if known is None:
            group = self._groups[digest] = Group(digest)
            known = self._specs[digest] = _Spec(digest, _classes(spec), group)
        known.claims += 1
        self._of_claim[uid] = known
        group = known.group
        group.add(uid, position)
        if group.refusal is None:
            self._untried.add(position)
            if group.first()[0] == position:
                heapq.heappush(self._due, (position, group.key))

    def discard(self, uid: str) -> None:
        """Remove a claim that was allocated or deleted."""
        spec = self._of_claim.pop(uid, None)
        if spec is None:
            return
        spec.claims -= 1
        if not spec.claims:
            del self._specs[spec.digest]
        group = spec.group
        self._untried.discard(group.positions.pop(uid))
        if not group.positions:
            del self._groups[group.key]
        elif group.refusal is None:
            self._make_due(group)

    def oldest(self, limit: int) -> list[tuple[str, Group]]:
        """Return up to `limit` groups that need a try, each with its oldest claim, in the order of these claims."""
        found: dict[bytes, tuple[str, Group]] = {}
        entries = []
        while self._due and len(found) < limit:
            position, key = entry = heapq.heappop(self._due)
            group = self._groups.get(key)
            if group is None or group.refusal is not None or key in found or group.first()[0] != position:
                continue
            found[key] = group.first()[1], group
            entries.append(entry)
        for entry in entries:
            heapq.heappush(self._due, entry)
        return [*found.values()]

    def unclassified(self, limit: int) -> list[tuple[str, Group]]:
        """Return up to `limit` groups that were refused for their relaxed form, each with its oldest claim.

        The last ones come first: their claims are of the last request, which waits for its response.
        """
        found: list[tuple[str, Group]] = []
        for key in [*islice(reversed(self._unclassified), limit)]:
            group = self._unclassified[key]
            if self._groups.get(key) is group and group.refusal is not None and group.fits_empty_host is None:
                found.append((group.first()[1], group))
            else:
                del self._unclassified[key]
        return found

    def needs_try(self) -> bool:
        """Return whether any claim is to be tried."""
        return bool(self.oldest(1) or self._unclassified)

    def classify(self, group: Group, key: bytes | None) -> Group:
        """Add the claims of a spec to the group of all specs with this key, and return that group.

        Arguments:
            group: One that is not classified.
            key: Equal for specs with equal results; None if that is not known.
        """
        self._unclassified.pop(group.key, None)
        if key is None:
            group.is_classified = True
            return group
        del self._groups[group.key]
        same = self._groups.get(key)
        if same is None:
            # The spec stays in it; its digest is no longer a key.
            group.key, group.is_classified = key, True
            self._groups[key] = group
            if group.refusal is None:
                self._make_due(group)
            return group
        self._specs[group.key].group = same
        for uid, position in group.positions.items():
            same.add(uid, position)
        if same.refusal is not None:
            self._untried.difference_update(group.positions.values())
        else:
            self._untried.update(group.positions.values())
            self._make_due(same)
        group.version += 1
        return same

    def refuse(self, group: Group, version: int, refusal: Refusal) -> None:
        """Record the result of an attempt that started at `version`; an outdated one is dropped."""
        if group.version == version:
            group.refusal = refusal
            group.fits_empty_host = refusal.fits_empty_host
            self._untried.difference_update(group.positions.values())
            if refusal.fits_empty_host is None:
                self._unclassified[group.key] = group

    def released(self) -> None:
        """Try those again that wait for devices which other claims hold."""
        for group in self._groups.values():
            if group.fits_empty_host is not False:
                group.version += 1
                if group.refusal is not None:
                    group.refusal = None
                    self._untried.update(group.positions.values())
                    self._make_due(group)

    def class_changed(self, name: str) -> None:
        """Try those again that name a class."""
        self._separate([spec for spec in self._specs.values() if name in spec.classes])

    def devices_changed(self) -> None:
        """Try all again."""
        self._separate(self._specs.values())

    def refusal(self, uid: str) -> Refusal | None:
        """Return why a claim has no devices; None where it is to be tried."""
        return self._of_claim[uid].group.refusal

    def is_tried(self, uid: str) -> bool:
        """Return whether the reason is known, and with it whether the claim would fit on an empty host."""
        refusal = self.refusal(uid)
        return refusal is not None and refusal.fits_empty_host is not None

    def untried(self) -> list[int]:
        """Return the positions of the claims that are still to be tried, in order."""
        return sorted(self._untried)

    def _make_due(self, group: Group) -> None:
        heapq.heappush(self._due, (group.first()[0], group.key))

    def _separate(self, specs: Iterable[_Spec]) -> None:
        """Try specs again, each on its own: what their selectors choose may have changed.

        All specs of a group name the same classes, so none of its other specs stays in it.
        """
        groups_before = {spec.digest: spec.group for spec in specs}
        for digest, group in groups_before.items():
            group.version += 1
            self._groups.pop(group.key, None)
            self._specs[digest].group = Group(digest)
        for digest in groups_before:
            self._groups[digest] = self._specs[digest].group
        for uid, spec in self._of_claim.items():
            if (before := groups_before.get(spec.digest)) is not None:
                spec.group.add(uid, before.positions[uid])
        for digest in groups_before:
            group = self._groups[digest]
            self._untried.update(group.positions.values())
            self._make_due(group)


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

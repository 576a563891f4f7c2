"""Selects waiting claims for another attempt: those with a result that may have changed since the last one.

Claims with equal specs have equal results, so they are tried as one group. The same is true of specs that differ only
in their selectors, if these choose the same devices: thousands of such specs are one group too, once `selection` knows
their devices.

The result "no" of a group is valid until something changes that it depends on: a class that it names, the devices of
the host, or a release, unless the group does not even fit on an empty host. An allocation never changes a "no" to a
"yes".

Specs whose devices are not known yet are refused by their relaxed form (`relaxed`). After a release that form is tried
first: while it does not fit, none of theirs does, and one query refuses thousands of them again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dra_agent.standalone.groups import Form, Group, Refusal

MIN_SPECS = 4
"""Different specs from which on it is worth a query for each to find out which of them choose the same devices, and a
query for all of them to find out whether any of them may fit."""


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
        """The positions of the claims of all groups that need a try; without those of released forms."""
        self._forms: dict[bytes, Form] = {}
        """In the order of their last refusals."""
        self._released: list[tuple[int, bytes]] = []
        """A heap with each form that needs a try, and entries that hold no more."""
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
        if group.form is not None and position < group.form.oldest:
            # A claim that was released waits in its old place.
            group.form.oldest = position
            heapq.heappush(self._released, (position, group.form.digest))
        if group.last_refusal is None:
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
            self._leave_form(group)
            del self._groups[group.key]
        elif group.last_refusal is None:
            self._make_due(group)

    def released_form(self) -> Form | None:
        """Return the form with the oldest claims of those that need a try; None if a group with older claims does."""
        form = self._next_form()
        if form is None or (self._due and self._due[0][0] < form.oldest and self.oldest(1)):
            return None
        return form

    def oldest(self, limit: int) -> list[tuple[str, Group]]:
        """Return up to `limit` groups that need a try, each with its oldest claim, in the order of these claims.

        A group that may have younger claims than a released form is not among them.
        """
        found: dict[bytes, tuple[str, Group]] = {}
        entries = []
        form = self._next_form()
        while self._due and len(found) < limit and (form is None or self._due[0][0] < form.oldest):
            position, key = entry = heapq.heappop(self._due)
            group = self._groups.get(key)
            if group is None or group.last_refusal is not None or key in found or group.first()[0] != position:
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
        refused = (
            group
            for form in reversed(self._forms.values())
            if not form.is_released
            for group in reversed(form.groups.values())
        )
        return [(group.first()[1], group) for group in islice(refused, limit)]

    def needs_try(self) -> bool:
        """Return whether any claim is to be tried, or was refused for its relaxed form only."""
        return bool(self._forms or self.oldest(1))

    def is_due(self) -> bool:
        """Return whether a claim or a relaxed form is to be tried: no idle time is left for other work."""
        return self._next_form() is not None or bool(self.oldest(1))

    def classify(self, group: Group, key: bytes | None) -> Group:
        """Add the claims of a spec to the group of all specs with this key, and return that group.

        Arguments:
            group: One that is not classified.
            key: Equal for specs with equal results; None if that is not known.
        """
        self._leave_form(group)
        if key is None:
            group.is_classified = True
            return group
        del self._groups[group.key]
        same = self._groups.get(key)
        if same is None:
            # The spec stays in it; its digest is no longer a key.
            group.key, group.is_classified = key, True
            self._groups[key] = group
            if group.last_refusal is None:
                self._make_due(group)
            return group
        self._specs[group.key].group = same
        for uid, position in group.positions.items():
            same.add(uid, position)
        if same.last_refusal is not None:
            self._untried.difference_update(group.positions.values())
        else:
            self._untried.update(group.positions.values())
            self._make_due(same)
        group.version += 1
        return same

    def refuse(self, group: Group, version: int, refusal: Refusal, form: bytes | None = None) -> None:
        """Record the result of an attempt that started at `version`; an outdated one is dropped.

        Arguments:
            group: The group that was tried.
            version: Its version at that time.
            refusal: The result.
            form: The digest of the relaxed form if not the spec was tried, but this form.
        """
        if group.version != version:
            return
        group.last_refusal = refusal
        group.fits_empty_host = refusal.fits_empty_host
        self._untried.difference_update(group.positions.values())
        if form is not None:
            oldest = group.first()[0]
            group.form = self._forms.pop(form, None) or Form(form, oldest)
            group.form.oldest = min(group.form.oldest, oldest)
            group.form.groups[group.key] = group
            self._forms[form] = group.form

    def keep_refusals(self, form: Form, version: int) -> None:
        """Record that a form did not fit when its version was this; an outdated result is dropped."""
        if form.version == version:
            form.is_released = False

    def try_each(self, form: Form) -> None:
        """Have the groups of a form tried one by one, because it may fit."""
        for group in [*form.groups.values()]:
            self._leave_form(group)
            self._retry(group)

    def released(self) -> None:
        """Try those again that wait for devices which other claims hold."""
        for group in self._groups.values():
            if group.fits_empty_host is not False:
                group.version += 1
                if group.form is None:
                    self._retry(group)
        for form in [*self._forms.values()]:
            if len(form.groups) < MIN_SPECS:
                self.try_each(form)
            else:
                form.version += 1
                form.is_released = True
                heapq.heappush(self._released, (form.oldest, form.digest))

    def class_changed(self, name: str) -> None:
        """Try those again that name a class."""
        self._separate([spec for spec in self._specs.values() if name in spec.classes])

    def devices_changed(self) -> None:
        """Try all again."""
        self._separate(self._specs.values())

    def group(self, uid: str) -> Group | None:
        """Return the group of a claim; None for one that does not wait."""
        spec = self._of_claim.get(uid)
        return None if spec is None else spec.group

    def is_tried(self, uid: str) -> bool:
        """Return whether the reason is known, and with it whether the claim would fit on an empty host."""
        refusal = self._of_claim[uid].group.refusal
        return refusal is not None and refusal.fits_empty_host is not None

    def untried(self) -> list[int]:
        """Return the positions of the claims that are still to be tried, in order."""
        of_forms = (
            group.positions.values()
            for form in self._forms.values()
            if form.is_released
            for group in form.groups.values()
        )
        return sorted(self._untried.union(*of_forms))

    def _next_form(self) -> Form | None:
        while self._released:
            form = self._forms.get(self._released[0][1])
            if form is not None and form.is_released:
                return form
            heapq.heappop(self._released)
        return None

    def _leave_form(self, group: Group) -> None:
        form = group.form
        if form is not None:
            group.form = None
            del form.groups[group.key]
            if not form.groups:
                del self._forms[form.digest]

    def _retry(self, group: Group) -> None:
        if group.last_refusal is not None:
            group.last_refusal = None
            self._untried.update(group.positions.values())
            self._make_due(group)

    def _make_due(self, group: Group) -> None:
        heapq.heappush(self._due, (group.first()[0], group.key))

    def _separate(self, specs: Iterable[_Spec]) -> None:
        """Try specs again, each on its own: what their selectors choose may have changed.

        All specs of a group name the same classes, so none of its other specs stays in it.
        """
        groups_before = {spec.digest: spec.group for spec in specs}
        for digest, group in groups_before.items():
            group.version += 1
            self._leave_form(group)
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


def _classes(spec: dict[str, Any]) -> frozenset[str]:
    names = set()
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if one and one.get("deviceClassName"):
                names.add(str(one["deviceClassName"]))
    return frozenset(names)

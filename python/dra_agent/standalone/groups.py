"""Groups of waiting claims that are tried together, with the result of the last try.

The queue holds its lock while it reads or changes them.
"""

from __future__ import annotations

import heapq
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
    fits_empty_host: bool | None
    """None: not known, because not the spec was tried but its relaxed form."""

    def message_for(self, claim: tuple[str, str]) -> str:
        """Return the message for another claim, by namespace and name."""
        if self.named not in self.message:
            return self.message
        return self.message.replace(f"claim {self.named}", "claim " + "/".join(claim))


@dataclass(slots=True)
class Group:
    """Waiting claims with equal results."""

    key: bytes
    """The digest of the spec of all of them, or that of what several specs have in common."""
    positions: dict[str, int] = field(default_factory=dict)
    """Of each claim, by uid, its place in the order of arrival."""
    order: list[tuple[int, str]] = field(default_factory=list)
    last_refusal: Refusal | None = None
    """The result of the last try; None: the group needs a try."""
    form: Form | None = None
    """The relaxed form for which the group was refused; None for one whose spec was tried, or that has no result."""
    fits_empty_host: bool | None = None
    """None: not known for the devices and classes of now."""
    is_classified: bool = False
    """Specs with the same results are in the group, as far as they are known."""
    version: int = 0
    """Grows with every change that a try has to take in."""

    @property
    def refusal(self) -> Refusal | None:
        """Why the claims have no devices; None where they are to be tried, or their relaxed form is."""
        return None if self.form is not None and self.form.is_released else self.last_refusal

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
class Form:
    """A relaxed spec that did not fit."""

    digest: bytes
    oldest: int
    """No claim of the groups has a lower position."""
    groups: dict[bytes, Group] = field(default_factory=dict)
    """The groups that were refused for it, in this order."""
    is_released: bool = False
    """Devices were released after the refusals, so the form needs a try."""
    version: int = 0
    """Grows with every release."""

    def first(self) -> tuple[str, Group]:
        """Return one of the groups, and its oldest claim."""
        group = next(iter(self.groups.values()))
        return group.first()[1], group


def digest_of(spec: Any) -> bytes:
    """Return a value that is equal for claims with equal specs."""
    return blake2b(msgspec.json.encode(spec, order="sorted"), digest_size=16).digest()

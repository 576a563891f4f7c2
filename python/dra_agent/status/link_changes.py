"""Changes of the links between the GPUs of this host, as the attributes of two inventories show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from dra_agent.inventory.model import Device
from dra_agent.status.events import LINKS_DEGRADED, LINKS_RESTORED, Reason

MAX_NAMES = 8
"""GPUs that an Event names; it has room for about a thousand characters."""
_WITH_LINKS = ("gpu", "partition")
"""Types of devices; one that a claim binds to vfio-pci has another."""


class _Links(NamedTuple):
    peers: frozenset[str]
    width: int
    """0 if unknown."""

    def __str__(self) -> str:
        if not self.peers:
            return "no linked GPU"
        return f"{len(self.peers)} linked, {self.width} links each" if self.width else f"{len(self.peers)} linked"


class LinkChanges:
    """Compares the links of each GPU with those that were last known; nothing is reported for the first."""

    def __init__(self) -> None:
        self._known: dict[str, _Links] = {}

    def changed(self, devices: Sequence[Device]) -> list[tuple[Reason, str]]:
        """Return a reason and a note for GPUs that have lost links since they were last known, and for those with more.

        A GPU that appears or disappears is not compared. Nor is one that a claim binds to vfio-pci, or that cannot be
        read now: it is compared as soon as its links are known again.
        """
        before, now = self._known, _links_of(devices)
        pending = {device.name for device in devices} - now.keys()
        self._known = {name: links for name, links in before.items() if name in pending}
        self._known |= {name: _merged(before.get(name), links, pending) for name, links in now.items()}
        both = before.keys() & now.keys()
        lost, more = [], []
        for name in sorted(both):
            old, new = before[name], now[name]
            text = f"{name} ({old} before, {new} now)"
            if (old.peers & both) - new.peers or 0 < new.width < old.width:
                lost.append(text)
            elif (new.peers & both) - old.peers or 0 < old.width < new.width:
                more.append(text)
        found = []
        if lost:
            found.append((LINKS_DEGRADED, f"GPUs have fewer links to each other: {_listed(lost)}"))
        if more:
            found.append((LINKS_RESTORED, f"GPUs have more links to each other: {_listed(more)}"))
        return found


def _merged(old: _Links | None, new: _Links, pending: Collection[str]) -> _Links:
    """Return what is known after a scan: links to `pending` GPUs stay, and a width that is not known now."""
    if old is None:
        return new
    peers = new.peers | old.peers.intersection(pending)
    return _Links(peers, new.width or (old.width if peers else 0))


def _links_of(devices: Iterable[Device]) -> dict[str, _Links]:
    of_type = [
        device
        for device in devices
        if (kind := device.attributes.get("type")) is not None
        and kind.value in _WITH_LINKS
        and device.observed
        and device.health != "unmonitored"
    ]
    groups: dict[str, list[str]] = {}
    for device in of_type:
        if (group := device.attributes.get("interconnectGroup")) is not None:
            groups.setdefault(str(group.value), []).append(device.name)
    found = {}
    for device in of_type:
        group, width = (device.attributes.get(name) for name in ("interconnectGroup", "interconnectWidth"))
        members = groups[str(group.value)] if group is not None else ()
        found[device.name] = _Links(
            frozenset(members) - {device.name}, int(str(width.value)) if width is not None else 0
        )
    return found


def _listed(texts: list[str]) -> str:
    return "; ".join(texts[:MAX_NAMES]) + ("; ..." if len(texts) > MAX_NAMES else "")

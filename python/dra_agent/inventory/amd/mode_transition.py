"""GPUs whose partition mode is changed, by the agent or an administrator: they temporarily keep their description.

A GPU that claims may partition has the same description in every mode, so the one before the change is valid after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dra_agent.inventory.amd.kfd import KfdNode
from dra_agent.inventory.amd.modes import PARTS
from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import Device
from dra_agent.topology.model import PciFunction

SETTLE_TIMEOUT_S = 3.0
"""Seconds for which a GPU that an administrator partitions may appear incomplete: chosen, not measured."""


@dataclass(frozen=True, slots=True)
class LastDescription:
    """A partitionable GPU when it was last complete."""

    device_id: str
    dies: int
    whole: Device
    """The device that the partition rules were evaluated for."""
    devices: tuple[Device, ...]
    counters: CounterSet


class ModeTransition:
    """The last descriptions of partitionable GPUs, and the time since which they are incomplete."""

    def __init__(self, changes: ModeChanges) -> None:
        self._changes = changes
        self._described: dict[str, LastDescription] = {}
        self._half_since: dict[str, float] = {}
        self._rescan = False

    def begin(self, functions: Iterable[PciFunction]) -> None:
        """Drop GPUs that were removed or replaced; called before each scan."""
        here = {function.pci_address: function.device_id for function in functions}
        self._described = {
            address: one for address, one in self._described.items() if here.get(address) == one.device_id
        }
        self._half_since = {address: since for address, since in self._half_since.items() if address in here}
        self._rescan = False

    def described(self, address: str) -> LastDescription | None:
        """Return the last complete description of a GPU; None if there was none."""
        return self._described.get(address)

    def settled(self, address: str, described: LastDescription) -> None:
        """Record a complete description of a GPU."""
        self._described[address] = described
        self._half_since.pop(address, None)

    def is_kept(self, address: str) -> bool:
        """Return True while an incomplete GPU keeps its description; called once per scan."""
        if self._changes.is_expected(address):
            self._half_since.pop(address, None)
            return True
        now = time.monotonic()
        kept = now - self._half_since.setdefault(address, now) < SETTLE_TIMEOUT_S
        self._rescan = self._rescan or kept
        return kept

    def needs_rescan(self) -> bool:
        """Return once that a GPU kept its description, so another scan is needed soon."""
        needed, self._rescan = self._rescan, False
        return needed

    def max_dies(self, functions: Iterable[PciFunction], complete: Mapping[str, Sequence[KfdNode]]) -> dict[str, int]:
        """Return the dies by device id of GPUs that KFD shows completely; `complete`: their nodes."""
        most: dict[str, int] = {}
        for function in functions:
            seen = die_count(complete.get(function.pci_address, ()))
            known = self._described.get(function.pci_address)
            least = max(most.get(function.device_id, 0), seen)
            most[function.device_id] = max(least, known.dies) if known is not None else least
        return most


def die_count(nodes: Iterable[KfdNode]) -> int:
    """Return the number of accelerator dies of nodes."""
    return sum(node.xcc_count or 0 for node in nodes)


def matches_mode(nodes: Sequence[KfdNode], mode: str | None) -> bool:
    """Return True if these can be all nodes of a GPU in this mode: their number matches, and all are equal."""
    sizes = {node.xcc_count for node in nodes}
    if len(sizes) != 1:
        return False
    if mode == "CPX":
        return sizes <= {1, None}
    return mode not in PARTS or len(nodes) == PARTS[mode]

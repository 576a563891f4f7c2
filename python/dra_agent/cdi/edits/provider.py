"""What a recipe answers for one device, and the shape of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dra_agent.cdi.model import ContainerEdits
from dra_agent.inventory.model import Device

NOTHING = ContainerEdits()


@dataclass(frozen=True, slots=True)
class DeviceEdits:
    """What a container needs to use one device."""

    own: ContainerEdits
    """Of this device alone."""
    common: ContainerEdits = NOTHING
    """Of every device that the same recipe serves: applied once where a claim holds several."""
    foreign_ids: tuple[str, ...] = ()
    """Devices of another party's CDI spec that bring what these edits leave out; injected first."""
    notes: tuple[str, ...] = ()
    """What a container will miss, in plain words."""

    def with_setup(self, edits: ContainerEdits) -> DeviceEdits:
        """Add what a set-up of the device brings; nothing is missed of an interface that it names in the container."""
        named = any(line.partition("=")[0].endswith("_IFNAME") for line in edits.env)
        notes = () if named else self.notes
        return DeviceEdits(self.own.merged(edits), self.common, self.foreign_ids, notes)


class EditProvider(Protocol):
    """Looks at the host and answers what a container needs of a device, now.

    Raises RetryableError where the device cannot be used at the moment (a node is missing, a tool hangs).
    """

    def __call__(self, device: Device) -> DeviceEdits:
        """Answer for one device."""
        ...

"""Vendor set-up that a claim can ask for (a partition, a sharing server, a driver rebind): the seam, and no vendor.

A set-up declares its parameters as a Struct that refuses unknown fields. Everything that it does must be repeatable:
the agent can die between any two steps, and then undoes what was begun from what the ledger says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from dra_agent.cdi.model import ContainerEdits
from dra_agent.inventory.device import Device


@dataclass(frozen=True, slots=True)
class SetupOutcome:
    """What a set-up leaves."""

    record: Any = None
    """JSON-like; kept in the ledger, and given back to undo the set-up."""
    edits: Mapping[str, ContainerEdits] = field(default_factory=dict)
    """By device name: what containers need besides the device's own edits."""


class VendorSetup(Protocol):
    """One kind of set-up."""

    @property
    def kind(self) -> tuple[str, str]:
        """Give apiVersion and kind of the parameters that ask for it."""
        ...

    @property
    def parameters(self) -> type[msgspec.Struct]:
        """Give the shape of the parameters, apiVersion and kind left out."""
        ...

    def set_up(self, uid: str, devices: Sequence[Device], parameters: Any, previous: Any) -> SetupOutcome:
        """Bring the devices into the state that a claim asks for.

        Called again on every repeat, with the record of the last time: it checks that the set-up stands, and mends it.
        """
        ...

    def tear_down(self, uid: str, devices: Sequence[str], record: Any) -> None:
        """Undo a finished set-up; nothing to undo is success."""
        ...

    def roll_back(self, uid: str, devices: Sequence[str], parameters: Any) -> None:
        """Undo a set-up of which it is not known how far it came; nothing to undo is success."""
        ...

"""Vendor set-up of devices at prepare (a partition, a sharing server, a driver rebind): the seam, and no vendor.

A set-up declares its parameters as a Struct that refuses unknown fields. Everything that it does must be repeatable:
the agent can die between any two steps, and then undoes what was begun from what the ledger says. It does its own
locking per physical device: the preparer locks claims and the devices that they name, not what lies behind those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import msgspec

from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Device

API_VERSION = "dra-agent.internal/v1"
"""Of every kind that comes with the agent, whatever name its driver is given: a claim that names another driver says so
in `opaque.driver`, and its parameters stay as they are."""
Kind = tuple[str, str]
"""apiVersion and kind of parameters."""


class UnsuitableError(PermanentError):
    """A kind of set-up that is for other devices altogether.

    Where configuration names no request, such a device is passed over, as long as it is for another one of the claim.
    """


@dataclass(frozen=True, slots=True)
class SetupDevice:
    """A device, or one share of it, that a claim is given and that is to be set up."""

    device: Device
    requests: tuple[str, ...]
    """Requests that it answers, without the subrequest."""
    share_id: str | None = None
    consumed_capacity: Mapping[str, str] = field(default_factory=dict)
    """What the claim may use of a shared device (Quantity texts by capacity)."""
    admin_access: bool = False
    """Always False where something is set up: who only watches a device changes nothing of it."""

    @property
    def key(self) -> str:
        """Name it among the devices of its claim: "gpu-0", or "gpu-0/SHARE_ID" for a share."""
        return key_of(self.device.name, self.share_id)


def key_of(device: str, share_id: str | None) -> str:
    """Name a device of a claim, or one share of it."""
    return device if share_id is None else f"{device}/{share_id}"


@dataclass(frozen=True, slots=True)
class SetupOutcome:
    """What a set-up leaves."""

    record: Any = None
    """JSON-like; kept in the ledger, and given back to undo the set-up. A repeat that gives another one replaces it."""
    edits: Mapping[str, ContainerEdits] = field(default_factory=dict)
    """By the key of a device: what containers need besides the device's own edits."""


@runtime_checkable
class OrphanCleaner(Protocol):
    """A set-up that keeps notes of its own, which can outlive what the ledger knows."""

    def prune(self, is_held: Callable[[str], bool]) -> None:
        """Undo what is noted for claims that hold nothing.

        `is_held` is asked with a claim's uid, under the lock of what is noted: whoever notes something has started its
        claim before.
        """
        ...


@runtime_checkable
class SetupNotes(Protocol):
    """A set-up that knows by its own notes what it has done for a claim."""

    def noted(self, uid: str) -> Sequence[str]:
        """Give the keys of the claim's devices, for `tear_down` without a record; RetryableError where unreadable."""
        ...


class DeviceSetup(Protocol):
    """One kind of set-up."""

    @property
    def kind(self) -> Kind:
        """Give apiVersion and kind of the parameters that ask for it."""
        ...

    @property
    def parameters(self) -> type[msgspec.Struct]:
        """Give the shape of the parameters, apiVersion and kind left out."""
        ...

    def default(self, device: Device) -> msgspec.Struct | None:
        """Give the parameters for a device that no configuration of this kind is for; None: nothing is set up for it.

        Looks at no hardware.
        """
        ...

    def check(self, device: Device, parameters: Any) -> None:
        """Look whether the device can be set up so, before anything is written for its claim.

        PermanentError says which field cannot be, and begins with its name ("interval: ..."); UnsuitableError: this
        kind is for no such device. Looks at no hardware.
        """
        ...

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: Any, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        """Bring the devices into the state that a claim asks for.

        Called again on every repeat, with the record of the last time: it checks that the set-up stands, and mends it.

        What it waits for ends at the deadline. A change of hardware is not begun after it; one that has begun has a
        bound of its own. Raises RetryableError then.
        """
        ...

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Undo a finished set-up of devices with these keys, waiting as `set_up` does; nothing to undo is success."""
        ...

    def roll_back(self, uid: str, keys: Sequence[str], parameters: Any, deadline: Deadline) -> None:
        """Undo a set-up of which it is not known how far it came; nothing to undo is success."""
        ...

"""The interface of vendor set-ups of devices at prepare: a partition, a sharing server, a driver rebind. No vendor.

A set-up declares its parameters as a Struct that rejects unknown fields. All its operations must be idempotent: the
agent can crash between any two steps, and rolls back started set-ups from the ledger. A set-up does its own locking per
physical device: the preparer locks claims and the devices that they name, not the hardware that these share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import msgspec

from dra_agent.cdi.model import ContainerEdits
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device

API_VERSION = "dra-agent.internal/v1"
"""Of all kinds in this repository, independent of the configured driver name: `opaque.driver` in a claim names the
driver, and the parameters need no change."""
Kind = tuple[str, str]
"""apiVersion and kind of parameters."""


class UnsuitableError(PermanentError):
    """The kind of set-up does not apply to this kind of device.

    Configuration without requests skips such a device, if it applies to another device of the claim.
    """


@dataclass(frozen=True, slots=True)
class SetupDevice:
    """A device that is to be set up for a claim, or one share of it. Never one with admin access."""

    allocated: ClaimDevice
    device: Device

    @property
    def key(self) -> str:
        """Its name among the devices of the claim."""
        return self.allocated.key

    def identity(self, name: str) -> str:
        """Return a fact of the device; RetryableError if it lacks it now: its driver was unloaded, or restarted."""
        value = self.device.identity.get(name)
        if value is None:
            raise RetryableError(
                f"its {name} is not known now", where=f"device {self.device.name}", hint="check the device's driver"
            )
        return value


@dataclass(frozen=True, slots=True)
class SetupOutcome:
    """Result of a set-up."""

    record: Any = None
    """JSON-like; stored in the ledger, and passed to `tear_down`. A repeat with another record replaces it."""
    edits: Mapping[str, ContainerEdits] = field(default_factory=dict)
    """By device key: edits of containers in addition to the device's own."""


@runtime_checkable
class OrphanCleaner(Protocol):
    """A set-up with its own state files, which can outlive the ledger entry: of partitions, and of notices."""

    def prune(self, is_held: Callable[[str], bool]) -> None:
        """Undo set-ups whose state files are of claims that hold nothing.

        `is_held` is called with a claim's uid, under the lock of the state file: the claim is started in the ledger
        before the file is written.
        """
        ...


@runtime_checkable
class HookHandler(Protocol):
    """A set-up that serves hooks of starting containers: of network interfaces, and of shares."""

    def hook_tasks(self) -> Mapping[str, Callable[[bytes], bool]]:
        """Return the handlers by task name; each gets the JSON line of the hook, and may block."""
        ...


@runtime_checkable
class DaemonOwner(Protocol):
    """A set-up with daemons that serve prepared claims: of shares. A protocol, because its layer is above."""

    def supervise(self) -> dict[str, str]:
        """Restart daemons that ended; return failures by device. It may block."""
        ...


@runtime_checkable
class SetupNotes(Protocol):
    """A set-up whose state files record its changes for a claim; all set-ups that change a device."""

    def noted(self, uid: str) -> Sequence[str]:
        """Return the claim's device keys, for `tear_down` without a record. Raises RetryableError if unreadable."""
        ...


class DeviceSetup(Protocol):
    """One kind of set-up; one implementation for each."""

    @property
    def kind(self) -> Kind:
        """The apiVersion and kind of its parameters."""
        ...

    @property
    def parameters(self) -> type[msgspec.Struct]:
        """The type of its parameters, without apiVersion and kind."""
        ...

    def default(self, device: Device) -> msgspec.Struct | None:
        """Return the parameters for a device without configuration of this kind; None if it needs no set-up.

        Does not access hardware.
        """
        ...

    def check(self, device: Device, parameters: Any) -> None:
        """Validate parameters for a device, before anything is written for its claim. Does not access hardware.

        Raises:
            UnsuitableError: The kind does not apply to such a device.
            PermanentError: A field is invalid; the message starts with its name ("interval: ...").
        """
        ...

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: Any, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        """Set the devices up as the parameters request.

        On a repeat it is called with the record of the last call as `previous`, and checks and repairs the set-up.

        Raises:
            RetryableError: The deadline passed. A change of hardware does not start after it; one that has started has
                another timeout.
        """
        ...

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Undo a complete set-up of devices with these keys, with the deadline of `set_up`; idempotent."""
        ...

    def roll_back(self, uid: str, keys: Sequence[str], parameters: Any, deadline: Deadline) -> None:
        """Undo a set-up that may be incomplete; idempotent."""
        ...

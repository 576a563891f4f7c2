"""What preparing needs of the ledger, and what it writes there; the ledger itself is in Rust.

A protocol, so that tests can stand in a ledger that crashes where they want it to.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.inventory.model import Device

Lookup = Callable[[str, str], Device | None]
"""Finds a device by pool and name in the inventory of the moment."""


class HeldDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device as a claim holds it in the ledger."""

    pool: str
    device: str
    request: str
    share_id: str | None = None
    admin_access: bool = False
    shared: bool = False


class LedgerEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim in the ledger."""

    uid: str
    namespace: str
    name: str
    devices: tuple[HeldDevice, ...]
    state: str = "started"
    """"started", "completed", or a phase that only a newer agent knows."""
    payload: Any = None


class DeviceHeldError(RetryableError):
    """Another claim holds the device: a second holder is refused whatever the API server says."""


class Ledger(Protocol):
    """Who holds what, durably. Every method is safe to call from several threads.

    Raises RetryableError where the disk refuses; nothing has changed then.
    """

    def turn(self, deadline: Deadline | None = None) -> AbstractContextManager[None]:
        """Keep other agents on the same ledger out; what is read outside may be old, and nothing is written there.

        Short: never held while a device is set up or a file of a claim is written. RetryableError at the deadline.
        """
        ...

    def start(self, entry: LedgerEntry, *, durable: bool) -> None:
        """Take the devices for a claim; DeviceHeldError names the claim that has one already.

        Where not `durable`, the record may wait for the one of `complete` and share its sync.
        """
        ...

    def complete(self, uid: str, payload: Any) -> None:
        """Record that a started claim is prepared; durable when it returns."""
        ...

    def release(self, uid: str) -> bool:
        """Record that a claim holds nothing; durable when it returns. False where it held nothing."""
        ...

    def get(self, uid: str) -> LedgerEntry | None:
        """Find a claim."""
        ...

    def entries(self) -> list[LedgerEntry]:
        """List all claims."""
        ...

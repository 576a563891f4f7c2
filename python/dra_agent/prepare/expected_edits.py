"""Edits of a prepared claim's devices, read while the API server is asked for the claim.

A repeat checks the device nodes and the toolkit's spec in any case. The thread that is about to do so has nothing else
to do while it waits for the claim.
"""

from __future__ import annotations

import threading

from dra_agent.cdi.edits import DeviceEdits, EditProviders
from dra_agent.claim import ClaimDevice
from dra_agent.errors import AgentError
from dra_agent.inventory.model import Device
from dra_agent.prepare import record as records
from dra_agent.prepare.ledger import JournalLedger, Lookup


class Edits:
    """The edits of a claim's devices, as they were read in this call."""

    def __init__(self, uid: str, found: dict[str, tuple[Device, DeviceEdits]]) -> None:
        self._uid = uid
        self._found = found

    def of(self, uid: str, item: ClaimDevice, device: Device) -> DeviceEdits | None:
        """Return the edits of a claim's device; None if they were not read, or another inventory has replaced it."""
        found = self._found.get(item.key) if uid == self._uid else None
        return found[1] if found is not None and found[0] is device else None


NOTHING = Edits("", {})


class ExpectedEdits(threading.local):
    """What each thread has read for the claim that it prepares next."""

    def __init__(self, ledger: JournalLedger, lookup: Lookup, providers: EditProviders) -> None:
        self._ledger = ledger
        self._lookup = lookup
        self._providers = providers
        self._edits = NOTHING

    def read(self, uid: str) -> None:
        """Read the edits for a claim that this thread is about to prepare. Takes no lock, and raises nothing.

        A claim that is not prepared, has set-ups, which change the edits, or lacks a device has none.
        """
        self._edits = NOTHING
        try:
            entry = self._ledger.get(uid)
            record = None if entry is None else records.read(entry)
            if record is None or record.setups:
                return
            devices = {item.key: self._lookup(item.pool, item.device) for item in record.devices}
            found = {
                key: (device, self._providers.edits(device)) for key, device in devices.items() if device is not None
            }
        except AgentError:
            return  # it is an error of the call if it persists
        self._edits = Edits(uid, found)

    def take(self) -> Edits:
        """Return what was read, once."""
        edits, self._edits = self._edits, NOTHING
        return edits

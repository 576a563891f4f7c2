"""Keeps the published description of NICs whose interface a claim changed or moved into a container.

An interface in another network namespace is not in the host's sysfs. Its original state is in the
record that the set-up of NICs writes first (`net/` in the state directory), so it survives a restart of the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device
from dra_agent.json_decode import decode_json
from dra_agent.topology.model import Topology

log = logging.getLogger(__name__)

INTERFACE_ATTRIBUTES = ("ifName", "mac", "mtu", "linkType", "linkSpeed", "state")
"""Attributes of a NIC from its interface."""
CHANGED_BY_CLAIMS = ("mtu",)
"""Attributes that a claim may change on an interface that stays on the host."""
_MAX_BYTES = 1 << 20


class _Interface(msgspec.Struct, frozen=True):
    name: str | None = None


class _Note(msgspec.Struct, frozen=True):
    """The fields of a record that are read here; the set-up owns the others."""

    address: str
    ifname: str
    described: dict[str, Attribute] = {}
    interface: _Interface = _Interface()


class MovedInterfaces:
    """The notes of one state directory, read only."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "net"
        self._complained: set[str] = set()
        self._last_noted = frozenset[str]()

    def devices(self) -> frozenset[str]:
        """Return the names of the devices whose interfaces claims have, also where a note is damaged."""
        try:
            return frozenset(path.stem for path in self._folder.glob("*.json"))
        except OSError:
            return frozenset()

    def changed_by_claims(self) -> frozenset[str]:
        """Return the addresses of NICs that claims have changed, now or at the last call.

        The kernel sends no event of some changes, such as that of an MTU, nor when they are undone.
        """
        noted = frozenset(self._notes())
        changed, self._last_noted = noted | self._last_noted, noted
        return changed

    def apply(self, devices: Iterable[Device], topology: Topology) -> list[Device]:
        """Return the devices as published before their claims changed them."""
        notes = self._notes()
        if not notes:
            return list(devices)
        interfaces = {function.pci_address: function.net for function in topology.devices}
        return [_kept(device, notes.get(device.pci_address), interfaces) for device in devices]

    def _notes(self) -> dict[str, _Note]:
        try:
            paths = sorted(self._folder.glob("*.json"))
        except OSError:  # users without permission see the current interfaces
            return {}
        notes = {}
        for path in paths:
            try:
                note = decode_json(atomic_file.read(path, _MAX_BYTES), type=_Note)
            except (FileNotFoundError, PermissionError):
                continue
            except (OSError, ValueError) as error:  # the set-up that owns the file sets a damaged one aside
                if path.name not in self._complained:
                    self._complained.add(path.name)
                    log.warning(
                        "the original state of an interface is not known",
                        extra={"file": str(path), "reason": str(error)},
                    )
                continue
            if note.described:
                notes[note.address] = note
        return notes


def _kept(device: Device, note: _Note | None, interfaces: Mapping[str, tuple[str, ...]]) -> Device:
    if note is None or device.family != "nic":
        return device
    moved = note.interface.name is not None and note.ifname not in interfaces.get(device.pci_address, ())
    names = INTERFACE_ATTRIBUTES if moved else CHANGED_BY_CLAIMS
    live = {name: value for name, value in device.attributes.items() if name not in names}
    kept = {name: value for name, value in note.described.items() if name in names}
    identity = {**device.identity, "ifname": note.ifname} if moved else device.identity
    return msgspec.structs.replace(device, attributes={**live, **kept}, identity=identity)

"""The place of this host and of its devices in the network, from a file that the operator's tools write on each host.

A host cannot read its rack, nor the switches between it and other hosts. The rules of the configuration are the same
for many hosts, so these values come from a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from dra_agent import user_file
from dra_agent.diagnostic import Diagnostic
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.builder import MAX_ENTRIES
from dra_agent.inventory.fabric_document import ATTRIBUTES, FabricDocument, InvalidDocumentError, decode
from dra_agent.inventory.model import Device

MAX_BYTES = 1 << 18
MAX_NAMES = 8
"""Devices of the file that a problem names."""
_FAMILIES = ("gpu", "nic", "accelerator")
"""Families of devices that communicate with other hosts."""
_HINT = "docs/how-to/devices/fabric.md shows the format"


class FabricFile:
    """Reads the file when it changes, and adds its values to devices."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._version: tuple[int, ...] | None = None
        self._document = FabricDocument()
        self._problem: Diagnostic | None = None
        self._known: dict[str, tuple[Device, Device, tuple[Diagnostic, ...]]] = {}

    def apply(self, devices: Iterable[Device], problems: list[Diagnostic]) -> list[Device]:
        """Return the devices with the values of the file; never raises.

        While the file is invalid, the last valid values stay. Without the file there are none.
        """
        devices = list(devices)
        if self._path is None:
            return devices
        self._refresh(self._path)
        if self._problem is not None:
            problems.append(self._problem)
        before, self._known = self._known, {}
        unused = set(self._document.devices)
        found = []
        for device in devices:
            names = _names(device)
            unused -= names
            known = before.get(device.name)
            if known is None or known[0] is not device:
                known = (device, *self._placed(device, names))
            self._known[device.name] = known
            found.append(known[1])
            problems += known[2]
        if unused:
            problems.append(self._not_here(unused))
        return found

    def _not_here(self, unused: set[str]) -> Diagnostic:
        lines = self._document.lines
        names = sorted(unused, key=lambda name: (lines.get(name, 0), name))
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        message = f"this host has no device {', '.join(map(repr, names[:MAX_NAMES]))}{more}"
        hint = "name a PCI address, a UUID, a network interface or an RDMA device"
        return self._problem_at(lines.get(names[0]), message, hint)

    def _refresh(self, path: Path) -> None:
        version, document, problem = None, self._document, None
        try:
            status = path.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version == self._version:
                return
            document = decode(user_file.read(path, MAX_BYTES))
        except FileNotFoundError:
            version, document = None, FabricDocument()
            problem = self._problem_at(None, "it does not exist", _HINT)
        except OSError as error:
            version = None
            problem = self._problem_at(None, f"it cannot be read: {error.strerror}", _HINT)
        except InvalidDocumentError as error:
            problem = self._problem_at(error.line, f"it is not used: {error}", _HINT)
        except ValueError:  # whose text depends on the version of Python
            version = None
            problem = self._problem_at(None, "it cannot be read: a path has no NUL character", _HINT)
        self._version, self._problem = version, problem
        if document != self._document:
            self._document = document
            self._known.clear()

    def _problem_at(self, line: int | None, message: str, hint: str) -> Diagnostic:
        where = str(self._path) if line is None else f"{self._path}:{line}"
        return Diagnostic(where, message, hint, severity="warning")

    def _placed(self, device: Device, names: set[str]) -> tuple[Device, tuple[Diagnostic, ...]]:
        own = [self._document.devices[name] for name in sorted(names & self._document.devices.keys())]
        if device.family not in _FAMILIES and not own:
            return device, ()
        values = {
            attribute: value
            for place in (self._document.host, *own)
            for attribute in ATTRIBUTES
            if (value := getattr(place, attribute)) is not None
        }
        room = MAX_ENTRIES - len(device.attributes) - len(device.capacity)
        kept = dict(list(values.items())[: max(0, room)])
        problems = []
        if len(kept) < len(values):
            message = f"values of {self._path} are left out: a device has at most {MAX_ENTRIES} attributes"
            problems.append(Diagnostic(device.name, message, "set fewer attributes on it", severity="warning"))
        if not kept:
            return device, tuple(problems)
        attributes = {**device.attributes, **{name: Attribute.of(value) for name, value in kept.items()}}
        return msgspec.structs.replace(device, attributes=attributes), tuple(problems)


def _names(device: Device) -> set[str]:
    """Return the names by which the file can refer to a device; those of its GPU for partitions."""
    identity = device.identity
    return {
        device.pci_address,
        *(identity[key] for key in ("uuid", "parent_uuid", "ifname", "rdma") if key in identity),
    }

"""Devices that other DRA drivers publish on the node, matched by identifiers of the hardware.

That is its PCI address, which drivers write into attributes of various names, and its UUID.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_agent.inventory.model import Device

# resource.kubernetes.io/pciBusID is the standard; the others are of NVIDIA's, AMD's, Intel's and network drivers.
_ADDRESS_NAMES = frozenset({"pcibusid", "pciebusid", "pciaddress", "pciaddr", "bdf"})
_UUID_NAMES = frozenset({"uuid", "parentuuid"})
_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
# gpu.intel.com and dra.net name devices after their address: 0000-03-00-0-0x56c0, pci-0000-8a-00-0.
_ADDRESS_IN_NAME = re.compile(r"(?:pci-)?([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])(?:-.*)?")


@dataclass(frozen=True, slots=True)
class ForeignDevice:
    """A device in a slice of another driver."""

    driver: str
    name: str
    identities: frozenset[str]
    """PCI addresses ("0000:3b:00.0") and UUIDs, in lower case."""

    def __str__(self) -> str:
        return f"{self.driver} ({self.name})"


class ForeignSlices:
    """The devices of other drivers on one node, by slice; a watch keeps them current."""

    def __init__(self, driver: str, node: str, changed: Callable[[], None]) -> None:
        """Slices of `driver` and of other nodes are ignored. `changed` is called after each change of a device."""
        self._driver = driver
        self._node = node
        self._changed = changed
        self._devices: dict[str, tuple[ForeignDevice, ...]] = {}
        self.is_listed = False
        """Whether the slices are known."""

    def devices(self) -> list[ForeignDevice]:
        """Return the devices of all slices."""
        return [device for devices in self._devices.values() for device in devices]

    def listed(self, slices: list[dict[str, Any]]) -> None:
        """Replace the state by these ResourceSlices, as JSON values."""
        found = {_name_of(item): self._read(item) for item in slices}
        if found != self._devices or not self.is_listed:
            self._devices, self.is_listed = found, True
            self._changed()

    def changed(self, event: str, item: dict[str, Any]) -> None:
        """Apply a watch event of this type (ADDED, MODIFIED, DELETED)."""
        name = _name_of(item)
        devices = () if event == "DELETED" else self._read(item)
        if devices != self._devices.get(name, ()):
            self._devices[name] = devices
            self._changed()
        if not devices:
            self._devices.pop(name, None)

    def _read(self, item: dict[str, Any]) -> tuple[ForeignDevice, ...]:
        return tuple(foreign_devices([item], driver=self._driver, node=self._node))


def _name_of(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def foreign_devices(slices: Iterable[Mapping[str, Any]], *, driver: str, node: str) -> Iterator[ForeignDevice]:
    """Return the devices of other drivers that can be identified; `slices` are ResourceSlices as JSON values.

    Only slices of this node count. An invalid slice is skipped: errors of other drivers are not reported here.
    """
    for item in slices:
        spec = item.get("spec")
        if not isinstance(spec, Mapping) or spec.get("nodeName") != node or spec.get("driver") in (None, driver):
            continue
        for device in spec.get("devices") or ():
            if isinstance(device, Mapping) and (identities := frozenset(_identities(device))):
                yield ForeignDevice(str(spec["driver"]), str(device.get("name", "")), identities)


def identities_of(device: Device) -> frozenset[str]:
    """Return the names of a device in other drivers; a partition also has the names of its GPU."""
    parent = device.attributes.get("parentUUID")
    names = (device.pci_address, device.identity.get("uuid"), parent.string if parent is not None else None)
    return frozenset(name.lower() for name in names if name)


def _identities(device: Mapping[str, Any]) -> Iterator[str]:
    if named := _ADDRESS_IN_NAME.fullmatch(str(device.get("name", ""))):
        yield _address(*named.groups())
    # v1beta1 has one more level; an API server responds in v1, a recorded file may not.
    attributes = device.get("attributes")
    for key, value in attributes.items() if isinstance(attributes, Mapping) else ():
        text = value.get("string") if isinstance(value, Mapping) else None
        if not isinstance(text, str):
            continue
        name = str(key).rpartition("/")[2].lower()
        address = _ADDRESS.fullmatch(text.lower())
        if name in _ADDRESS_NAMES and address is not None:
            yield _address(*address.groups())
        elif name in _UUID_NAMES:
            yield text.lower()


def _address(domain: str, bus: str, device: str, function: str) -> str:
    # NVIDIA's tools write the domain with eight digits.
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"

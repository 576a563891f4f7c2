"""Devices that other DRA drivers publish for the node, and the identifiers of the hardware in their slices.

Those are the PCI address, which drivers write into attributes of various names, the UUID, and names of interfaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from dra_agent.conflicts.managers import STANDARD_ADDRESS, KnownDriver, known_driver
from dra_agent.conflicts.node_selector import selects
from dra_agent.inventory.model import Device, Exclusion
from dra_agent.topology.model import PciFunction

MAX_IDENTITY_CHARS = 128
"""Longer values of attributes are not identifiers of hardware."""

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_ADDRESS_IN_NAME = r"(?P<domain>[0-9a-f]{4,8})-(?P<bus>[0-9a-f]{2})-(?P<device>[0-9a-f]{2})-(?P<function>[0-7])"

_UNKNOWN_DRIVER = KnownDriver(
    "",
    addresses=("pciBusID", "pcieBusID", "pciAddress", "pciAddr", "bdf"),
    uuids=("uuid",),
    names=("([a-z]+-)?{address}(-.*)?",),
)
"""How a driver that is not in the table may identify a device: as most drivers of the table do."""

NodeForm = Literal["node", "shared"]
"""How a slice names its nodes: by `spec.nodeName`, or in another way that may select several."""


@dataclass(frozen=True, slots=True)
class ForeignDevice:
    """A device in a slice of another driver. Those of one slice that do not differ here are one."""

    driver: str
    identities: frozenset[str] = frozenset()
    """PCI addresses ("0000:3b:00.0") and UUIDs in lower case, "net/eth1", "rdma/mlx5_0"; empty: an index only."""
    selector: Mapping[str, Any] | None = field(default=None, hash=False)
    """The NodeSelector of the nodes that have it; None: this node has it."""
    is_detached: bool = False
    """It is in a fabric, and attached to one of those nodes for a claim."""

    def is_on(self, node: Mapping[str, Any]) -> bool:
        """Return whether a Node has the device."""
        return self.selector is None or selects(self.selector, node)


class ForeignSlices:
    """The devices of other drivers on one node, by slice; two watches keep them current."""

    def __init__(self, driver: str, node: str, changed: Callable[[], None]) -> None:
        """Slices of `driver` and of other nodes are ignored. `changed` is called after each change of a device."""
        self._driver = driver
        self._node = node
        self._changed = changed
        self._slices: dict[NodeForm, dict[str, tuple[ForeignDevice, ...]]] = {"node": {}, "shared": {}}
        self._awaited: set[NodeForm] = {"node", "shared"}

    @property
    def is_listed(self) -> bool:
        """Whether the slices are known, or the attempt to list those of several nodes has failed."""
        return not self._awaited

    def devices(self, node: Mapping[str, Any]) -> list[ForeignDevice]:
        """Return the devices of all slices that this Node has."""
        return [
            device
            for slices in self._slices.values()
            for devices in slices.values()
            for device in devices
            if device.is_on(node)
        ]

    def listed(self, slices: list[dict[str, Any]], form: NodeForm = "node") -> None:
        """Replace the slices of one form by these ResourceSlices, as JSON values."""
        found = {_name_of(item): devices for item in slices if (devices := self._read(item))}
        if found != self._slices[form] or form in self._awaited:
            self._slices[form] = found
            self._awaited.discard(form)
            self._changed()

    def unavailable(self, form: NodeForm) -> None:
        """Stop waiting for the first list of one form, because it has failed."""
        if form in self._awaited:
            self._awaited.discard(form)
            self._changed()

    def changed(self, event: str, item: dict[str, Any], form: NodeForm = "node") -> None:
        """Apply a watch event of this type (ADDED, MODIFIED, DELETED)."""
        name, slices = _name_of(item), self._slices[form]
        devices = () if event == "DELETED" else self._read(item)
        if devices == slices.get(name, ()):
            return
        if devices:
            slices[name] = devices
        else:
            del slices[name]
        self._changed()

    def _read(self, item: dict[str, Any]) -> tuple[ForeignDevice, ...]:
        return tuple(foreign_devices([item], driver=self._driver, node=self._node))


def _name_of(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def foreign_devices(slices: Iterable[Mapping[str, Any]], *, driver: str, node: str) -> Iterator[ForeignDevice]:
    """Return the different devices of other drivers that this node has or may have, by its labels.

    `slices` are ResourceSlices as JSON values, of v1 or recorded in v1beta1. An invalid slice is skipped: errors of
    other drivers are not reported here.
    """
    for item in slices:
        spec = item.get("spec")
        if not isinstance(spec, Mapping):
            continue
        name, devices = spec.get("driver"), spec.get("devices")
        if not isinstance(name, str) or name in ("", driver) or not isinstance(devices, list):
            continue
        yield from dict.fromkeys(_devices(name, spec, devices, node))


def _devices(driver: str, spec: Mapping[str, Any], devices: list[Any], node: str) -> Iterator[ForeignDevice]:
    row = known_driver(driver)
    per_device = spec.get("perDeviceNodeSelection") is True
    for device in devices:
        if not isinstance(device, Mapping) or not isinstance(device.get("name"), str):
            continue
        # v1beta1 has one more level.
        basic = device.get("basic")
        details = basic if isinstance(basic, Mapping) else device
        is_here, selector = _nodes(details if per_device else spec, node)
        if not is_here:
            continue
        attributes = _attributes(driver, details)
        if row is not None and row.elsewhere and attributes.get(row.elsewhere) is True:
            continue
        identities = frozenset(_identities(device["name"], attributes, row or _UNKNOWN_DRIVER))
        yield ForeignDevice(driver, identities, selector, details.get("bindsToNode") is True)


def _nodes(owner: Mapping[str, Any], node: str) -> tuple[bool, Mapping[str, Any] | None]:
    """Return whether this node may have the devices of a slice or a device, and the selector that decides."""
    name, selector = owner.get("nodeName"), owner.get("nodeSelector")
    if isinstance(name, str) and name:
        return name == node, None
    if isinstance(selector, Mapping):
        return True, selector
    return owner.get("allNodes") is True, None


def _attributes(driver: str, details: Mapping[str, Any]) -> dict[str, str | bool]:
    """Return the strings and bools among the attributes, those of the driver's own domain without it."""
    attributes = details.get("attributes")
    found: dict[str, str | bool] = {}
    for key, value in attributes.items() if isinstance(attributes, Mapping) else ():
        if not isinstance(value, Mapping):
            continue
        plain = value.get("string", value.get("bool"))
        if isinstance(plain, bool) or (isinstance(plain, str) and len(plain) <= MAX_IDENTITY_CHARS):
            found[str(key).removeprefix(f"{driver}/")] = plain
    return found


def _identities(name: str, attributes: Mapping[str, str | bool], row: KnownDriver) -> Iterator[str]:
    if len(name) <= MAX_IDENTITY_CHARS:
        yield from _identities_in_name(name, row)
    texts = {key: text for key, text in attributes.items() if isinstance(text, str) and text}
    for key in (STANDARD_ADDRESS, *row.addresses):
        if address := _ADDRESS.fullmatch(texts.get(key, "").lower()):
            yield _address(*address.groups())
    if row.address_parts is not None:
        domain, bus, device, function = (texts.get(part, "") for part in row.address_parts)
        if address := _ADDRESS.fullmatch(f"{domain}:{bus}:{device}.{function}".lower()):
            yield _address(*address.groups())
    yield from (texts[key].lower() for key in row.uuids if key in texts)
    yield from (f"net/{texts[key]}" for key in row.interfaces if key in texts)
    yield from (f"rdma/{texts[key]}" for key in row.rdma_devices if key in texts)


def _identities_in_name(name: str, row: KnownDriver) -> Iterator[str]:
    for form in row.names:
        if form == "{interface}":
            yield f"net/{name}"
        elif found := _name_pattern(form).fullmatch(name.lower()):
            yield _address(*(found[part] for part in ("domain", "bus", "device", "function")))


@cache
def _name_pattern(form: str) -> re.Pattern[str]:
    return re.compile(form.replace("{address}", _ADDRESS_IN_NAME))


def _address(domain: str, bus: str, device: str, function: str) -> str:
    # NVIDIA's tools write the domain with eight digits.
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def identities_of(device: Device) -> frozenset[str]:
    """Return the names of a device in other drivers; a partition also has the names of its GPU."""
    found = {name.lower() for name in (device.pci_address, *device.uuids)}
    if device.family == "nic":
        kinds = (("net", "ifname"), ("rdma", "rdma"))
        found |= {f"{kind}/{device.identity[key]}" for kind, key in kinds if key in device.identity}
    return frozenset(found)


def identities_of_host(functions: Iterable[PciFunction], excluded: Iterable[Exclusion]) -> frozenset[str]:
    """Return the names of the functions of this host in other drivers, also of those that are not published."""
    uuids = frozenset(uuid.lower() for one in excluded for uuid in one.uuids)
    return uuids.union(
        identity
        for function in functions
        for identity in (
            function.pci_address,
            *(f"net/{name}" for name in function.net),
            *(f"rdma/{name}" for name in function.infiniband),
        )
    )

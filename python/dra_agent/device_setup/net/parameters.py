"""Parameters of kind NicConfig, and the saved original state of an interface."""

from __future__ import annotations

import ipaddress
from typing import Annotated

import msgspec

from dra_agent.device_setup.link import Link
from dra_agent.inventory.api import Attribute
from dra_agent.prepare.config import RULES

# As the kernel accepts them (dev_valid_name, at most 15 bytes), except for names that pods and sysctl use.
_NAME = r"^(?!(lo|eth0|all|default)$)[A-Za-z0-9][A-Za-z0-9._-]{0,14}$(?!\n)"
# Characters only; the check that they form an address is below, in Python for the decoder and in CEL for the admission
# policy. A test compares the two.
_ADDRESS = r"^[0-9A-Fa-f:.]{2,45}$(?!\n)"
_PREFIX = r"^[0-9A-Fa-f:.]{2,45}/(0|[1-9][0-9]{0,2})$(?!\n)"
_MAX_ENTRIES = 64

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _rules(*rules: tuple[str, str, str]) -> msgspec.Meta:
    """Return rules for the JSON schema: an expression of CEL about `self`, the problem without it, and its field."""
    return msgspec.Meta(
        extra_json_schema={
            RULES: [{"rule": rule, "message": message, "fieldPath": field} for rule, message, field in rules]
        }
    )


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A route through the interface."""

    destination: Annotated[
        str,
        msgspec.Meta(pattern=_PREFIX),
        _rules(("isCIDR(self) && cidr(self) == cidr(self).masked()", "must be a network, without host bits", "")),
    ]
    """A network, such as "10.1.0.0/16"; "0.0.0.0/0" is the default route."""
    gateway: (
        Annotated[str, msgspec.Meta(pattern=_ADDRESS), _rules(("isIP(self)", "must be an IP address", ""))] | None
    ) = None
    """The address of the router; without it, the network is on-link."""

    def __post_init__(self) -> None:
        try:
            network = ipaddress.ip_network(self.destination)
            _require_unmapped(network.network_address)
        except ValueError as error:
            raise ValueError(f"destination: {error}") from error
        if self.gateway is None:
            return
        try:
            gateway = ipaddress.ip_address(self.gateway)
            _require_unmapped(gateway)
        except ValueError as error:
            raise ValueError(f"gateway: {error}") from error
        if gateway.version != network.version:
            raise ValueError(f"gateway: {gateway} is not of the family of {network}")


_GATEWAY = _rules(
    (
        "self.?gateway.orValue(null) == null || ip(self.gateway).family() == cidr(self.destination).ip().family()",
        "must be of the family of the destination",
        ".gateway",
    )
)
_UNNAMED = "is only for an interface that has a name in the container"
_NAMED_ONLY = _rules(
    ("self.?name.orValue(null) != null || self.?addresses.orValue(null) == null", _UNNAMED, ".addresses"),
    ("self.?name.orValue(null) != null || self.?routes.orValue([]).size() == 0", _UNNAMED, ".routes"),
)


class InterfaceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of the interface; omitted fields stay unchanged."""

    name: Annotated[str, msgspec.Meta(pattern=_NAME)] | None = None
    """Name in the container, into which it is moved; without it, the interface stays on the host."""
    mtu: Annotated[int, msgspec.Meta(ge=68, le=65535)] | None = None
    """MTU in bytes; the adapter may support less."""
    addresses: (
        Annotated[
            tuple[
                Annotated[
                    str,
                    msgspec.Meta(pattern=_PREFIX),
                    _rules(("isCIDR(self)", "must be an address with the length of its network's prefix", "")),
                ],
                ...,
            ],
            msgspec.Meta(max_length=_MAX_ENTRIES),
        ]
        | None
    ) = None
    """Addresses in the container, such as "10.0.0.5/24". Omitted: those on the host; empty: none."""
    routes: Annotated[tuple[Annotated[Route, _GATEWAY], ...], msgspec.Meta(max_length=_MAX_ENTRIES)] = ()
    """Routes in the container, through this interface."""

    def __post_init__(self) -> None:
        for index, address in enumerate(self.addresses or ()):
            try:
                _require_unmapped(ipaddress.ip_interface(address).ip)
            except ValueError as error:
                raise ValueError(f"addresses[{index}]: {error}") from error
        for field, given in (("addresses", self.addresses is not None), ("routes", bool(self.routes))):
            if given and self.name is None:
                raise ValueError(f"{field}: only for an interface that has a name in the container")


def _require_unmapped(address: _Address) -> None:
    """Refuse an IPv4 address in the notation of IPv6, as Kubernetes does."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f"{address} is an IPv4 address in the notation of IPv6")


class NicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a network adapter while the claim has it."""

    interface: Annotated[InterfaceConfig, _NAMED_ONLY]


MAX_STATE_BYTES = 1 << 20
"""Bytes."""


class OriginalInterface(msgspec.Struct, frozen=True, omit_defaults=True):
    """The original state of one interface, and its location; it is unknown if the file is corrupt."""

    uid: str
    """UID of the claim."""
    address: str
    """PCI address, which identifies it later."""
    ifname: str
    mtu: int
    up: bool
    hardware_address: str = ""
    """Its hardware address, which identifies it in the network namespace of a container."""
    port: str = ""
    """The port of its device; "" if it is unknown, or an earlier agent recorded less."""
    addresses: tuple[str, ...] = ()
    """In CIDR notation, the addresses that are permanent."""
    link: Link | None = None
    """Other properties that a container can change; None if it stays on the host, or an earlier agent recorded less."""
    described: dict[str, Attribute] = {}
    """The published attributes that the device has from it: inventory/moved.py shows them while it is in a container.
    """
    interface: InterfaceConfig = InterfaceConfig()
    """The configuration of the claim; without a name the interface stays on the host."""
    network: str = ""
    """The last network namespace that it was moved to, "net:[4026532281]"."""
    complete: bool = False
    """Whether it was fully configured there; from then on the container may change it."""
    may_have_address: bool = True
    """Whether it may be moved with an address of the host; earlier agents did not ask."""
    moving: str = ""
    """The network namespace that it is being moved to, recorded before the move: the mover may crash."""
    boot_id: str = ""
    """Of the boot that this state belongs to; see `boot`."""

    @property
    def boot(self) -> str:
        """The ID of its boot; "" if an agent recorded none."""
        return self.boot_id or (self.link.boot_id if self.link is not None else "")

    @property
    def has_moved(self) -> bool:
        """Whether a container may have had it."""
        return bool(self.network or self.moving)

"""Parameters of kind NicConfig, and the saved original state of an interface."""

from __future__ import annotations

import ipaddress
from typing import Annotated

import msgspec

from dra_agent.device_setup.rtnetlink import Link
from dra_agent.inventory.api import Attribute

# As the kernel takes them (dev_valid_name, at most 15 bytes), less what pods have already and what sysctl has.
_NAME = r"^(?!(lo|eth0|all|default)$)[A-Za-z0-9][A-Za-z0-9._-]{0,14}$(?!\n)"
# Their characters; which of them make an address is said below.
_ADDRESS = r"^[0-9A-Fa-f:.]{2,45}$(?!\n)"
_PREFIX = r"^[0-9A-Fa-f:.]{2,45}/[0-9]{1,3}$(?!\n)"
_MOST = 64


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way through the interface."""

    destination: Annotated[str, msgspec.Meta(pattern=_PREFIX)]
    """A network, as "10.1.0.0/16"; "0.0.0.0/0" is for everything that has no other route."""
    gateway: Annotated[str, msgspec.Meta(pattern=_ADDRESS)] | None = None
    """The address of the router; left out, the network is on the link itself."""

    def __post_init__(self) -> None:
        try:
            network = ipaddress.ip_network(self.destination)
        except ValueError as error:
            raise ValueError(f"destination: {error}") from error
        if self.gateway is None:
            return
        try:
            gateway = ipaddress.ip_address(self.gateway)
        except ValueError as error:
            raise ValueError(f"gateway: {error}") from error
        if gateway.version != network.version:
            raise ValueError(f"gateway: {gateway} is not of the family of {network}")


class InterfaceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the interface is to be; what is left out stays as it is."""

    name: Annotated[str, msgspec.Meta(pattern=_NAME)] | None = None
    """In the container, into which it is moved; left out, it stays on the host."""
    mtu: Annotated[int, msgspec.Meta(ge=68, le=65535)] | None = None
    """Bytes of its largest packet; the adapter may take less."""
    addresses: (
        Annotated[tuple[Annotated[str, msgspec.Meta(pattern=_PREFIX)], ...], msgspec.Meta(max_length=_MOST)] | None
    ) = None
    """In the container, as "10.0.0.5/24"; left out, it keeps those that it has on the host, and empty, it has none."""
    routes: Annotated[tuple[Route, ...], msgspec.Meta(max_length=_MOST)] = ()
    """In the container's network, through this interface."""

    def __post_init__(self) -> None:
        for index, address in enumerate(self.addresses or ()):
            try:
                ipaddress.ip_interface(address)
            except ValueError as error:
                raise ValueError(f"addresses[{index}]: {error}") from error
        for field, given in (("addresses", self.addresses is not None), ("routes", bool(self.routes))):
            if given and self.name is None:
                raise ValueError(f"{field}: only for an interface that has a name in the container")


class NicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a network adapter, for as long as the claim has it."""

    interface: InterfaceConfig


MOST = 1 << 16
"""Bytes."""


class OriginalInterface(msgspec.Struct, frozen=True, omit_defaults=True):
    """One interface, as its claim found it, and where it is; where that is damaged nobody knows it any more."""

    uid: str
    """The claim."""
    address: str
    """PCI address, by which it is found again."""
    ifname: str
    mtu: int
    up: bool
    hardware_address: str = ""
    """By which it is known in a container's network."""
    addresses: tuple[str, ...] = ()
    """In CIDR notation, those that somebody has given it for good."""
    link: Link | None = None
    """What else a container can change of it; None where it stays on the host, or an earlier agent kept less."""
    described: dict[str, Attribute] = {}
    """The attributes that the device has of it, as published: inventory/moved.py shows them while it is away."""
    interface: InterfaceConfig = InterfaceConfig()
    """What the claim asks for; without a name it stays on the host."""
    network: str = ""
    """The network namespace that it was moved to last, "net:[4026532281]"."""
    complete: bool = False
    """Whether it had there all that the claim asks for; from then on it is the container's business."""
    moving: str = ""
    """The network namespace that it is being moved to, noted before: whoever does it may not live to say so."""

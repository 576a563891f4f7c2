"""How interfaces were before they were changed, on disk before they are: what a crash leaves is put back."""

from __future__ import annotations

import msgspec

from dra_agent.device_setup.net.parameters import InterfaceConfig
from dra_agent.device_setup.rtnetlink import Link
from dra_agent.inventory.api import Attribute

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

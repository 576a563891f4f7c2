"""The `[inventory]` section of the configuration: which devices are published, and what operators say of them.

It holds and checks the section's shape; rules.py compiles and applies the expressions.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DEFAULT_DRIVER = "dra-agent.internal"
"""The DRA driver's name where none is configured; attributes without a domain belong to it."""


class VersionValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version as the value of an operator's attribute: { version = "28.39.1002" }."""

    version: str


class AttributeRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attributes of the operator's own, for the devices that an expression chooses."""

    when: str
    """CEL over `device`, like the selectors of a claim."""
    set: dict[str, bool | int | str | VersionValue]


class InventorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[inventory]`."""

    include: tuple[str, ...] = ()
    """CEL; a device is published if any of them is true. None given: all devices."""
    exclude: tuple[str, ...] = ()
    """CEL; a device is not published if any of them is true."""
    attributes: tuple[AttributeRule, ...] = ()
    host_uplink: Literal["exclude", "include"] = "exclude"
    """Whether the NIC that carries the host's default route can be claimed."""
    nvml_timeout: float = 5.0
    """Seconds that one call of the NVIDIA library may take; its start may take four times as long."""

"""What the checks of devices ask of a vendor: `dra_agent.doctor.vendors.NAME.DRIVER`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_agent.inventory.vendors import vendor_module


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A file that exists while the driver is loaded completely."""

    driver: str
    """The name of the driver in /sys."""
    path: str
    """Below /proc."""
    hint: str


@dataclass(frozen=True, slots=True)
class VendorDriver:
    """The driver of a vendor's GPUs."""

    name: str = "its vendor's driver"
    """For hints: "install or load NAME"."""
    version: VersionFile | None = None
    node_hints: Mapping[str, str] = field(default_factory=dict)
    """How to get a missing device node, by the role of the node; "" is for every role."""

    link_command: tuple[str, ...] = ()
    """The program, and its arguments, that links nodes in /dev/char where the driver has udev make no links."""

    def node_hint(self, role: str) -> str | None:
        """Return how to get a missing node; None: the hint of every vendor applies."""
        return self.node_hints.get(role, self.node_hints.get(""))


UNKNOWN = VendorDriver()


def driver_of(vendor: str) -> VendorDriver:
    """Return the driver of a vendor by its short name; `UNKNOWN` without a module."""
    module = vendor_module("dra_agent.doctor.vendors", vendor)
    driver: VendorDriver = UNKNOWN if module is None else module.DRIVER
    return driver

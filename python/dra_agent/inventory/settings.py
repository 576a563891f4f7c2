"""The `[inventory]` section of the configuration: which devices are published, and operator rules.

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


class PartitionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whole devices that are offered in partitions, too; of several rules of a mode the first that matches counts."""

    when: str
    """CEL over the whole device, like the selectors of a claim."""
    mode: Literal["mig", "amd", "sriov"]
    """NVIDIA's MIG instances, AMD's compute partition modes, or the virtual functions that there are."""
    foreign: Literal["keep", "destroy"] = "keep"
    """mig: handling of foreign instances."""


class PassthroughRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that claims are given for a virtual machine or a driver in user space, by vfio-pci."""

    when: str
    """CEL over the device as it would be published without the rule."""


Enforcement = Literal["mps", "nvml-cgroup", "dmem", "none"]
"""What limits the memory of a share: the MPS server per process, the driver per cgroup, the kernel per cgroup, or
nothing."""


class ShareRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that are offered in shares; of several rules that match a device the first one counts."""

    when: str
    """CEL over `device`, like the selectors of a claim."""
    enforcement: Enforcement
    minimum: str = "1Gi"
    """Least memory of a share."""
    step: str = "1Gi"
    """Requests beyond the minimum are rounded up to whole steps."""
    default: str | None = None
    """Memory of a share without a requested amount; None: all of the device's."""
    multiprocessors: bool = False
    """Whether claims may request multiprocessors too; needs "mps"."""


class InventorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[inventory]`."""

    include: tuple[str, ...] = ()
    """CEL; a device is published if any of them is true. None given: all devices."""
    exclude: tuple[str, ...] = ()
    """CEL; a device is not published if any of them is true."""
    attributes: tuple[AttributeRule, ...] = ()
    partition: tuple[PartitionRule, ...] = ()
    """Devices that are published in partitions too."""
    passthrough: tuple[PassthroughRule, ...] = ()
    """Devices that are bound to vfio-pci when a claim is prepared."""

    share: tuple[ShareRule, ...] = ()
    """Devices that several claims can hold a share of."""
    host_uplink: Literal["exclude", "include"] = "exclude"
    """Whether the NIC that carries the host's default route can be claimed."""
    nvml_timeout: float = 5.0
    """Seconds that one call of the NVIDIA library may take.

    Calls while MIG instances change may take four times as long; its start, too, or twice as long for each GPU."""

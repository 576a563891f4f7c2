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
    """A semantic version."""


class AttributeRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Additional attributes for the devices that match an expression."""

    when: str
    """CEL over `device`, like the selectors of a claim."""
    set: dict[str, bool | int | str | VersionValue | tuple[bool | int | str, ...]]
    """Names and values; a name without a domain belongs to the driver's. Lists need DRAListTypeAttributes."""


class PartitionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whole devices that are also published in partitions. Of the rules of one mode, the first that matches applies."""

    when: str
    """CEL over the whole device, like the selectors of a claim."""
    mode: Literal["mig", "amd", "sriov"]
    """NVIDIA's MIG instances, AMD's compute partition modes, or the existing virtual functions."""
    foreign: Literal["keep", "destroy"] = "keep"
    """mig: keep or destroy instances that the agent did not create."""


class PassthroughRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that are bound to vfio-pci for a virtual machine or a driver in user space."""

    when: str
    """CEL over the device as it would be published without the rule."""


Enforcement = Literal["mps", "nvml-cgroup", "dmem", "none"]
"""The memory limit of a share: by the MPS server per process, by the driver or the kernel per cgroup, or none."""


class ShareRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that are published in shares. Of several rules that match a device, the first one applies."""

    when: str
    """CEL over `device`, like the selectors of a claim."""
    enforcement: Enforcement
    """The limit of a container to its share: the MPS server, the driver or the kernel per cgroup, or nothing."""
    minimum: str = "1Gi"
    """Smallest amount of memory of a share."""
    step: str = "1Gi"
    """Requests beyond the minimum are rounded up to whole steps."""
    default: str | None = None
    """Memory of a share without a requested amount; none: all of the device's."""
    multiprocessors: bool = False
    """Claims may request multiprocessors too; needs "mps"."""


class PrepareAheadRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices with a slow set-up: claims are prepared before their pods are bound to the node (KEP-5007)."""

    when: str
    """CEL over `device`, like the selectors of a claim."""


class OverheadRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory or CPU of the node that pods need for a device (KEP-5517). Of the rules that match, the first applies."""

    when: str
    """CEL over `device`, like the selectors of a claim."""
    per_pod: dict[str, str] = {}
    """Amounts for each pod with a claim: `cpu`, `memory` or `hugepages-SIZE`, and a Quantity."""
    per_container: dict[str, str] = {}
    """Amounts for each container that uses the claim, in addition."""


class InventorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[inventory]`."""

    include: tuple[str, ...] = ()
    """CEL; a device is published if one of them is true, or if the list is empty."""
    exclude: tuple[str, ...] = ()
    """CEL; a device is not published if one of them is true."""
    attributes: tuple[AttributeRule, ...] = ()
    partition: tuple[PartitionRule, ...] = ()
    """Devices that are published in partitions too."""
    passthrough: tuple[PassthroughRule, ...] = ()
    """Devices that are bound to vfio-pci when a claim is prepared."""

    share: tuple[ShareRule, ...] = ()
    """Devices that several claims can hold a share of."""
    prepare_ahead: tuple[PrepareAheadRule, ...] = ()
    """Devices whose claims are prepared before their pods are bound, where the cluster supports it."""
    overhead: tuple[OverheadRule, ...] = ()
    """Devices that cost the node memory or CPU for each pod; needs the feature gate DRANodeAllocatableResources."""
    fabric_file: str | None = None
    """A TOML file with the place of this host and its devices in the network: rack, switches, rails."""
    pools: Literal["family", "product"] = "family"
    """One pool for all devices of a family, or one for each product, because Cluster Autoscaler expects the devices of
    a pool to be alike. Change it while no claim has a device of the node."""
    host_interfaces: tuple[str, ...] = ()
    """CEL; a NIC that the host itself uses, or that has virtual functions, can be claimed if one of them is true."""
    displays: tuple[str, ...] = ()
    """CEL; a console of a virtual machine that has a render node can be claimed if one of them is true."""
    host_uplink: Literal["exclude", "include"] = "exclude"
    """Deprecated: use `host_interfaces`. include: every interface that the host uses can be claimed, as by its rule
    `true`, except those of adapters with virtual functions."""
    nvml_timeout: float = 5.0
    """Seconds that one call of NVIDIA's library may take.

    Calls while MIG instances change, and the start of the library, may take four times as long; the start also twice as
    long for each GPU."""

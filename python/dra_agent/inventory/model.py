"""The device model: one claimable device, and the inventory of a host.

It holds facts only: the back ends find them, and slices, CDI and the command line read them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from dra_agent.claimable.codes import Code
from dra_agent.diagnostic import Diagnostic
from dra_agent.inventory.api import Attribute, Capacity, CounterConsumption, CounterSet, Overhead, Taint

Family = Literal["gpu", "nic", "fpga", "accelerator"]
FAMILIES: tuple[Family, ...] = ("gpu", "nic", "fpga", "accelerator")

Health = Literal["healthy", "unhealthy", "unmonitored"]
"""unmonitored: no health information is available."""

NodeRole = Literal[
    "gpu",  # /dev/nvidiaN: the device itself
    "capability",  # /dev/nvidia-caps/nvidia-capN: one MIG instance
    "card",  # /dev/dri/cardN
    "render",  # /dev/dri/renderDN
    "kfd",  # /dev/kfd: shared by all AMD GPUs
    "control",  # /dev/nvidiactl, /dev/nvidia-uvm: shared by all devices of a vendor
    "uverbs",  # /dev/infiniband/uverbsN
    "rdma-cm",  # /dev/infiniband/rdma_cm: shared by all RDMA devices
    "accel",  # /dev/accel/accelN
    "vendor",  # a vendor driver's node of one device
    "vfio",  # /dev/vfio/GROUP
    "vfio-control",  # /dev/vfio/vfio: shared by all devices bound to vfio-pci
]
SHARED_ROLES: frozenset[NodeRole] = frozenset({"kfd", "control", "rdma-cm", "vfio-control"})
"""Nodes that every claim of the vendor gets; they do not open a device by themselves."""

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


STARTING = "starting"
"""The cause of a device that was never read, because its library still initializes it."""
HOST_USE = "host-use"
"""The cause of a device that the host has come to use while a claim holds it."""
RULE_ALLOWS = "rule"
"""The key of the identity of a NIC that a rule of inventory.host_interfaces permits although the host uses it."""
NOT_CLAIMABLE = "not-claimable"
"""The cause of a device that a claim holds and that would not be published otherwise, such as without its driver or
vfio-pci."""


class DeviceNode(msgspec.Struct, frozen=True):
    """One device node that a container needs to use a device."""

    path: str
    """As containers know it: "/dev/nvidia0"."""
    host_path: str
    """Its path on this host; differs from `path` only on a simulated host."""
    role: NodeRole


class ObservedIssue(msgspec.Struct, frozen=True):
    """An issue of a device that observations show while it lasts."""

    cause: str
    """A short name: "gpu-lost", "link-down"; dra_agent.health defines the severity of each."""
    message: str
    transient: bool = False
    """It is a stage of a start, too: it counts after a grace period only (dra_agent.health)."""


class DeviceEvent(msgspec.Struct, frozen=True):
    """An event of a device, reported once."""

    pci_address: str
    cause: str
    """"xid-79", "ecc"; "": nothing is wrong by itself, but the device has to be read again."""
    message: str
    devices: tuple[str, ...] = ()
    """Names of the affected partitions of the GPU; empty: the whole GPU, or an unknown partition."""


MAX_ENUMERATED = 3
"""Devices that are excluded for one reason and listed by name."""


class Exclusion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device that is there and is not published, and why."""

    name: str
    reason: str
    code: Code
    pci_address: str | None = None
    """Of a whole function that is not published; of several, that of one of them."""
    hint: str = ""
    uuids: tuple[str, ...] = ()
    """Of a device that a rule leaves to others, as `Device.uuids`: another driver may name it by these only."""


class Device(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """One claimable device or partition of one."""

    name: str
    """DNS label, made of the PCI address and so the same after a reboot: "gpu-0000-3b-00-0"."""
    family: Family
    vendor: str
    """Short name ("nvidia", "amd", "intel", "mellanox", "xilinx"), or the PCI vendor id ("0x1bcf") without one."""
    pci_address: str
    """Of the device, or for a partition of the device that it is a part of: "0000:3b:00.0"."""
    attributes: dict[str, Attribute]
    capacity: dict[str, Capacity] = {}
    consumes_counters: tuple[CounterConsumption, ...] = ()
    taints: tuple[Taint, ...] = ()
    allow_multiple_allocations: bool = False
    nodes: tuple[DeviceNode, ...] = ()
    identity: dict[str, str] = {}
    """Identifiers of the device in other tools: driver, uuid, minor, card ("card0"), render ("renderD128"), ifname,
    rdma ("mlx5_0"), accel ("accel0"), kfd (node id), vfio ("vfio0"), physfn (address), host_use (how the host uses its
    interface, which claims do not change then), host_address ("allowed": a rule lets claims change an interface that
    has an address), dmem (its memory as the kernel's cgroup controller names it), parent (name of the whole device that
    cannot be held together with this part of it), mig ("whole", or profile id, first memory slice and slices of a
    partition that is made at prepare: "19:4:1"), foreign ("destroy": instances of others go when it is made),
    parent_uuid (of the GPU that it is made of)."""
    order: int = 0
    """Its position among the devices of one address: the scheduler takes the first published one that fits."""
    numa_node: int | None = None
    pcie_switch: str | None = None
    """Address of the upstream port that neighbours share: with numa_node and pci_address it orders devices."""
    memory_limits: dict[str, str] = {}
    """Mechanisms that could limit shares of its memory ("mps", "nvml-cgroup", "dmem"), and why one cannot be used
    here; "" where it can."""
    health: Health = "healthy"
    health_reason: str | None = None
    issues: tuple[ObservedIssue, ...] = ()
    """Why it is unhealthy."""
    observed: bool = True
    """False: its health cannot be read now (a claim has bound it to vfio-pci, or NVML initializes it); earlier issues
    before still counts."""
    memory_errors: int | None = None
    """Uncorrected errors since its driver was loaded; None if not counted."""
    corrected_errors: int | None = None
    """Those that were corrected."""
    prepare_ahead: bool = False
    """A rule requests that claims are prepared before their pods are bound, where the cluster supports it."""
    binding_conditions: tuple[str, ...] = ()
    """Conditions that the scheduler awaits in a claim's status before it binds a pod (KEP-5007)."""
    binding_failure_conditions: tuple[str, ...] = ()
    """Conditions after which it chooses devices again."""
    overhead: dict[str, Overhead] = {}
    """By the name of a node's resource ("memory"): what each pod with the device costs the node (KEP-5517)."""
    pool_group: str = ""
    """The part of its pool's name that separates it from other devices of its family; "" if one pool has them all."""

    def __post_init__(self) -> None:
        if not _LABEL.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a DNS label")

    @property
    def uuids(self) -> tuple[str, ...]:
        """Its UUID, and that of the GPU that it is a partition of, where they are known."""
        parent = self.attributes.get("parentUUID")
        return tuple(uuid for uuid in (self.identity.get("uuid"), parent and parent.string) if uuid)

    def pool(self, node: str) -> str:
        """Return the name of its pool on a node."""
        return pool_name(node, self.family, self.pool_group)

    def to_api(self) -> dict[str, Any]:
        """Return the resource.k8s.io/v1 Device as JSON-like builtins, without empty fields."""
        builtins: dict[str, Any] = msgspec.json.decode(self.json)  # noqa: TID251 - encoded in the same line
        return builtins

    @cached_property
    def json(self) -> bytes:
        """The resource.k8s.io/v1 Device as JSON; kept, because rules and slices read it at every change of the host."""
        device: dict[str, Any] = {"name": self.name}
        if self.attributes:
            device["attributes"] = self.attributes
        if self.capacity:
            device["capacity"] = self.capacity
        if self.consumes_counters:
            device["consumesCounters"] = self.consumes_counters
        if self.taints:
            device["taints"] = self.taints
        if self.allow_multiple_allocations:
            device["allowMultipleAllocations"] = True
        if self.binding_conditions:
            device["bindingConditions"] = self.binding_conditions
            device["bindingFailureConditions"] = self.binding_failure_conditions
        if self.overhead:
            device["nodeAllocatableResources"] = {name: {"overhead": cost} for name, cost in self.overhead.items()}
        return msgspec.json.encode(device)

    def same_published_form(self, other: Device) -> bool:
        """Return True if both are published in the same form."""
        return self is other or (
            self.name == other.name
            and self.attributes == other.attributes
            and self.capacity == other.capacity
            and self.consumes_counters == other.consumes_counters
            and self.taints == other.taints
            and self.allow_multiple_allocations == other.allow_multiple_allocations
            and self.prepare_ahead == other.prepare_ahead
            and self.binding_conditions == other.binding_conditions
            and self.binding_failure_conditions == other.binding_failure_conditions
            and self.overhead == other.overhead
            and self.pool_group == other.pool_group
        )


class Pool(NamedTuple):
    """The devices of a host that are published as one pool."""

    family: Family
    group: str
    devices: tuple[Device, ...]
    counter_sets: tuple[CounterSet, ...]

    def name(self, node: str) -> str:
        """Return its name on a node."""
        return pool_name(node, self.family, self.group)


class Inventory(msgspec.Struct, frozen=True, dict=True):
    """Every claimable device of a host at one moment."""

    devices: tuple[Device, ...] = ()
    counter_sets: dict[Family, tuple[CounterSet, ...]] = {}
    """By family: the pools of a family hold the counters that their devices consume."""
    problems: tuple[Diagnostic, ...] = ()
    excluded: tuple[Exclusion, ...] = ()

    def device(self, name: str) -> Device | None:
        """Find a device by its name, which is unique on the host."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Device]:
        return {device.name: device for device in self.devices}

    def excluded_by_reason(self) -> list[Exclusion]:
        """Return one entry for each reason, on one line: a rule may leave out hundreds of partitions.

        Without those for which there is a problem with the same message.
        """
        reported = {problem.message for problem in self.problems}
        found: dict[str, list[Exclusion]] = {}
        for one in self.excluded:
            if one.reason not in reported:
                found.setdefault(" ".join(one.reason.split()), []).append(one)
        return [
            msgspec.structs.replace(same[-1], name=_enumerated([one.name for one in same]), reason=reason)
            for reason, same in found.items()
        ]

    def lookup(self, pool: str, name: str) -> Device | None:
        """Find a device by pool ("<node>/gpu" or "<node>/<group>/gpu") and name, as in an allocation result."""
        device = self.device(name)
        return device if device is not None and device_key(pool, name) == (device.family, name) else None

    def family(self, family: Family) -> tuple[Device, ...]:
        """Return the devices of one family."""
        return tuple(device for device in self.devices if device.family == family)

    def pools(self) -> list[Pool]:
        """Return the pools with devices: by family in the order of FAMILIES, then by group."""
        pools: list[Pool] = []
        for family in FAMILIES:
            devices, sets = self.family(family), self.counter_sets.get(family, ())
            for group in sorted({device.pool_group for device in devices}):
                members = tuple(device for device in devices if device.pool_group == group)
                pools.append(Pool(family, group, members, sets if members == devices else _consumed(members, sets)))
        return pools


def _enumerated(names: Sequence[str]) -> str:
    if len(names) <= MAX_ENUMERATED:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} other devices"


def _consumed(devices: Sequence[Device], sets: Sequence[CounterSet]) -> tuple[CounterSet, ...]:
    """Return the counter sets that devices consume: those of one set are parts of one device, and so in one pool."""
    names = {consumption.counter_set for device in devices for consumption in device.consumes_counters}
    return tuple(one for one in sets if one.name in names)


def pool_name(node: str, family: Family, group: str = "") -> str:
    """Name a pool of a node: separate ones for each family, so that a change in one never disturbs another.

    The name ends with the family also in a group: `device_key` recognizes a device after its group has changed.
    """
    return f"{node}/{group}/{family}" if group else f"{node}/{family}"


def is_pool_of(pool: object, node: str) -> bool:
    """Return whether a pool has this name because it has devices of the node."""
    return str(pool or "").startswith(f"{node}/")


def device_key(pool: str, name: str) -> tuple[str, str]:
    """Return the key of a device on this host: family and name, independent of the node's name at allocation.

    Kubernetes names a device by driver, pool and name. A node that was renamed has the same device in another pool.
    """
    return pool.rpartition("/")[2], name


@lru_cache(4096)  # a scan asks for all names of the host each time
def device_name(family: Family, pci_address: str, *parts: str | int) -> str:
    """Return the name of a device from its PCI address; `parts` distinguish partitions ("cpx", 3)."""
    words = [family, *re.split(r"[:.]", pci_address.lower()), *(str(part).lower() for part in parts)]
    return "-".join(re.sub(r"[^a-z0-9]+", "-", word).strip("-") for word in words)

"""Puts one device together, within the API's limits: common attributes from the topology, the rest from its back end.

Unknown values are omitted; values that the API would reject are cut or omitted, and reported. Back ends define the set
of facts.
"""

from __future__ import annotations

from pathlib import Path

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.api import INT64, MAX_STRING_BYTES, Attribute, Capacity
from dra_agent.inventory.interconnect import Interconnect
from dra_agent.inventory.model import Device, DeviceNode, Family, Health, NodeRole, ObservedIssue, device_name
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.inventory.vendors import vendor_of
from dra_agent.topology.model import PciFunction

MAX_ENTRIES = 32
"""Attributes and capacities together that the API allows on one device."""


class DeviceBuilder:
    """A device while its back end fills it in."""

    def __init__(
        self,
        host: Host,
        function: PciFunction,
        family: Family,
        problems: list[Diagnostic],
        parts: tuple[str | int, ...] = (),
    ) -> None:
        self.host = host
        self.function = function
        self.family: Family = family
        self.name = device_name(family, function.pci_address, *parts)
        self.problems = problems
        self.files = pci_files(host, function, problems)
        self.attributes: dict[str, Attribute] = {}
        self.capacity: dict[str, Capacity] = {}
        self.identity: dict[str, str] = {}
        self.health: Health = "healthy"
        self.health_reason: str | None = None
        self.issues: list[ObservedIssue] = []
        self.observed = True
        self.memory_errors: int | None = None
        self.memory_limits: dict[str, str] = {}
        self.corrected_errors: int | None = None
        self.interconnect: Interconnect | None = None
        """Of the GPU, for descriptions that have it."""
        self._nodes: dict[str, DeviceNode] = {}
        self._common()

    def set(self, name: str, value: bool | int | str | None) -> None:
        """Set an attribute; None and "" mean unknown and leave it out."""
        if value is None or value == "":
            return
        if isinstance(value, int) and value not in INT64:
            self._warn(f"{name} is {value}, which no int attribute can hold; it is left out")
            return
        self.attributes[name] = Attribute.of(self._fitting(name, value) if isinstance(value, str) else value)

    def set_version(self, name: str, text: str | None) -> None:
        """Set a version attribute of a vendor's version text; an invalid one is left out and reported."""
        if not text:
            return
        try:
            self.attributes[name] = Attribute.of_version(text)
        except ValueError as error:
            self._warn(f"{name} is left out: {error}")

    def set_interconnect(self) -> None:
        """Set the attributes of the GPU's group; without one, none."""
        if self.interconnect is not None:
            self.set("interconnectGroup", self.interconnect.group)
            self.set("interconnectWidth", self.interconnect.width)

    def add_identity(self, **names: str | int | None) -> None:
        """Add the id of the device in the vendor's tools."""
        self.identity.update({key: str(name) for key, name in names.items() if name is not None and name != ""})

    def node(self, path: str, role: NodeRole, host_path: Path | None = None) -> None:
        """Add a device node that a container needs, even if it does not exist now.

        `host_path`: where the agent sees it, if not in the host's /dev.
        """
        self._nodes[path] = DeviceNode(path, str(host_path or self.host.dev_path(path)), role)

    def node_if_there(self, path: str, role: NodeRole) -> None:
        """Add a device node that only some hosts have."""
        if self.host.dev_path(path).exists():
            self.node(path, role)

    def add_issue(self, cause: str, message: str, *, transient: bool = False) -> None:
        """Add an issue of the device; the first one is its reason.

        A transient issue leaves it healthy: it may be a stage of a start.
        """
        self.issues.append(ObservedIssue(cause, message, transient))
        if self.health != "unhealthy" and not transient:
            self.health, self.health_reason = "unhealthy", message

    def inherit_health(self, whole: DeviceBuilder) -> None:
        """Inherit the health of the parent device."""
        self.health, self.health_reason, self.issues = whole.health, whole.health_reason, list(whole.issues)
        self.observed = whole.observed
        self.memory_errors, self.corrected_errors = whole.memory_errors, whole.corrected_errors

    def build(self) -> Device:
        """Return the device."""
        room = MAX_ENTRIES - len(self.capacity)
        for name in list(self.attributes)[room:]:
            self._warn(f"{name} is left out: a device has at most {MAX_ENTRIES} attributes and capacities")
            del self.attributes[name]
        return Device(
            name=self.name,
            family=self.family,
            vendor=vendor_of(self.function.vendor_id),
            pci_address=self.function.pci_address,
            attributes=self.attributes,
            capacity=self.capacity,
            nodes=tuple(self._nodes.values()),
            identity=self.identity,
            numa_node=self.function.numa_node,
            pcie_switch=self.function.pcie_switch,
            memory_limits=self.memory_limits,
            health=self.health,
            health_reason=self.health_reason,
            issues=tuple(self.issues),
            observed=self.observed,
            memory_errors=self.memory_errors,
            corrected_errors=self.corrected_errors,
        )

    def _common(self) -> None:
        function = self.function
        link = function.card_link
        self.set("type", "vfio" if function.is_vfio else self.family)
        self.set("vendor", vendor_of(function.vendor_id))
        self.set("vendorID", function.vendor_id)
        self.set("deviceID", function.device_id)
        self.set("driver", function.driver)
        self.set("pcieSwitch", function.pcie_switch)
        if link is not None:
            self.set("pcieGeneration", link.max_generation)
            self.set("pcieWidth", link.max_width)
        self.set("iommuGroup", function.iommu_group)
        # "unknown" for all others: the kernel marks what is behind a port that firmware calls external (Thunderbolt,
        # USB4), and nothing as fixed (pci_set_removable).
        self.set("external", True if self.files.text("removable") == "removable" else None)
        self.set("resource.kubernetes.io/pcieRoot", function.pcie_root)
        self.set("resource.kubernetes.io/pciBusID", function.pci_address)
        self.set("resource.kubernetes.io/numaNode", function.numa_node)
        self.add_identity(driver=function.driver, vfio=function.vfio)
        if function.is_vfio:
            # The legacy interface is a node per IOMMU group; /dev/vfio/devices is the newer one, per device.
            if function.iommu_group is not None:
                self.node(f"/dev/vfio/{function.iommu_group}", "vfio")
            self.node("/dev/vfio/vfio", "vfio-control")
            if function.vfio is not None:
                self.node_if_there(f"/dev/vfio/devices/{function.vfio}", "vfio")

    def _fitting(self, name: str, text: str) -> str:
        printable = text if text.isprintable() else "".join(char for char in text if char.isprintable())
        raw = printable.encode(errors="replace")
        if len(raw) > MAX_STRING_BYTES:
            self._warn(f"{name} is {len(raw)} bytes long and cut to {MAX_STRING_BYTES}, the most that the API allows")
        return raw[:MAX_STRING_BYTES].decode(errors="ignore")

    def _warn(self, message: str) -> None:
        self.problems.append(Diagnostic(self.name, message, severity="warning"))


def pci_files(host: Host, function: PciFunction, problems: list[Diagnostic]) -> SysfsDir:
    """Return the sysfs directory of a PCI function."""
    return SysfsDir(f"{host.sysfs}/bus/pci/devices/{function.pci_address}", problems)


MECHANISM = "dmem"


def dmem_memory(host: Host, function: PciFunction, problems: list[Diagnostic]) -> int | None:
    """Return the bytes of device memory that a GPU's driver has registered with the cgroup controller dmem.

    None if it has registered none, or the kernel is older than 6.14. xe registers one region for each tile ("vram0",
    "vram1") with the size without stolen memory (kernel: xe_ttm_vram_mgr.c, Documentation/admin-guide/cgroup-v2.rst).
    """
    sizes = [
        int(size)
        for name, size in _dmem_capacities(host, problems).items()
        if name.startswith(_vram_prefix(function)) and size.isdecimal()
    ]
    return sum(sizes) or None


def _dmem_capacities(host: Host, problems: list[Diagnostic]) -> dict[str, str]:
    return SysfsDir(host.sysfs / "fs/cgroup", problems).key_values("dmem.capacity")


def _vram_prefix(function: PciFunction) -> str:
    return f"drm/{function.pci_address}/vram"


def set_dmem_region(builder: DeviceBuilder) -> None:
    """Note the region, or why the controller cannot hold shares of this GPU to their memory."""
    capacities = _dmem_capacities(builder.host, builder.problems)
    regions = [name for name in capacities if name.startswith(_vram_prefix(builder.function))]
    if not capacities:
        builder.memory_limits[MECHANISM] = "the kernel has no cgroup controller dmem (6.14 and later have)"
    elif not regions:
        builder.memory_limits[MECHANISM] = "its driver has registered no memory with the cgroup controller dmem"
    elif len(regions) > 1:
        builder.memory_limits[MECHANISM] = f"its memory is in {len(regions)} regions, and a limit is for one"
    else:
        builder.memory_limits[MECHANISM] = ""
        builder.add_identity(dmem=regions[0])

"""Intel GPUs and their virtual functions, from the sysfs attributes of i915 and xe.

A GPU that is divided into virtual functions is published as these. The operator may also publish the physical function,
for claims while no virtual function is held.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.api import Capacity, Counter, CounterConsumption, CounterSet
from dra_agent.inventory.builder import DeviceBuilder, dmem_memory, pci_files, set_dmem_region
from dra_agent.inventory.generic import add_drm_nodes
from dra_agent.inventory.model import Device, Exclusion, device_name
from dra_agent.inventory.products import board_memory_of, product_of
from dra_agent.inventory.rules import PartitionRules
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.topology.model import PciFunction

FUNCTIONS, MEMORY = "virtual-functions", "memory"

_CARDS = re.compile(r"0x(490[5-9]|4f8\w|56[9abc]\w|0b69|0b6e|0bd\w|0be\w|e2[0-2]\w)")
"""PCI device ids of chips with memory of their own: DG1, DG2, Flex, Max and Battlemage (Linux,
include/drm/intel/pciids.h)."""
_PROCESSOR_GRAPHICS = re.compile(r"0000:00:02\.\d")
"""Address of the GPU in Intel's processors, and of its virtual functions."""


@dataclass(frozen=True, slots=True)
class VfResources:
    """Resources of one virtual function; None if unknown."""

    memory: int | None
    """Bytes of the GPU's memory that are its alone."""
    quantum_ms: int | None
    """Execution quantum; 0 is unlimited."""
    timeout_us: int | None
    """Preemption timeout; 0 is unlimited."""
    priority: str | None


class VirtualFunctions:
    """Virtual functions of one physical function."""

    def __init__(self, physical: PciFunction, files: SysfsDir, memory: int | None) -> None:
        """Take the physical function's folder, and the bytes of memory that the GPU has.

        The resources are read once: counters and all that consume them have the same, although the driver provisions a
        quota meanwhile.
        """
        self._physical = physical
        self._memory = memory
        self._assigned = {
            address: _read_resources(files.subdir(f"sriov_admin/vf{number}/profile"))
            for number, address in enumerate(physical.virtfns, 1)
        }

    def assigned(self, address: str) -> VfResources:
        """Return the resources of the function at this address; unknown if the physical function does not list it."""
        return self._assigned.get(address, VfResources(None, None, None, None))

    def counters(self, name: str) -> CounterSet:
        """Return the counter sets that a physical function and its virtual functions share."""
        return CounterSet(name, self._all())

    def whole(self, name: str) -> CounterConsumption:
        """Return the consumption of the physical function: all counters, so it is exclusive with virtual functions."""
        return CounterConsumption(name, self._all())

    def part(self, name: str, address: str) -> CounterConsumption:
        """Return the consumption of a virtual function."""
        taken = {FUNCTIONS: Counter("1")}
        memory = self.assigned(address).memory
        if MEMORY in self._all() and memory is not None:
            taken[MEMORY] = Counter(str(memory))
        return CounterConsumption(name, taken)

    @property
    def remaining(self) -> int | None:
        """Unassigned memory in bytes, which the physical function can use."""
        return None if self._memory is None else max(self._memory - self._given, 0)

    @property
    def _given(self) -> int:
        return sum(one.memory or 0 for one in self._assigned.values())

    def _all(self) -> dict[str, Counter]:
        counters = {FUNCTIONS: Counter(str(len(self._physical.virtfns)))}
        # Quotas are rounded up to the granularity of the hardware: all of them must fit.
        if self._memory is not None and self._given > 0:
            counters[MEMORY] = Counter(str(max(self._memory, self._given)))
        return counters


def _read_resources(profile: SysfsDir) -> VfResources:
    return VfResources(
        # 0: the function has no quota yet; the driver provisions it on the first use.
        profile.number("vram_quota") or None,
        profile.number("exec_quantum_ms"),
        profile.number("preempt_timeout_us"),
        _chosen(profile.text("sched_priority")),
    )


def _chosen(text: str | None) -> str | None:
    """Return the selected value of "low [normal] high"; the text itself if it has no brackets."""
    words = (text or "").split()
    return next((word.strip("[]") for word in words if word.startswith("[")), words[0] if len(words) == 1 else None)


class IntelBackend:
    """Describes Intel GPUs."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._rules: PartitionRules | None = None
        self._counters: list[CounterSet] = []
        self._withheld: list[Exclusion] = []

    def withheld(self) -> Sequence[Exclusion]:
        """Return the GPUs that are published as their virtual functions only."""
        return self._withheld

    def partition_by(self, rules: PartitionRules) -> None:
        """Take the rules by which a divided GPU is offered as a whole, too."""
        self._rules = rules

    def counter_sets(self) -> Sequence[CounterSet]:
        """Return the counter sets that the functions of each such GPU share."""
        return self._counters

    def devices(self, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> list[Device]:
        """Describe each GPU, or each of its virtual functions."""
        here = {function.pci_address for function in functions}
        divided = {
            function.pci_address: VirtualFunctions(
                function, pci_files(self._host, function, problems), self._whole_memory(function)
            )
            for function in functions
            if function.sriov is not None and function.sriov.num_vfs > 0
        }
        self._counters = []
        self._withheld = []
        shared: set[str] = set()
        devices = []
        # Physical functions first, independent of addresses: virtual functions consume their counters.
        for function in sorted(functions, key=lambda one: one.physfn is not None):
            builder = self._draft(function, problems)
            of_whole = divided.get(function.pci_address)
            of_part = divided.get(function.physfn or "")
            if function.physfn is not None:
                self._fill_virtual(builder, function.physfn, of_part)
            elif memory := of_whole.remaining if of_whole is not None else self._whole_memory(function):
                builder.capacity["memory"] = Capacity.of_bytes(memory)
            device = builder.build()
            if of_whole is not None:
                if self._rules is None or self._rules.rule_for(device, "sriov") is None:
                    self._withhold(device, f"it is divided into {len(function.virtfns)} virtual functions")
                    continue
                shared.add(function.pci_address)
                self._counters.append(of_whole.counters(device.name))
                # If virtual functions are used by others (vfio-pci, another driver), the physical function cannot be
                # allocated.
                if not here.issuperset(function.virtfns):
                    others = ", ".join(sorted(set(function.virtfns) - here))
                    self._withhold(device, f"its virtual functions {others} are not published, so others may use them")
                    continue
                device = msgspec.structs.replace(device, consumes_counters=(of_whole.whole(device.name),))
            elif of_part is not None and function.physfn in shared:
                name = device_name("gpu", function.physfn)
                device = msgspec.structs.replace(device, consumes_counters=(of_part.part(name, function.pci_address),))
            devices.append(device)
        return devices

    def close(self) -> None:
        """Nothing is held."""

    def _withhold(self, whole: Device, reason: str) -> None:
        hint = "claim those, or let a rule of inventory.partition publish both (mode sriov)"
        self._withheld.append(Exclusion(whole.name, reason, "physical-function", whole.pci_address, hint))

    def _draft(self, function: PciFunction, problems: list[Diagnostic]) -> DeviceBuilder:
        builder = DeviceBuilder(self._host, function, "gpu", problems)
        builder.set("productName", product_of(function))
        builder.set("brand", _brand(function))
        if function.driver is not None:
            modules = SysfsDir(self._host.sysfs / "module", problems)
            builder.set_version("driverVersion", modules.text(f"{function.driver}/version"))
        set_dmem_region(builder)
        if function.drm is not None:
            add_drm_nodes(builder, function.drm.card, function.drm.render)
        builder.set("integrated", self._is_integrated(function))
        if function.sriov is not None and function.sriov.num_vfs > 0:
            builder.set("sriovVfs", function.sriov.num_vfs)
        return builder

    def _is_integrated(self, function: PciFunction) -> bool | None:
        """Return whether the GPU is part of a processor; None if neither is certain.

        No file of i915 or xe has it. A virtual machine can have a card, too, at the address of a processor's GPU, and
        the processor's at any other.
        """
        if _CARDS.fullmatch(function.device_id) or self._whole_memory(function):
            return False
        return True if not function.parents and _PROCESSOR_GRAPHICS.fullmatch(function.pci_address) else None

    def _fill_virtual(self, builder: DeviceBuilder, physical: str, of_part: VirtualFunctions | None) -> None:
        function = builder.function
        builder.set("type", "vf")
        builder.set("memoryEnforcement", "vf")
        builder.add_identity(parent=device_name("gpu", physical))
        assigned = of_part.assigned(function.pci_address) if of_part is not None else None
        memory = self._reported_memory(function) or (assigned.memory if assigned is not None else None)
        if memory:
            builder.capacity["memory"] = Capacity.of_bytes(memory)
        if assigned is not None:
            builder.set("execQuantumMs", assigned.quantum_ms)
            builder.set("preemptTimeoutUs", assigned.timeout_us)
            builder.set("schedPriority", assigned.priority)

    def _whole_memory(self, function: PciFunction) -> int | None:
        return self._reported_memory(function) or board_memory_of(function)

    def _reported_memory(self, function: PciFunction) -> int | None:
        """Return the local memory in bytes, as the function's driver reports it.

        Mainline xe has no file with the size: since 6.14 it registers the memory with the cgroup controller dmem, and
        before only its query ioctl returns it, which needs the device node and wakes the GPU. Intel's own builds of xe
        have a file per tile, those of i915 one per card; mainline i915 has none. The size of the memory BAR is not
        usable: it is rounded up to a power of two, or may be a window of 256 MiB.
        """
        if total := dmem_memory(self._host, function, []):
            return total
        files = pci_files(self._host, function, [])
        tiles = [name for name in files.names() if name.startswith("tile") and name[4:].isdecimal()]
        amounts = [files.number(f"{tile}/physical_vram_size_bytes") for tile in tiles]
        total = sum(amount for amount in amounts if amount is not None)
        if not total and function.drm is not None and function.drm.card is not None:
            total = files.number(f"drm/{function.drm.card}/lmem_total_bytes") or 0
        return total or None


def _brand(function: PciFunction) -> str | None:
    name = product_of(function) or ""
    return next((brand for brand in ("Flex", "Max", "Arc") if brand in name.split()), None)


def make(host: Host, settings: InventorySettings) -> IntelBackend:
    """Make the back end."""
    del settings
    return IntelBackend(host)

"""AMD GPUs that claims divide: described as a whole and as the partitions of every mode, in every mode.

That holds while KFD shows them half rebuilt, too, for as long as a change of the mode takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.amd.apu import is_apu
from dra_agent.inventory.amd.kfd import COMPUTE_MODE, KfdNode, KfdReader, merge_partitions, partition_of, uuid_text
from dra_agent.inventory.amd.mode_transition import (
    SETTLE_TIMEOUT_S,
    LastDescription,
    ModeTransition,
    die_count,
    matches_mode,
)
from dra_agent.inventory.amd.modes import (
    WHOLE,
    Mode,
    Modes,
    known_mode,
    lists_modes,
    memory_partitions,
    read_description,
)
from dra_agent.inventory.api import Attribute, Capacity, CounterConsumption, CounterSet
from dra_agent.inventory.builder import MECHANISM, DeviceBuilder, pci_files, set_dmem_region
from dra_agent.inventory.generic import add_drm_nodes
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import Device, Exclusion, device_name
from dra_agent.inventory.products import product_of
from dra_agent.inventory.rules import PartitionRules
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.topology.model import PciFunction


def describe_whole(
    builder: DeviceBuilder, node: KfdNode | None, driver_version: str | None, uuid: str | None = None
) -> None:
    """Set the properties of a whole GPU; `node` is its merged KFD node, `uuid` its id if KFD does not show it now."""
    function = builder.function
    builder.set("uuid", uuid or uuid_of(builder.files, node))
    fill(builder, node, driver_version)
    count_errors(builder)
    of_driver = builder.files.number("mem_info_vram_total")
    of_kfd = node.memory_bytes if node is not None else None
    # An APU's driver reports the part of the host's memory that the firmware has set aside.
    uses_host_memory = of_kfd not in (None, of_driver) and is_apu(function, builder.files, node) is True
    set_memory(builder, of_kfd if uses_host_memory else of_driver or of_kfd)
    if function.drm is not None:
        add_drm_nodes(builder, function.drm.card, function.drm.render)
    if uses_host_memory:
        builder.memory_limits[MECHANISM] = "it uses the host's memory, which this controller does not count"
    else:
        set_dmem_region(builder)
    if function.physfn is not None:
        builder.set("type", "vf")
        builder.set("memoryEnforcement", "vf")
        builder.add_identity(parent=device_name("gpu", function.physfn))


def fill(builder: DeviceBuilder, node: KfdNode | None, driver_version: str | None, mode: str | None = None) -> None:
    """Set the properties that a GPU and a partition have in common."""
    files = builder.files
    builder.set("productName", files.text("product_name") or product_of(builder.function))
    builder.set("brand", _brand(builder))
    builder.set_version("driverVersion", driver_version)
    builder.set("computePartition", known_mode(files, COMPUTE_MODE) or mode)
    builder.set("memoryPartition", known_mode(files, "current_memory_partition"))
    if node is None:
        return
    builder.set("architecture", node.isa)
    builder.set("integrated", is_apu(builder.function, files, node))
    builder.set("fabricDomain", f"{node.hive_id:016x}" if node.hive_id is not None else None)
    builder.interconnect = node.interconnect
    builder.set_interconnect()
    if node.compute_units is not None:
        builder.capacity["computeUnits"] = Capacity.of(node.compute_units)
    builder.add_identity(kfd=node.node_id)
    builder.node("/dev/kfd", "kfd")


def set_memory(builder: DeviceBuilder, amount: int | None) -> None:
    """Set the memory in bytes, where it is known."""
    if amount:
        builder.capacity["memory"] = Capacity.of_bytes(amount)


def uuid_of(files: SysfsDir, node: KfdNode | None) -> str | None:
    """Return the id by which ROCR_VISIBLE_DEVICES selects a GPU: KFD's, which can be another than the board's.

    Without an id of KFD the board's is used; an id that another GPU has too selects neither.
    """
    return board_uuid(files) if node is None or node.unique_id is None else node.uuid


def board_uuid(files: SysfsDir, node: KfdNode | None = None) -> str | None:
    """Return the id of the board, as amd-smi shows it; `node`: part of it, for drivers that have no file for it."""
    text = files.text("unique_id")
    if text is not None and text.strip("0x"):
        return f"GPU-{text.lower().removeprefix('0x'):0>16}"
    return uuid_text(node.unique_id) if node is not None else None


def count_errors(builder: DeviceBuilder) -> None:
    """Sum up the errors that the blocks of a GPU have counted (amdgpu RAS: lines "ue: N" and "ce: N")."""
    ras = builder.files.subdir("ras")
    blocks = [ras.key_values(name, ":") for name in ras.names() if name.endswith("_err_count")]

    def total(kind: str) -> int | None:
        known = [int(count) for block in blocks if (count := block.get(kind, "").strip()).isdecimal()]
        return sum(known) if known else None

    builder.memory_errors, builder.corrected_errors = total("ue"), total("ce")


def _brand(builder: DeviceBuilder) -> str | None:
    """Return the brand in a product name; the MI200 series spells it in capitals ("AMD INSTINCT MI250X ...")."""
    name = builder.attributes.get("productName")
    words = str(name.value).casefold().split() if name is not None else []
    return next((brand for brand in ("Instinct", "Radeon", "FirePro") if brand.casefold() in words), None)


MODE, PARTITION, PARTITIONS = "computePartition", "partition", "partitions"
"""Keys of the identity of a partition: the mode, its number in it, and their count."""
_RETRY_INTERVAL_S = 0.05
"""Seconds between two reads of a GPU that is incomplete at its first scan."""


class PartitionableGpus:
    """Describes them, look by look."""

    def __init__(self, host: Host, rules: PartitionRules, changes: ModeChanges, topology: KfdReader) -> None:
        self.counters: list[CounterSet] = []
        """The counter sets of the last described devices."""
        self.withheld: list[Exclusion] = []
        """The GPUs of the last scan that are not published."""
        self._host = host
        self._topology = topology
        self._rules = rules
        self._changes = changes
        self._transitions = ModeTransition(changes)
        self._seen: set[str] = set()
        """GPUs for which the first wait for complete nodes is over."""
        self._uuids: dict[str, str | None] = {}
        """Of GPUs that were seen in one piece."""
        self._nodes: dict[str, list[KfdNode]] = {}
        self._complete: dict[str, list[KfdNode]] = {}
        self._max_dies: dict[str, int] = {}
        """By device id: the dies of GPUs that KFD shows completely."""

    def begin(self, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> dict[str, list[KfdNode]]:
        """Start a scan of these GPUs; returns the nodes of every GPU by address."""
        self.counters, self.withheld = [], []
        self._transitions.begin(functions)
        here = {function.pci_address for function in functions}
        self._uuids = {address: uuid for address, uuid in self._uuids.items() if address in here}
        self._nodes = _without_widths(self._read(functions, problems))
        self._complete = {
            one.pci_address: self._nodes[one.pci_address] for one in functions if self._is_complete(one, self._nodes)
        }
        self._max_dies = self._transitions.max_dies(functions, self._complete)
        return self._nodes

    def needs_rescan(self) -> bool:
        """Return once that an incomplete GPU kept its description."""
        return self._transitions.needs_rescan()

    def _read(self, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> dict[str, list[KfdNode]]:
        """Read KFD; again, where a GPU that can be divided is seen for the first time, until its nodes are complete.

        Then a description to keep does not exist, and the slices from before this start must stay.
        """
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        new = [one for one in functions if one.pci_address not in self._seen and self._can_be_divided(one)]
        self._seen = {function.pci_address for function in functions}
        while True:
            found: list[Diagnostic] = []
            nodes = self._topology.nodes(found)
            new = [function for function in new if not self._is_complete(function, nodes)]
            if not new or time.monotonic() > deadline:
                problems += found
                return nodes
            time.sleep(_RETRY_INTERVAL_S)

    def _can_be_divided(self, function: PciFunction) -> bool:
        return lists_modes(pci_files(self._host, function, []).text("available_compute_partition"))

    def _is_complete(self, function: PciFunction, nodes: dict[str, list[KfdNode]]) -> bool:
        address = function.pci_address
        if self._changes.is_written(address):
            return False
        mode = known_mode(pci_files(self._host, function, []), COMPUTE_MODE)
        known = self._transitions.described(address)
        of_function = nodes.get(address, [])
        return matches_mode(of_function, mode) and (known is None or die_count(of_function) == known.dies)

    def describe(
        self, function: PciFunction, driver_version: str | None, problems: list[Diagnostic]
    ) -> list[Device] | None:
        """Describe a GPU that claims may divide, independent of its current mode; None for any other.

        A GPU that stays incomplete is not offered at all: counters of its remaining nodes would not be those by which
        its claims were allocated.
        """
        if not self._can_be_divided(function):
            return None
        nodes, most = self._nodes.get(function.pci_address, []), self._max_dies[function.device_id]
        complete = function.pci_address in self._complete
        name = device_name("gpu", function.pci_address)
        known = self._transitions.described(function.pci_address)
        if known is not None and not complete:
            self._rules.rule_for(known.whole, "amd")
            if self._transitions.is_kept(function.pci_address):
                self.counters.append(known.counters)
                return list(known.devices)
            withhold_incomplete(function, die_count(nodes), known.dies, problems, self.withheld)
            return []
        files = pci_files(self._host, function, problems)
        quiet: list[Diagnostic] = []
        builder = DeviceBuilder(self._host, function, "gpu", quiet)
        whole = merge_partitions(nodes) if nodes else None
        describe_whole(builder, whole, driver_version, self._uuid(function, nodes))
        described_whole = builder.build()
        if self._rules.rule_for(described_whole, "amd") is None:
            return None
        if whole is None or not complete:
            withhold_incomplete(function, die_count(nodes), most, problems, self.withheld)
            return []
        nps = known_mode(files, "current_memory_partition")
        available = files.text("available_compute_partition") or ""
        modes = Modes(available, whole.xcc_count or 0, memory_partitions(nps), read_description(files))
        if not modes.divided:
            return None
        if modes.dies < most:
            message = f"KFD shows {modes.dies} of its {most} dies, so claims cannot partition it"
            hint = "allow all of its render nodes in the agent's cgroup, or reset the GPU"
            problems.append(Diagnostic(name, message, hint, severity="warning"))
            return None
        problems += quiet
        total = files.number("mem_info_vram_total") or modes.divisible_memory(whole.memory_bytes)
        set_memory(builder, total)
        described_whole = builder.build()
        counters = modes.counters(builder.name)
        self.counters.append(counters)
        described = []
        if modes.all[0].name == WHOLE:
            described.append(self._in_mode(described_whole, modes.whole(builder.name), modes.all[0], 0))
        for mode in modes.divided:
            for index in range(mode.partitions):
                part = DeviceBuilder(self._host, function, "gpu", [], (mode.name.lower(), index))
                part.set("type", "partition")
                part.set("profile", "-".join(text.lower() for text in (mode.name, nps) if text is not None))
                count_errors(part)
                part.set("parentUUID", board_uuid(files, whole))
                part.set("memoryEnforcement", "none")
                part.add_identity(parent=builder.name)
                fill(part, partition_of(whole, mode.partitions), driver_version)
                set_memory(part, total // mode.partitions if total else None)
                consumption = modes.part(builder.name, mode, index)
                described.append(self._in_mode(part.build(), consumption, mode, index))
        self._transitions.settled(
            function.pci_address,
            LastDescription(function.device_id, modes.dies, described_whole, tuple(described), counters),
        )
        return described

    def _uuid(self, function: PciFunction, nodes: Sequence[KfdNode]) -> str | None:
        """Return the id of a whole GPU in every mode, if it was seen in one piece; KFD shows it in no other mode."""
        if len(nodes) == 1:
            self._uuids[function.pci_address] = nodes[0].uuid
        return self._uuids.get(function.pci_address)

    def _in_mode(self, device: Device, consumption: CounterConsumption, mode: Mode, index: int) -> Device:
        """Return a device as it will be in another mode; its nodes are not known before."""
        identity = {name: value for name, value in device.identity.items() if name not in {"kfd", "card", "render"}}
        return msgspec.structs.replace(
            device,
            attributes={**device.attributes, "computePartition": Attribute.of(mode.name)},
            consumes_counters=(consumption,),
            nodes=tuple(node for node in device.nodes if node.role == "kfd"),
            identity={**identity, MODE: mode.name, PARTITION: str(index), PARTITIONS: str(mode.partitions)},
        )


def _without_widths(nodes: dict[str, list[KfdNode]]) -> dict[str, list[KfdNode]]:
    """Return the nodes without the widths of their groups.

    KFD shows no number of links of a GPU that is divided, so that a claim for partitions of one GPU would change the
    description of all GPUs of its group.
    """
    return {
        address: [
            replace(node, interconnect=node.interconnect and replace(node.interconnect, width=None)) for node in of_gpu
        ]
        for address, of_gpu in nodes.items()
    }


def withhold_incomplete(
    function: PciFunction, seen: int, all_of_them: int, problems: list[Diagnostic], withheld: list[Exclusion]
) -> None:
    """Report a GPU whose KFD nodes do not match its mode, and which is not published therefore."""
    of = f"{seen} of its {all_of_them} dies" if seen < all_of_them else "partitions of another mode than it is in"
    message = f"KFD shows {of}, so it is not offered: a change of its mode does not complete"
    hint = "check the kernel log (dmesg); allow all of its render nodes in the agent's cgroup, or reset the GPU"
    name = device_name("gpu", function.pci_address)
    problems.append(Diagnostic(name, message, hint))
    withheld.append(Exclusion(name, message, "incomplete-nodes", function.pci_address, hint))

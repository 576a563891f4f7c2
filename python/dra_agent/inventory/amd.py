"""AMD GPUs and their partitions, from the amdgpu driver's sysfs files and the KFD topology; no library is loaded.

A GPU whose compute partition mode divides it is published as its partitions, in the mode that it is in now; one that
the operator lets claims divide, as a whole and as the partitions of every mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dra_agent.host import Host
from dra_agent.inventory.amd_modes import WHOLE, Mode, Modes, memory_partitions
from dra_agent.inventory.api import Attribute, Capacity, CounterConsumption, CounterSet
from dra_agent.inventory.device import Device, Problem, device_name
from dra_agent.inventory.dmem import note_dmem
from dra_agent.inventory.draft import Draft, pci_files
from dra_agent.inventory.kfd import KfdNode, divided, gpu_nodes, united
from dra_agent.inventory.partitions import PartitionRules
from dra_agent.inventory.plain import add_drm_nodes
from dra_agent.inventory.products import product_of
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.sysfs import Files
from dra_agent.topology.model import Device as Function

MODE, PARTITION, PARTITIONS = "computePartition", "partition", "partitions"
"""Keys of the identity of a device that is set up by dividing its GPU: the mode, its number in it, and of how many."""


class AmdBackend:
    """Describes AMD GPUs."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._rules: PartitionRules | None = None
        self._counters: list[CounterSet] = []
        self._most: dict[str, int] = {}
        """By device id: the dies of a GPU of which KFD shows all."""

    def partition_by(self, rules: PartitionRules) -> None:
        """Take the rules by which GPUs can be divided by claims."""
        self._rules = rules

    def counter_sets(self) -> Sequence[CounterSet]:
        """Give what the partitions of each such GPU share."""
        return self._counters

    def devices(self, functions: Sequence[Function], problems: list[Problem]) -> list[Device]:
        """Describe each GPU, or each of its partitions."""
        nodes = gpu_nodes(self._host, problems)
        modules = Files(self._host.sysfs / "module", problems)
        devices = []
        self._counters = []
        self._most = _most_dies(functions, nodes)
        for function in functions:
            of_function = nodes.get(function.pci_address, [])
            driver_version = modules.text(f"{function.driver}/version") if function.driver else None
            if divisible := self._divisible(function, of_function, driver_version, problems):
                devices += divisible
            elif len(of_function) > 1:
                devices += self._partitions(function, of_function, driver_version, problems)
            else:
                draft = Draft(self._host, function, "gpu", problems)
                self._whole(draft, of_function[0] if of_function else None, driver_version)
                devices.append(draft.finish())
        return devices

    def close(self) -> None:
        """Nothing is held."""

    def _whole(self, draft: Draft, node: KfdNode | None, driver_version: str | None) -> None:
        function = draft.function
        draft.set("uuid", self._uuid(draft.files, node))
        self._fill(draft, node, driver_version)
        _count_errors(draft)
        memory = draft.files.number("mem_info_vram_total")
        self._memory(draft, memory or (node.memory_bytes if node is not None else None))
        if function.drm is not None:
            add_drm_nodes(draft, function.drm.card, function.drm.render)
        note_dmem(draft)
        if function.physfn is not None:
            draft.set("type", "vf")
            draft.set("memoryEnforcement", "vf")
            draft.identify(parent=device_name("gpu", function.physfn))

    def _divisible(
        self, function: Function, nodes: list[KfdNode], driver_version: str | None, problems: list[Problem]
    ) -> list[Device]:
        """Describe a GPU that claims may divide, alike whatever mode it is in now; none for any other."""
        files = pci_files(self._host, function, problems)
        available = files.text("available_compute_partition")
        if self._rules is None or available is None or not nodes:
            return []
        quiet: list[Problem] = []
        draft = Draft(self._host, function, "gpu", quiet)
        whole = united(nodes)
        self._whole(draft, whole, driver_version)
        rule = self._rules.rule_for(draft.finish(), "amd")
        modes = Modes(available, whole.xcc_count or 0, memory_partitions(files.text("current_memory_partition")))
        if rule is None or not modes.divided:
            return []
        if modes.dies < self._most[function.device_id]:
            what = (
                f"KFD shows {modes.dies} of its {self._most[function.device_id]} dies, so that claims cannot divide it"
            )
            todo = "give the agent's cgroup all of its render nodes, or reset the GPU"
            problems.append(Problem(draft.name, what, todo, severity="warning"))
            return []
        problems += quiet
        counters = modes.counters(draft.name)
        self._counters.append(counters)
        described = []
        if modes.all[0].name == WHOLE:
            described.append(self._in_mode(draft.finish(), modes.whole(draft.name), modes.all[0], 0))
        for mode in modes.divided:
            for index in range(mode.partitions):
                part = Draft(self._host, function, "gpu", [], (mode.name.lower(), index))
                part.set("type", "partition")
                nps = files.text("current_memory_partition")
                part.set("profile", "-".join(text.lower() for text in (mode.name, nps) if text is not None))
                _count_errors(part)
                part.set("parentUUID", self._uuid(files, whole))
                part.set("memoryEnforcement", "none")
                part.identify(parent=draft.name)
                self._fill(part, divided(whole, mode.partitions), driver_version)
                total = files.number("mem_info_vram_total") or whole.memory_bytes
                self._memory(part, total // mode.partitions if total else None)
                consumption = modes.part(draft.name, mode, index)
                described.append(self._in_mode(part.finish(), consumption, mode, index))
        return described

    def _in_mode(self, device: Device, consumption: CounterConsumption, mode: Mode, index: int) -> Device:
        """Give a device as it will be once the GPU is in its mode: which nodes it has then, nobody knows before."""
        identity = {name: value for name, value in device.identity.items() if name not in {"kfd", "card", "render"}}
        return msgspec.structs.replace(
            device,
            attributes={**device.attributes, "computePartition": Attribute.of(mode.name)},
            consumes_counters=(consumption,),
            nodes=tuple(node for node in device.nodes if node.role == "kfd"),
            identity={**identity, MODE: mode.name, PARTITION: str(index), PARTITIONS: str(mode.partitions)},
        )

    def _partitions(
        self, function: Function, nodes: list[KfdNode], driver_version: str | None, problems: list[Problem]
    ) -> list[Device]:
        files = pci_files(self._host, function, problems)
        mode = files.text("current_compute_partition") or _mode(nodes)
        profile = "-".join(part.lower() for part in (mode, files.text("current_memory_partition")) if part is not None)
        renders = self._xcp_nodes(problems)
        total = files.number("mem_info_vram_total")
        devices = []
        for index, node in enumerate(nodes):
            draft = Draft(self._host, function, "gpu", problems, ((mode or "xcp").lower(), index))
            draft.set("type", "partition")
            draft.set("profile", profile)
            # The driver counts by blocks of the chip, which no partition has for itself.
            _count_errors(draft)
            draft.set("parentUUID", self._uuid(files, node))
            # KFD counts each partition's share for compute queues only; the render node is not held to it.
            draft.set("memoryEnforcement", "none")
            draft.identify(parent=device_name("gpu", function.pci_address))
            self._fill(draft, node, driver_version, mode)
            self._memory(draft, node.memory_bytes or (total // len(nodes) if total else None))
            render = f"renderD{node.render_minor}" if node.render_minor is not None else None
            own = function.drm is not None and function.drm.render == render
            card = function.drm.card if own and function.drm is not None else renders.get(render or "")
            add_drm_nodes(draft, card, render)
            devices.append(draft.finish())
        return devices

    def _fill(self, draft: Draft, node: KfdNode | None, driver_version: str | None, mode: str | None = None) -> None:
        """Set what a GPU and a partition have alike."""
        files = draft.files
        draft.set("productName", files.text("product_name") or product_of(draft.function))
        draft.set("brand", _brand(draft))
        draft.set_version("driverVersion", driver_version)
        draft.set("computePartition", files.text("current_compute_partition") or mode)
        draft.set("memoryPartition", files.text("current_memory_partition"))
        if node is None:
            return
        draft.set("architecture", node.isa)
        draft.set("fabricDomain", f"{node.hive_id:016x}" if node.hive_id is not None else None)
        if node.compute_units is not None:
            draft.capacity["computeUnits"] = Capacity.of(node.compute_units)
        draft.identify(kfd=node.node_id)
        draft.node("/dev/kfd", "kfd")

    def _memory(self, draft: Draft, amount: int | None) -> None:
        if amount:
            draft.capacity["memory"] = Capacity.of_bytes(amount)

    def _uuid(self, files: Files, node: KfdNode | None) -> str | None:
        """Give the GPU's id as ROCR_VISIBLE_DEVICES takes it."""
        text = files.text("unique_id")
        if text is not None:
            return f"GPU-{text.lower().removeprefix('0x'):0>16}"
        return f"GPU-{node.unique_id:016x}" if node is not None and node.unique_id is not None else None

    def _xcp_nodes(self, problems: list[Problem]) -> dict[str, str]:
        """Give card by render node of the partitions beyond the first: platform devices without an address."""
        platform = Files(self._host.sysfs / "devices/platform", problems)
        cards = {}
        for name in platform.names():
            if name.startswith("amdgpu_xcp"):
                drm = platform.names(f"{name}/drm")
                card = next((node for node in drm if node.startswith("card")), None)
                render = next((node for node in drm if node.startswith("renderD")), None)
                if card is not None and render is not None:
                    cards[render] = card
        return cards


def _count_errors(draft: Draft) -> None:
    """Sum up the errors that the blocks of a GPU have counted (amdgpu RAS: lines "ue: N" and "ce: N")."""
    ras = draft.files.below("ras")
    blocks = [ras.properties(name, ":") for name in ras.names() if name.endswith("_err_count")]

    def total(kind: str) -> int | None:
        known = [int(count) for block in blocks if (count := block.get(kind, "").strip()).isdecimal()]
        return sum(known) if known else None

    draft.memory_errors, draft.corrected_errors = total("ue"), total("ce")


def _most_dies(functions: Sequence[Function], nodes: Mapping[str, list[KfdNode]]) -> dict[str, int]:
    most: dict[str, int] = {}
    for function in functions:
        dies = sum(node.xcc_count or 0 for node in nodes.get(function.pci_address, ()))
        most[function.device_id] = max(most.get(function.device_id, 0), dies)
    return most


def _mode(nodes: list[KfdNode]) -> str | None:
    """One accelerator die per partition is CPX on every model; other modes cannot be told from the outside."""
    return "CPX" if all(node.xcc_count == 1 for node in nodes) else None


def _brand(draft: Draft) -> str | None:
    name = draft.attributes.get("productName")
    words = str(name.value).split() if name is not None else []
    return next((word for word in words if word in ("Instinct", "Radeon", "FirePro")), None)


def make(host: Host, settings: InventorySettings) -> AmdBackend:
    """Make the back end."""
    del settings
    return AmdBackend(host)

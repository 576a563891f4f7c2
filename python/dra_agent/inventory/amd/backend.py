"""AMD GPUs and their partitions, from the amdgpu driver's sysfs files and the KFD topology; no library is loaded.

A GPU whose compute partition mode divides it is published as its partitions, in the mode that it is in now; one that
the operator lets claims divide, as a whole and as the partitions of every mode.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.amd.kfd import COMPUTE_MODE, KfdNode, KfdReader
from dra_agent.inventory.amd.mode_transition import SETTLE_TIMEOUT_S, die_count, matches_mode
from dra_agent.inventory.amd.modes import WHOLE, known_mode
from dra_agent.inventory.amd.partitionable import (
    PartitionableGpus,
    board_uuid,
    count_errors,
    describe_whole,
    fill,
    set_memory,
    withhold_incomplete,
)
from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.builder import DeviceBuilder, pci_files
from dra_agent.inventory.generic import add_drm_nodes
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import Device, DeviceEvent, Exclusion, device_name
from dra_agent.inventory.rules import PartitionRules
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.topology.model import PciFunction


class AmdBackend:
    """Describes AMD GPUs."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._rules: PartitionRules | None = None
        self._changes = ModeChanges()
        self._divisible: PartitionableGpus | None = None
        self._topology = KfdReader(host)
        self._half_since: dict[str, float] = {}
        """The time since which a GPU is withheld because its nodes do not match its mode, by address."""
        self._rescan = False
        self._withheld: list[Exclusion] = []

    def withheld(self) -> Sequence[Exclusion]:
        """Return the GPUs and partitions of the last scan without what a container needs."""
        return [*self._withheld, *(self._divisible.withheld if self._divisible is not None else ())]

    def partition_by(self, rules: PartitionRules) -> None:
        """Take the rules by which GPUs can be divided by claims."""
        self._rules = rules

    def follow(self, changes: ModeChanges) -> None:
        """Set the record of GPUs that the agent currently partitions."""
        self._changes = changes
        self._topology.follow(changes)

    def counter_sets(self) -> Sequence[CounterSet]:
        """Return the counter sets of the GPUs that can be partitioned."""
        return self._divisible.counters if self._divisible is not None else []

    def faults(self) -> list[DeviceEvent]:
        """None: the driver counts errors, but has no events."""
        return []

    def lost_event_stream(self) -> bool:
        """Return once that a GPU appeared incomplete."""
        needs_rescan, self._rescan = self._rescan, False
        return (self._divisible is not None and self._divisible.needs_rescan()) or needs_rescan

    def devices(self, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> list[Device]:
        """Describe each GPU, or each of its partitions."""
        if self._divisible is None and self._rules is not None and self._rules.has_mode("amd"):
            self._divisible = PartitionableGpus(self._host, self._rules, self._changes, self._topology)
        divisible = self._divisible
        self._rescan = False
        self._withheld = []
        half_since, self._half_since = self._half_since, {}
        nodes = divisible.begin(functions, problems) if divisible is not None else self._topology.nodes(problems)
        modules = SysfsDir(self._host.sysfs / "module", problems)
        devices = []
        for function in functions:
            of_function = nodes.get(function.pci_address, [])
            driver_version = modules.text(f"{function.driver}/version") if function.driver else None
            of_all_modes = divisible.describe(function, driver_version, problems) if divisible is not None else None
            if of_all_modes is not None:
                devices += of_all_modes
            elif self._is_divided(function, of_function):
                parts = self._partitions(function, of_function, driver_version, problems)
                if not parts:
                    self._rescan_soon(function.pci_address, half_since)
                devices += parts
            else:
                builder = DeviceBuilder(self._host, function, "gpu", problems)
                describe_whole(builder, of_function[0] if of_function else None, driver_version)
                devices.append(builder.build())
        return devices

    def close(self) -> None:
        """Nothing is held."""

    def _rescan_soon(self, address: str, half_since: dict[str, float]) -> None:
        now = time.monotonic()
        self._half_since[address] = since = half_since.get(address, now)
        self._rescan = self._rescan or now - since < SETTLE_TIMEOUT_S

    def _is_divided(self, function: PciFunction, nodes: list[KfdNode]) -> bool:
        """Return True if a GPU is several devices; a guest's virtual function is one, in every mode of its host."""
        files = pci_files(self._host, function, [])
        is_switchable = files.text("available_compute_partition") is not None
        return len(nodes) > 1 or (is_switchable and known_mode(files, COMPUTE_MODE) not in (None, WHOLE))

    def _partitions(
        self, function: PciFunction, nodes: list[KfdNode], driver_version: str | None, problems: list[Diagnostic]
    ) -> list[Device]:
        files = pci_files(self._host, function, problems)
        mode = known_mode(files, COMPUTE_MODE)
        if mode is not None and not matches_mode(nodes, mode):
            # Neither the whole GPU nor a part of it: the rest would be offered with the memory of the whole GPU.
            withhold_incomplete(function, die_count(nodes), die_count(nodes), problems, self._withheld)
            return []
        mode = mode or _mode(nodes)
        profile = "-".join(
            part.lower() for part in (mode, known_mode(files, "current_memory_partition")) if part is not None
        )
        renders = self._xcp_nodes(problems)
        total = files.number("mem_info_vram_total")
        devices = []
        for index, node in enumerate(nodes):
            builder = DeviceBuilder(self._host, function, "gpu", problems, ((mode or "xcp").lower(), index))
            builder.set("type", "partition")
            builder.set("profile", profile)
            # The driver counts by blocks of the chip, which no partition has for itself.
            count_errors(builder)
            builder.set("uuid", node.uuid)
            builder.set("parentUUID", board_uuid(files, node))
            # KFD counts each partition's share for compute queues only; the render node is not held to it.
            builder.set("memoryEnforcement", "none")
            builder.add_identity(parent=device_name("gpu", function.pci_address))
            fill(builder, node, driver_version, mode)
            set_memory(builder, node.memory_bytes or (total // len(nodes) if total else None))
            if node.render_minor is None:
                reason = "KFD shows no render node of it, and ROCm opens both"
                self._withheld.append(
                    Exclusion(builder.name, reason, "incomplete-nodes", hint="check the kernel log (dmesg)")
                )
                continue
            render = f"renderD{node.render_minor}"
            own = function.drm is not None and function.drm.render == render
            card = function.drm.card if own and function.drm is not None else renders.get(render)
            add_drm_nodes(builder, card, render)
            devices.append(builder.build())
        return devices

    def _xcp_nodes(self, problems: list[Diagnostic]) -> dict[str, str]:
        """Return the card by render node, for partitions after the first: platform devices without a PCI address."""
        platform = SysfsDir(self._host.sysfs / "devices/platform", problems)
        cards = {}
        for name in platform.names():
            if name.startswith("amdgpu_xcp"):
                drm = platform.names(f"{name}/drm")
                card = next((node for node in drm if node.startswith("card")), None)
                render = next((node for node in drm if node.startswith("renderD")), None)
                if card is not None and render is not None:
                    cards[render] = card
        return cards


def _mode(nodes: list[KfdNode]) -> str | None:
    """One accelerator die per partition is CPX on every model; other modes cannot be distinguished."""
    return "CPX" if all(node.xcc_count == 1 for node in nodes) else None


def make(host: Host, settings: InventorySettings) -> AmdBackend:
    """Make the back end."""
    del settings
    return AmdBackend(host)

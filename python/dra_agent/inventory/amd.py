"""AMD GPUs and their partitions, from the amdgpu driver's sysfs files and the KFD topology; no library is loaded.

A GPU whose compute partition mode divides it is published as its partitions, in the mode that it is in now.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_agent.host import Host
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.device import Device, Problem, device_name
from dra_agent.inventory.draft import Draft, pci_files
from dra_agent.inventory.kfd import KfdNode, gpu_nodes
from dra_agent.inventory.plain import add_drm_nodes
from dra_agent.inventory.products import product_of
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.sysfs import Files
from dra_agent.topology.model import Device as Function


class AmdBackend:
    """Describes AMD GPUs."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def devices(self, functions: Sequence[Function], problems: list[Problem]) -> list[Device]:
        """Describe each GPU, or each of its partitions."""
        nodes = gpu_nodes(self._host, problems)
        modules = Files(self._host.sysfs / "module", problems)
        devices = []
        for function in functions:
            of_function = nodes.get(function.pci_address, [])
            driver_version = modules.text(f"{function.driver}/version") if function.driver else None
            if len(of_function) > 1:
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
        memory = draft.files.number("mem_info_vram_total")
        self._memory(draft, memory or (node.memory_bytes if node is not None else None))
        if function.drm is not None:
            add_drm_nodes(draft, function.drm.card, function.drm.render)
        if function.physfn is not None:
            draft.set("type", "vf")
            draft.set("memoryEnforcement", "vf")
            draft.identify(parent=device_name("gpu", function.physfn))

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

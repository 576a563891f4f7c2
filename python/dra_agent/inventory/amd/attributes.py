"""What amdgpu's sysfs files and KFD tell of a GPU, and of a partition of one."""

from __future__ import annotations

from dra_agent.inventory.amd.kfd import KfdNode
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.dmem import set_dmem_region
from dra_agent.inventory.generic import add_drm_nodes
from dra_agent.inventory.model import device_name
from dra_agent.inventory.products import product_of
from dra_agent.inventory.sysfs import SysfsDir


def describe_whole(draft: DeviceBuilder, node: KfdNode | None, driver_version: str | None) -> None:
    """Set what a GPU has as a whole; `node` is all of it as KFD shows it."""
    function = draft.function
    draft.set("uuid", uuid_of(draft.files, node))
    fill(draft, node, driver_version)
    count_errors(draft)
    memory = draft.files.number("mem_info_vram_total")
    set_memory(draft, memory or (node.memory_bytes if node is not None else None))
    if function.drm is not None:
        add_drm_nodes(draft, function.drm.card, function.drm.render)
    set_dmem_region(draft)
    if function.physfn is not None:
        draft.set("type", "vf")
        draft.set("memoryEnforcement", "vf")
        draft.add_identity(parent=device_name("gpu", function.physfn))


def fill(draft: DeviceBuilder, node: KfdNode | None, driver_version: str | None, mode: str | None = None) -> None:
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
    draft.add_identity(kfd=node.node_id)
    draft.node("/dev/kfd", "kfd")


def set_memory(draft: DeviceBuilder, amount: int | None) -> None:
    """Set the memory in bytes, where it is known."""
    if amount:
        draft.capacity["memory"] = Capacity.of_bytes(amount)


def uuid_of(files: SysfsDir, node: KfdNode | None) -> str | None:
    """Give the GPU's id as ROCR_VISIBLE_DEVICES takes it."""
    text = files.text("unique_id")
    if text is not None:
        return f"GPU-{text.lower().removeprefix('0x'):0>16}"
    return f"GPU-{node.unique_id:016x}" if node is not None and node.unique_id is not None else None


def count_errors(draft: DeviceBuilder) -> None:
    """Sum up the errors that the blocks of a GPU have counted (amdgpu RAS: lines "ue: N" and "ce: N")."""
    ras = draft.files.subdir("ras")
    blocks = [ras.key_values(name, ":") for name in ras.names() if name.endswith("_err_count")]

    def total(kind: str) -> int | None:
        known = [int(count) for block in blocks if (count := block.get(kind, "").strip()).isdecimal()]
        return sum(known) if known else None

    draft.memory_errors, draft.corrected_errors = total("ue"), total("ce")


def _brand(draft: DeviceBuilder) -> str | None:
    name = draft.attributes.get("productName")
    words = str(name.value).split() if name is not None else []
    return next((word for word in words if word in ("Instinct", "Radeon", "FirePro")), None)

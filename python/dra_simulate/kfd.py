"""AMD's compute topology, /sys/class/kfd: one node for each NUMA node, one for each GPU under amdgpu, and their links.

Keys follow the kernel's output (drivers/gpu/drm/amd/amdkfd/kfd_topology.c). A change of one GPU rebuilds the
directory of all nodes, as there: the removal of a GPU decrements the numbers after it, a new GPU is last.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from dra_simulate import system
from dra_simulate.machine import Function, Machine, NumaNode
from dra_simulate.roles.amd import AmdGpu
from dra_simulate.system import MAJORS
from dra_simulate.tree import File, Tree, replace_file

_KFD = "sys/devices/virtual/kfd/kfd"
NODES = f"{_KFD}/topology/nodes"
_GENERATION = f"{_KFD}/topology/generation_id"
_PCIE, _XGMI = 2, 11
_SYSTEM_HEAP, _PUBLIC_FRAME_BUFFER = 0, 1
_SIMD_PER_UNIT = 4
_PAGE_BYTES = 4096


class KfdState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The GPUs in the topology, and its generation."""

    gpus: dict[str, int] = {}
    """Nodes by address, in the order in which the GPUs came."""
    generation: int = 0


def arrivals(machine: Machine, before: KfdState) -> KfdState:
    """Return the state after a rebuild of the topology with the GPUs of `machine`."""
    now = {function.address: gpu.kfd_nodes for function, gpu in machine.with_role(AmdGpu)}
    stay = {address: nodes for address, nodes in before.gpus.items() if now.get(address) == nodes}
    gone = [nodes for address, nodes in before.gpus.items() if address not in stay]
    new = {address: nodes for address, nodes in now.items() if address not in stay}
    if not gone and not new:
        return before
    # kfd_topology_add_device and _remove_device count each node; the first generation is that of the CPUs.
    return KfdState({**stay, **new}, (before.generation or 1) + sum(gone) + sum(new.values()))


def departures(before: KfdState, after: KfdState) -> int:
    """Return how many nodes the kernel removes between two states, those of GPUs that change their mode among them."""
    return sum(nodes for address, nodes in before.gpus.items() if after.gpus.get(address) != nodes)


def plan(machine: Machine, state: KfdState, tree: Tree) -> None:
    """Add the topology where there are such GPUs."""
    gpus = {function.address: (function, gpu) for function, gpu in machine.with_role(AmdGpu)}
    if not gpus:
        return
    major = MAJORS["kfd"]
    tree.files(_KFD, {"dev": f"{major}:0", "uevent": f"MAJOR={major}\nMINOR=0\nDEVNAME=kfd"})
    tree.link(f"{_KFD}/subsystem", "sys/class/kfd")
    tree.link("sys/class/kfd/kfd", _KFD)
    tree.node("dev/kfd", major, 0)
    tree.directory(f"{_KFD}/proc")
    tree.file(f"{_KFD}/topology/system_properties", "platform_oem 35498446626881")
    numbers: dict[tuple[str, int], int] = {}
    for address in state.gpus:
        for partition in range(gpus[address][1].kfd_nodes):
            numbers[address, partition] = len(machine.nodes) + len(numbers)
    for number, node in enumerate(machine.nodes):
        _cpu_node(number, node, list(numbers.values()), tree)
    nodes = _numa_nodes(machine)
    for (address, partition), number in numbers.items():
        function, gpu = gpus[address]
        peers = [
            other for (of, _), other in numbers.items() if gpu.hive and of != address and gpus[of][1].hive == gpu.hive
        ]
        _gpu(function, gpu, partition, number, nodes.get(address, 0), peers, tree)
    # Last: nodes that are added are counted when all nodes are there again.
    tree.file(_GENERATION, state.generation)


def withdraw(planned: Tree, root: Path, removed: int) -> None:
    """Remove every node of a topology that is about to change, the first first (kfd_remove_sysfs_node_tree).

    `removed` of them do not come back; kfd_topology_remove_device counts them before the rebuild.
    """
    entry, file, folder = planned.entries.get(_GENERATION), root / _GENERATION, root / NODES
    is_current = isinstance(entry, File) and file.exists() and file.read_bytes() == entry.content
    if is_current or not folder.is_dir():
        return
    if removed and file.exists():
        replace_file(file, b"%d\n" % (int(file.read_bytes()) + removed))
    for number in sorted(int(node.name) for node in folder.iterdir()):
        shutil.rmtree(folder / str(number))


def is_node(path: str) -> bool:
    """Return True for a path in the directory of nodes."""
    return path.startswith(f"{NODES}/")


def _cpu_node(number: int, node: NumaNode, gpus: list[int], tree: Tree) -> None:
    folder = f"{NODES}/{number}"
    properties = {
        "cpu_cores_count": len(system.parse(node.cpus)),
        "simd_count": 0,
        "mem_banks_count": 1,
        "io_links_count": len(gpus),
        "gfx_target_version": 0,
        "vendor_id": 0,
        "device_id": 0,
        "location_id": 0,
        "domain": 0,
        "drm_render_minor": 0,
        "hive_id": 0,
    }
    tree.files(folder, {"gpu_id": 0, "name": "", "properties": _rows(properties)})
    _bank(folder, _SYSTEM_HEAP, node.memory_bytes, tree)
    for link, gpu in enumerate(gpus):
        _link(folder, link, _PCIE, number, gpu, 20, (0, 64000), tree)


def _gpu(
    function: Function, gpu: AmdGpu, partition: int, number: int, numa_node: int, peers: list[int], tree: Tree
) -> None:
    folder = f"{NODES}/{number}"
    domain, bus, rest = function.address.split(":")
    device, _, own_function = rest.partition(".")
    location = int(bus, 16) << 8 | int(device, 16) << 3 | int(own_function, 16)
    properties = {
        "cpu_cores_count": 0,
        "simd_count": gpu.compute_units * _SIMD_PER_UNIT // gpu.partitions,
        "mem_banks_count": 1,
        "caches_count": 0,
        "io_links_count": 1 + len(peers),
        "p2p_links_count": 0,
        "max_waves_per_simd": 8,
        "lds_size_in_kb": 64,
        "wave_front_size": 64,
        "array_count": 32 // gpu.partitions,
        "simd_per_cu": _SIMD_PER_UNIT,
        "gfx_target_version": gpu.gfx_version,
        "vendor_id": function.id.vendor,
        "device_id": function.id.device,
        # A partition's number is in the bits of the function: location_id |= node_id (kfd_topology_add_device).
        "location_id": location | partition,
        "domain": int(domain, 16),
        "drm_render_minor": gpu.render_of(partition),
        "hive_id": gpu.hive,
        "num_sdma_engines": 2,
        "num_cp_queues": 24,
        "max_engine_clk_fcompute": 2100,
        "local_mem_size": 0,
        "unique_id": gpu.kfd_id_of(partition),
        "num_xcc": gpu.dies // gpu.partitions,
    }
    tree.files(folder, {"gpu_id": gpu_id_of(gpu, partition), "name": "ip discovery", "properties": _rows(properties)})
    # Each partition has an equal share, rounded down to pages (amdgpu_amdkfd_xcp_memory_size).
    _bank(folder, _PUBLIC_FRAME_BUFFER, gpu.memory_bytes // gpu.partitions // _PAGE_BYTES * _PAGE_BYTES, tree)
    _link(folder, 0, _PCIE, number, numa_node, 20, (0, 64000), tree)
    # As in recordings of both: one link between whole GPUs, and between partitions of two GPUs no bandwidth.
    weight, bandwidth = (15, gpu.xgmi_bandwidth) if gpu.partitions == 1 else (41, 0)
    for link, peer in enumerate(peers, start=1):
        _link(folder, link, _XGMI, number, peer, weight, (bandwidth, bandwidth), tree)


def gpu_id_of(gpu: AmdGpu, partition: int = 0) -> int:
    """KFD's id of a GPU or partition in its lists of processes."""
    return ((gpu.unique_id or gpu.render) + partition) & 0xFFFF


def _bank(folder: str, heap: int, size: int, tree: Tree) -> None:
    properties = {"heap_type": heap, "size_in_bytes": size, "flags": 0, "width": 8192, "mem_clk_max": 1300}
    tree.file(f"{folder}/mem_banks/0/properties", _rows(properties))


def _link(
    folder: str, number: int, kind: int, start: int, end: int, weight: int, bandwidth: tuple[int, int], tree: Tree
) -> None:
    """Add a link; `bandwidth`: the least and the largest in MB/s."""
    properties = {
        "type": kind,
        "version_major": 0,
        "version_minor": 0,
        "node_from": start,
        "node_to": end,
        "weight": weight,
        "min_latency": 0,
        "max_latency": 0,
        "min_bandwidth": bandwidth[0],
        "max_bandwidth": bandwidth[1],
        "flags": 1,
    }
    tree.file(f"{folder}/io_links/{number}/properties", _rows(properties))


def _rows(properties: dict[str, int]) -> str:
    return "\n".join(f"{key} {value}" for key, value in properties.items())


def _numa_nodes(machine: Machine) -> dict[str, int]:
    return {
        inner.address: max(bridge.numa_node, 0)
        for bridge in machine.bridges
        for function in bridge.functions
        for inner in function.within()
    }

"""AMD's compute topology, /sys/class/kfd: one node for each NUMA node, one for each GPU under amdgpu, and their links.

Keys are those that the kernel prints (drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
"""

from __future__ import annotations

from dra_agent.simulate import system
from dra_agent.simulate.machine import Function, Machine, NumaNode
from dra_agent.simulate.roles.amd import AmdGpu
from dra_agent.simulate.system import MAJORS
from dra_agent.simulate.tree import Tree

_KFD = "sys/devices/virtual/kfd/kfd"
_PCIE, _XGMI = 2, 11
_SYSTEM_HEAP, _PUBLIC_FRAME_BUFFER = 0, 1
_SIMD_PER_UNIT = 4
_BEHIND_GPUS, _MOST_PARTITIONS = 64, 8
"""First number of nodes of partitions after the first; GPUs keep the numbers of their nodes."""


def plan(machine: Machine, tree: Tree) -> None:
    """Add the topology where there are such GPUs."""
    gpus = list(machine.with_role(AmdGpu))
    if not gpus:
        return
    major = MAJORS["kfd"]
    tree.files(_KFD, {"dev": f"{major}:0", "uevent": f"MAJOR={major}\nMINOR=0\nDEVNAME=kfd"})
    tree.link(f"{_KFD}/subsystem", "sys/class/kfd")
    tree.link("sys/class/kfd/kfd", _KFD)
    tree.node("dev/kfd", major, 0)
    tree.files(f"{_KFD}/topology", {"generation_id": 2, "system_properties": "platform_oem 35498446626881"})
    for number, node in enumerate(machine.nodes):
        _processor(number, node, [gpu.node for _, gpu in gpus], tree)
    nodes = _numa_nodes(machine)
    tree.directory(f"{_KFD}/proc")
    for function, gpu in gpus:
        others = [other for _, other in gpus if other is not gpu]
        for partition in range(gpu.partitions):
            _gpu(function, gpu, partition, nodes.get(function.address, 0), others, tree)


def _processor(number: int, node: NumaNode, gpus: list[int], tree: Tree) -> None:
    folder = f"{_KFD}/topology/nodes/{number}"
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
        _link(folder, link, _PCIE, number, gpu, 20, 64000, tree)


def _gpu(function: Function, gpu: AmdGpu, partition: int, numa_node: int, others: list[AmdGpu], tree: Tree) -> None:
    number_of_node = gpu.node if partition == 0 else _BEHIND_GPUS + _MOST_PARTITIONS * gpu.node + partition
    folder = f"{_KFD}/topology/nodes/{number_of_node}"
    domain, bus, rest = function.address.split(":")
    device, _, number = rest.partition(".")
    peers = [other for other in others if gpu.hive and other.hive == gpu.hive]
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
        "array_count": 32,
        "simd_per_cu": _SIMD_PER_UNIT,
        "gfx_target_version": gpu.gfx_version,
        "vendor_id": function.id.vendor,
        "device_id": function.id.device,
        # A partition counts itself in the function's number.
        "location_id": int(bus, 16) << 8 | int(device, 16) << 3 | int(number, 16) + partition,
        "domain": int(domain, 16),
        "drm_render_minor": gpu.render_of(partition),
        "hive_id": gpu.hive,
        "num_sdma_engines": 2,
        "num_cp_queues": 24,
        "max_engine_clk_fcompute": 2100,
        "local_mem_size": 0,
        "unique_id": gpu.unique_id,
        "num_xcc": gpu.dies // gpu.partitions,
    }
    gpu_id = gpu_id_of(gpu, partition)
    tree.files(folder, {"gpu_id": gpu_id, "name": "ip discovery", "properties": _rows(properties)})
    _bank(folder, _PUBLIC_FRAME_BUFFER, gpu.memory_bytes // gpu.partitions, tree)
    _link(folder, 0, _PCIE, number_of_node, numa_node, 20, 64000, tree)
    for link, peer in enumerate(peers, start=1):
        _link(folder, link, _XGMI, number_of_node, peer.node, 15, 64000, tree)


def gpu_id_of(gpu: AmdGpu, partition: int = 0) -> int:
    """What KFD calls a GPU or partition in its lists of processes."""
    return (gpu.unique_id + partition) & 0xFFFF


def _bank(folder: str, heap: int, size: int, tree: Tree) -> None:
    properties = {"heap_type": heap, "size_in_bytes": size, "flags": 0, "width": 8192, "mem_clk_max": 1300}
    tree.file(f"{folder}/mem_banks/0/properties", _rows(properties))


def _link(folder: str, number: int, kind: int, start: int, end: int, weight: int, bandwidth: int, tree: Tree) -> None:
    properties = {
        "type": kind,
        "version_major": 0,
        "version_minor": 0,
        "node_from": start,
        "node_to": end,
        "weight": weight,
        "min_latency": 0,
        "max_latency": 0,
        "min_bandwidth": 0,
        "max_bandwidth": bandwidth,
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

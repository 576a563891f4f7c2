"""Short texts about devices and memory, the same in both pictures."""

from __future__ import annotations

from collections import Counter

from dra_agent.topology.model import DeviceKind, Link, NumaNode, PciFunction, Topology

NOUNS = {
    DeviceKind.GPU: "GPU",
    DeviceKind.NIC: "NIC",
    DeviceKind.FPGA: "FPGA",
    DeviceKind.ACCELERATOR: "accelerator",
    DeviceKind.NVME: "NVMe drive",
    DeviceKind.OTHER: "other function",
}

_TIB, _GIB, _MIB = 1 << 40, 1 << 30, 1 << 20


def memory(size: int) -> str:
    """An amount of memory: "1.5 TiB", "46 GiB"."""
    for unit, name in ((_TIB, "TiB"), (_GIB, "GiB"), (_MIB, "MiB")):
        if size >= unit:
            amount = size / unit
            return f"{amount:.1f} {name}" if amount < 10 and unit == _TIB else f"{amount:.0f} {name}"
    return f"{size} B"


def link(found: Link | None) -> str:
    """A PCIe link: "PCIe 5 x16", and what it could be where it is less; empty where it is unknown."""
    if found is None:
        return ""
    now, best = _speed(found.generation, found.width), _speed(found.max_generation, found.max_width)
    if not now or not best or now == best:
        return f"PCIe {now or best}"
    return f"PCIe {now} of {best}"


def _speed(generation: int | None, width: int | None) -> str:
    return " ".join(part for part in (str(generation or ""), f"x{width}" if width else "") if part)


def host_names(device: PciFunction) -> list[str]:
    """The names that the rest of the host knows a device by: interfaces, RDMA devices, DRM and other nodes."""
    drm = [name for name in (device.drm.card, device.drm.render) if name] if device.drm else []
    vfio = [device.vfio] if device.vfio else []
    return [*device.net, *device.infiniband, *drm, *device.accel, *vfio]


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 GPU", "8 GPUs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def summary(topology: Topology) -> str:
    """What the host has, in one line: "2 NUMA nodes, 8 GPUs, 10 NICs"."""
    virtual = [device for device in topology.devices if device.physfn in topology.by_address]
    kinds = Counter(device.kind for device in topology.devices if device.physfn not in topology.by_address)
    parts = [count(len(topology.numa_nodes), "NUMA node")]
    parts += [count(kinds[kind], NOUNS[kind]) for kind in DeviceKind if kinds[kind]]
    if virtual:
        parts.append(count(len(virtual), "virtual function"))
    return ", ".join(parts)


def node_name(node: NumaNode | None) -> str:
    """The heading of a NUMA node, with its socket where that is known; None stands for no known node."""
    if node is None:
        return "NUMA node unknown"
    return f"NUMA node {node.id}" if node.socket is None else f"socket {node.socket}, NUMA node {node.id}"


def node_facts(node: NumaNode) -> list[str]:
    """The CPUs and the memory of a NUMA node."""
    most = 40
    cpus = node.cpus if len(node.cpus) <= most else node.cpus[:most].rsplit(",", 1)[0] + ",\u2026"
    facts = [f"CPUs {cpus}" if cpus else "no CPUs"]
    if node.memory_bytes is not None:
        facts.append(memory(node.memory_bytes))
    return facts

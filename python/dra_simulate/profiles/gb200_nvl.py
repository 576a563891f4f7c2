"""A compute tray of a GB200 NVL72: four GPUs of an NVLink fabric over many hosts, and two Grace CPUs.

Every device has its own PCI domain. The memory of each GPU is a NUMA node without CPUs, with seven more that are
reserved for its MIG instances; the GPU's own `numa_node` is that of its CPU.
"""

from __future__ import annotations

from dra_simulate.machine import Function, HostBridge, Machine, NumaNode, NvidiaDriver, PciId
from dra_simulate.mig_models import GB200_LATER_DRIVER as GB200
from dra_simulate.parts.bridges import MELLANOX_SWITCH, nvme, port, switch, uuid
from dra_simulate.parts.network import bluefield3, connectx7
from dra_simulate.parts.nvidia import gpu
from dra_simulate.roles.nvidia import FAR_SWITCH

NAME = "gb200-nvl"
_GIB = 1 << 30
_GRACE_PORT = PciId(0x10DE, 0x22B1, 0x060400)
_GPU_DOMAINS = (0x08, 0x09, 0x18, 0x19)
_ADAPTER_DOMAINS = (0x00, 0x02, 0x10, 0x12)
_ADAPTER_NUMBERS = (0, 1, 4, 5)
_NODES_PER_GPU = 8
_LINKS = (FAR_SWITCH,) * 18
_FABRIC = (uuid(NAME, "cluster", 0), 32766)


def _root(domain: int, *functions: Function) -> HostBridge:
    """A root port of a Grace CPU; domains from 0x10 on belong to the second one."""
    name = f"{domain:04x}:00"
    return HostBridge(f"pci{name}", domain >> 4, (port(f"{name}:00.0", *functions, id=_GRACE_PORT),))


def _adapter(which: int) -> HostBridge:
    domain = _ADAPTER_DOMAINS[which]
    number = _ADAPTER_NUMBERS[which]
    name = f"ibP{domain}p3s0" if domain else "ibp3s0"
    adapter = connectx7(f"{domain:04x}:03:00.0", number, name, 10 + which, machine=NAME)
    return _root(domain, switch(1, adapter, id=MELLANOX_SWITCH, domain=domain))


def _smart_nic(domain: int, number: int, index: int) -> HostBridge:
    ports = bluefield3(f"{domain:04x}:03:00", number, index, machine=NAME)
    inner = port(f"{domain:04x}:02:00.0", *ports, id=MELLANOX_SWITCH)
    return _root(domain, port(f"{domain:04x}:01:00.0", inner, id=MELLANOX_SWITCH))


def _nodes() -> tuple[NumaNode, ...]:
    """The CPUs' nodes, then eight for each GPU: the first one holds its memory."""
    count = 2 + _NODES_PER_GPU * len(_GPU_DOMAINS)

    def socket(node: int) -> int:
        return node if node < 2 else (node - 2) // (2 * _NODES_PER_GPU)

    def distance(one: int, other: int) -> int:
        if one == other:
            return 10
        if one >= 2 and other >= 2:
            return 255
        between = 0 if one < 2 and other < 2 else 80
        return between + (40 if socket(one) != socket(other) else 0)

    def node(number: int) -> NumaNode:
        distances = tuple(distance(number, other) for other in range(count))
        if number < 2:
            return NumaNode(("0-71", "72-143")[number], 480 * _GIB, distances)
        memory = GB200.memory_bytes if (number - 2) % _NODES_PER_GPU == 0 else 0
        return NumaNode("", memory, distances)

    return tuple(node(number) for number in range(count))


def machine() -> Machine:
    """The machine."""
    gpus = tuple(
        _root(domain, gpu(f"{domain:04x}:01:00.0", GB200, minor, machine=NAME, nvlinks=_LINKS, fabric=_FABRIC))
        for minor, domain in enumerate(_GPU_DOMAINS)
    )
    adapters = tuple(_adapter(which) for which in range(4))
    drives = tuple(
        _root(domain, nvme(f"{domain:04x}:01:00.0", number, generation=5)) for number, domain in enumerate((0x05, 0x15))
    )
    smart_nics = (_smart_nic(0x06, 2, 20), _smart_nic(0x16, 6, 30))
    return Machine(
        name=NAME,
        description="4 x GB200 186GB, 4 ConnectX-7 InfiniBand, 2 BlueField-3 (2 ports), 2 Grace CPUs, 34 NUMA nodes",
        source="addresses: nvidia-smi of GB200 trays, NVIDIA Mission Control port table; NUMA, switches: assumed",
        nodes=_nodes(),
        bridges=tuple(sorted((*gpus, *adapters, *drives, *smart_nics), key=lambda bridge: bridge.name)),
        modules={"mlx5_core": "24.10-1.1.4"},
        nvidia=NvidiaDriver("580.126.16", 13000),
    )

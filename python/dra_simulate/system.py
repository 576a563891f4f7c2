"""Files of the whole host: CPUs, NUMA nodes, kernel modules, and the few files of /proc that tools read."""

from __future__ import annotations

from functools import cache

from dra_simulate.machine import Machine, NumaNode
from dra_simulate.tree import Tree

CHARACTER_MAJORS = {
    1: "mem",
    10: "misc",
    120: "apex",
    121: "hailo",
    122: "memx",
    123: "mxcd",
    124: "mtgpu",
    125: "mkfd",
    126: "cxi_user",
    127: "hfi1_user",
    195: "nvidia",
    226: "drm",
    231: "infiniband_verbs",
    235: "uio",
    236: "kfd",
    240: "vfio",
    242: "dfl",
    243: "neuron",
    244: "nvme",
    245: "ami",
    246: "qat_adf_ctl",
    248: "xclmgmt",
    261: "accel",
    508: "nvidia-nvswitch",
    509: "nvidia-caps-imex-channels",
    510: "nvidia-caps",
    511: "nvidia-uvm",
}
"""Major numbers of simulated character devices (the kernel's devices.txt assigns only some)."""

MAJORS = {name: major for major, name in CHARACTER_MAJORS.items()}


def plan(machine: Machine, tree: Tree) -> None:
    """Add CPUs, NUMA nodes, module versions and /proc basics."""
    cpus = text(every(machine))
    for name in ("online", "possible", "present"):
        tree.file(f"sys/devices/system/cpu/{name}", cpus)
    for number, node in enumerate(machine.nodes):
        _numa_node(number, node, tree)
    nodes = dict(enumerate(machine.nodes))
    with_cpus = frozenset(number for number, node in nodes.items() if node.cpus)
    with_memory = frozenset(number for number, node in nodes.items() if node.memory_bytes)
    for names, numbers in (
        (("online", "possible"), frozenset(nodes)),
        (("has_cpu",), with_cpus),
        (("has_memory", "has_normal_memory"), with_memory),
    ):
        for name in names:
            tree.file(f"sys/devices/system/node/{name}", text(numbers))
    for module, version in machine.modules.items():
        tree.file(f"sys/module/{module}/version", version)
    rows = "".join(f"{major:3d} {name}\n" for major, name in CHARACTER_MAJORS.items())
    tree.file("proc/devices", f"Character devices:\n{rows}\nBlock devices:\n259 blkext".encode() + b"\n")
    total = sum(node.memory_bytes for node in machine.nodes) // 1024
    tree.file("proc/meminfo", f"MemTotal:       {total} kB\nMemFree:        {total} kB")
    tree.node("dev/null", 1, 3)


def _numa_node(number: int, node: NumaNode, tree: Tree) -> None:
    folder = f"sys/devices/system/node/node{number}"
    cpus = parse(node.cpus)
    kibibytes = node.memory_bytes // 1024
    tree.files(
        folder,
        {
            "cpulist": text(cpus),
            "cpumap": mask(cpus),
            "distance": " ".join(map(str, node.distances)),
            "meminfo": f"Node {number} MemTotal:       {kibibytes} kB\nNode {number} MemFree:        {kibibytes} kB",
        },
    )
    tree.link(f"sys/bus/node/devices/node{number}", folder)
    for cpu in cpus:
        tree.files(
            f"sys/devices/system/cpu/cpu{cpu}/topology",
            {
                "core_cpus": mask(frozenset({cpu})),
                "package_cpus": mask(cpus),
                "physical_package_id": number,
            },
        )


@cache
def parse(text: str) -> frozenset[int]:
    """`0-3,8` as a set."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


@cache
def text(cpus: frozenset[int]) -> str:
    """A set as ranges."""
    ranges: list[tuple[int, int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


@cache
def mask(cpus: frozenset[int]) -> str:
    """A set as comma-separated 32-bit words, highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    words = max(1, -(-bits.bit_length() // 32))
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def every(machine: Machine) -> frozenset[int]:
    """Return all CPUs of a machine."""
    return frozenset().union(*(parse(node.cpus) for node in machine.nodes))


def local(machine: Machine, numa_node: int) -> frozenset[int]:
    """Return the CPUs near a device on that node: all of them for node -1."""
    return parse(machine.nodes[numa_node].cpus) if numa_node >= 0 else every(machine)


def words(cpus: frozenset[int]) -> tuple[int, ...]:
    """A set as 64-bit words, lowest first, as NVML returns affinities."""
    bits = sum(1 << cpu for cpu in cpus)
    return tuple(bits >> 64 * word & 0xFFFF_FFFF_FFFF_FFFF for word in range(-(-bits.bit_length() // 64)))

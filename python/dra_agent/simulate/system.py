"""What belongs to the whole host: processors, NUMA nodes, kernel modules, the few files of /proc that tools want."""

from __future__ import annotations

from dra_agent.simulate import cpulist
from dra_agent.simulate.machine import Machine, NumaNode
from dra_agent.simulate.tree import Tree

CHARACTER_MAJORS = {
    1: "mem",
    10: "misc",
    195: "nvidia",
    226: "drm",
    231: "infiniband_verbs",
    236: "kfd",
    240: "vfio",
    242: "dfl",
    244: "nvme",
    248: "xclmgmt",
    261: "accel",
    508: "nvidia-nvswitch",
    509: "nvidia-caps-imex-channels",
    510: "nvidia-caps",
    511: "nvidia-uvm",
}
"""Major numbers of character devices as this simulation gives them out (the kernel's devices.txt fixes only some)."""

MAJORS = {name: major for major, name in CHARACTER_MAJORS.items()}


def plan(machine: Machine, tree: Tree) -> None:
    """Add processors, NUMA nodes, module versions and /proc basics."""
    cpus = cpulist.text(cpulist.every(machine))
    for name in ("online", "possible", "present"):
        tree.file(f"sys/devices/system/cpu/{name}", cpus)
    for number, node in enumerate(machine.nodes):
        _numa_node(number, node, tree)
    nodes = cpulist.text(frozenset(range(len(machine.nodes))))
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        tree.file(f"sys/devices/system/node/{name}", nodes)
    for module, version in machine.modules.items():
        tree.file(f"sys/module/{module}/version", version)
    rows = "".join(f"{major:3d} {name}\n" for major, name in CHARACTER_MAJORS.items())
    tree.file("proc/devices", f"Character devices:\n{rows}\nBlock devices:\n259 blkext".encode() + b"\n")
    total = sum(node.memory_bytes for node in machine.nodes) // 1024
    tree.file("proc/meminfo", f"MemTotal:       {total} kB\nMemFree:        {total} kB")
    tree.node("dev/null", 1, 3)


def _numa_node(number: int, node: NumaNode, tree: Tree) -> None:
    folder = f"sys/devices/system/node/node{number}"
    cpus = cpulist.parse(node.cpus)
    kibibytes = node.memory_bytes // 1024
    tree.files(
        folder,
        {
            "cpulist": cpulist.text(cpus),
            "cpumap": cpulist.mask(cpus),
            "distance": " ".join(map(str, node.distances)),
            "meminfo": f"Node {number} MemTotal:       {kibibytes} kB\nNode {number} MemFree:        {kibibytes} kB",
        },
    )
    tree.link(f"sys/bus/node/devices/node{number}", folder)
    for cpu in cpus:
        tree.files(
            f"sys/devices/system/cpu/cpu{cpu}/topology",
            {
                "core_cpus": cpulist.mask(frozenset({cpu})),
                "package_cpus": cpulist.mask(cpus),
                "physical_package_id": number,
            },
        )

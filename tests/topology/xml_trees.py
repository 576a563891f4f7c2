"""Converts topology files of real machines (XML of lstopo and NCCL) to sysfs trees that can be scanned."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET  # Recorded files of this test suite, not untrusted input.
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Function:
    """One PCI function and the functions below it."""

    address: str
    class_code: int
    vendor: int = 0
    device: int = 0
    subsystem: tuple[int, int] = (0, 0)
    link: tuple[str, int] | None = None
    children: list[Function] = field(default_factory=list)


@dataclass
class Root:
    """One host bridge."""

    bus: str
    numa_node: int
    children: list[Function]


class Tree:
    """A sysfs below `root`, with the layout of the kernel."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)

    def write(self, location: str, content: str) -> None:
        path = self.root / location
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")

    def add_nodes(self, nodes: dict[int, str]) -> None:
        for node, cpus in nodes.items():
            self.write(f"devices/system/node/node{node}/cpulist", cpus)
            distances = " ".join("10" if other == node else "21" for other in nodes)
            self.write(f"devices/system/node/node{node}/distance", distances)

    def add_root(self, root: Root) -> None:
        for function in root.children:
            self._add(f"devices/pci{root.bus}", function, root.numa_node)

    def _add(self, parent: str, function: Function, node: int) -> None:
        location = f"{parent}/{function.address}"
        vendor, device = function.vendor, function.device
        self.write(f"{location}/class", f"0x{function.class_code:06x}")
        self.write(f"{location}/vendor", f"0x{vendor:04x}")
        self.write(f"{location}/device", f"0x{device:04x}")
        self.write(f"{location}/numa_node", str(node))
        ids = "PCI_SUBSYS_ID={:04X}:{:04X}".format(*function.subsystem)
        self.write(f"{location}/uevent", f"PCI_CLASS={function.class_code:X}\nPCI_ID={vendor:04X}:{device:04X}\n{ids}")
        if function.link:
            speed, width = function.link
            for which in ("current", "max"):
                self.write(f"{location}/{which}_link_speed", speed)
                self.write(f"{location}/{which}_link_width", str(width))
        (self.root / "bus/pci/devices" / function.address).symlink_to(f"../../../{location}")
        for inner in function.children:
            self._add(location, inner, node)


def from_lstopo(xml: Path, root: Path) -> None:
    """Convert XML of lstopo, which has every bridge with its own address."""
    tree = Tree(root)
    machine = ET.parse(xml).getroot()
    nodes: dict[int, str] = {}
    for package in machine.iter("object"):
        if package.get("type") == "NUMANode":
            nodes[int(package.get("os_index", "0"))] = _cpulist(package.get("cpuset", "0"))
    tree.add_nodes(nodes)

    def walk(element: ET.Element, node: int) -> None:
        own = [child for child in element.findall("object") if child.get("type") == "NUMANode"]
        node = int(own[0].get("os_index", "0")) if own else node
        for child in element.findall("object"):
            if child.get("type") == "Bridge" and child.get("bridge_type") == "0-1":
                functions = [_from_object(inner) for inner in child.findall("object")]
                bus = re.match(r"([0-9a-f]+):\[([0-9a-f]{2})", child.get("bridge_pci", ""))
                assert bus is not None
                tree.add_root(Root(f"{bus[1]}:{bus[2]}", node, functions))
            else:
                walk(child, node)

    walk(machine, -1)


def _from_object(element: ET.Element) -> Function:
    kind = element.get("pci_type", "")
    code, vendor, device, subvendor, subdevice, _, interface = re.findall(r"[0-9a-f]{2,4}", kind)
    children = [_from_object(child) for child in element.findall("object") if child.get("type") in ("Bridge", "PCIDev")]
    return Function(
        address=element.get("pci_busid", ""),
        class_code=int(code, 16) << 8 | int(interface, 16),
        vendor=int(vendor, 16),
        device=int(device, 16),
        subsystem=(int(subvendor, 16), int(subdevice, 16)),
        children=children,
    )


def from_nccl(xml: Path, root: Path) -> None:
    """Convert XML of NCCL, which shows a switch as one element, its upstream port; the omitted ports are added.

    A root port is added above each outermost element, and a downstream port above each element below a switch. Their
    addresses are on buses from f000 upwards, a domain that no recorded machine has.
    """
    tree = Tree(root)
    system = ET.parse(xml).getroot()
    cpus = system.findall("cpu")
    tree.add_nodes({int(cpu.get("numaid", "0")): _cpulist(cpu.get("affinity", "0")) for cpu in cpus})
    added = 0

    def port() -> str:
        nonlocal added
        added += 1
        return f"f{added // 4096:03x}:{added // 16 % 256:02x}:{added % 16:02x}.0"

    def function(element: ET.Element) -> Function:
        children = [Function(port(), 0x060400, children=[function(child)]) for child in element.findall("pci")]
        width = int(element.get("link_width", "0"))
        return Function(
            address=element.get("busid", ""),
            class_code=int(element.get("class", "0"), 16),
            vendor=int(element.get("vendor", "0"), 16),
            device=int(element.get("device", "0"), 16),
            subsystem=(int(element.get("subsystem_vendor", "0"), 16), int(element.get("subsystem_device", "0"), 16)),
            link=(element.get("link_speed", ""), width) if width else None,
            children=children,
        )

    for cpu in cpus:
        node = int(cpu.get("numaid", "0"))
        for number, element in enumerate(cpu.findall("pci")):
            bus = f"{node:04x}:{number:02x}"
            tree.add_root(Root(bus, node, [Function(port(), 0x060400, children=[function(element)])]))


def _cpulist(mask: str) -> str:
    """Convert a CPU mask, in words of 32 bits separated by commas, to the list format of the kernel."""
    bits = int("".join(word.removeprefix("0x").zfill(8) for word in mask.split(",")), 16)
    text = "".join("x" if bits >> cpu & 1 else " " for cpu in range(bits.bit_length()))
    return ",".join(
        f"{run.start()}-{run.end() - 1}" if len(run[0]) > 1 else str(run.start()) for run in re.finditer("x+", text)
    )

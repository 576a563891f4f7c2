"""The terminal tree and the SVG: complete, valid, and safe with any name of a damaged host."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dra_simulate
from dra_agent.topology import DeviceKind, NumaNode, PciFunction, ScanProblem, Topology, scan, svg, tree
from dra_agent.topology.display_tree import TreeNode, build_tree, switches
from dra_agent.topology.pci_ids import PciIds
from dra_agent.topology.svg_card import FREE, DeviceMark
from dra_agent.topology.svg_layout import Box, arrange
from topology.conftest import Machine

NO_NAMES = PciIds(b"")
SVG = "{http://www.w3.org/2000/svg}"
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
PCI_IDS = b"""\
# comment
1bcf  NEC Corporation
\t001c  Vector Engine 1.0
\t\t1bcf 0001  a board
10de  NVIDIA Corporation
# a comment among products
\t2330  GH100 [H100 SXM5 80GB]
\t2331  GH100 [H100 PCIe]
15b3  Mellanox Technologies
\t1021  MT2910 Family [ConnectX-7]
"""


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    return scan(dra_simulate.build("dgx-h100", tmp_path_factory.mktemp("dgx") / "host"))


def text(topology: Topology, **options: Any) -> str:
    from rich.console import Console

    console = Console(width=400, no_color=True)
    with console.capture() as capture:
        console.print(tree.draw(topology, **{"names": PciIds(PCI_IDS), **options}), highlight=False)
    return capture.get()


def texts(picture: str) -> Iterator[str]:
    for element in ET.fromstring(picture).iter():
        if element.text:
            yield element.text


def fake_function(number: int, **facts: object) -> PciFunction:
    document: dict[str, object] = {
        "pci_address": f"0000:{number:02x}:00.0", "kind": "nic", "class": "0x020000", "vendor_id": "0x15b3",
        "device_id": "0x1021", "subsystem_vendor": None, "subsystem_device": None, "revision": None, "numa_node": 0,
        "numa_source": "device", "pcie_root": "pci0000:00", "parents": [], "pcie_switch": None, "driver": None,
        "iommu_group": None, "link": None, "sriov": None, "physfn": None, "virtfns": [], "net": [], "infiniband": [],
        "uverbs": [], "drm": None, "accel": [], "kfd": None, "vfio": None,
        "card_link": None, "noiommu": False, "uio": [], "mdevs": None, "invalid_names": [],
    }  # fmt: skip
    return msgspec.convert({**document, **facts}, PciFunction)


def fake_topology(*devices: PciFunction, nodes: int = 1) -> Topology:
    numa = [NumaNode(node, None, "0-7", 1 << 36, (10,) * nodes) for node in range(nodes)]
    return Topology(tuple(numa), devices, {}, ())


def test_the_tree_shows_every_relevant_device_at_its_place(dgx: Topology) -> None:
    lines = text(dgx, names=PciIds(PCI_IDS)).splitlines()
    assert lines[0] == "2 NUMA nodes, 8 GPUs, 10 NICs, 10 NVMe drives, 62 other functions"
    for device in dgx.relevant:
        [line] = [line for line in lines if device.pci_address in line]
        assert f"{device.vendor_id[2:]}:{device.device_id[2:]}" in line
        assert (device.driver or "no driver") in line
    gpu = next(device for device in dgx.relevant if device.kind is DeviceKind.GPU)
    at = next(number for number, line in enumerate(lines) if gpu.pci_address in line)
    assert "NVIDIA H100 SXM5 80GB" in lines[at]
    assert "PCIe 5 x16" in lines[at]
    assert any(f"switch {gpu.pcie_switch}" in line for line in lines[:at])
    # Holders are unknown, so no device is shown as free.
    assert not any("free" in line or "held" in line for line in lines)


def test_holders_are_shown_in_the_tree_and_the_svg(dgx: Topology) -> None:
    held, free = [device.pci_address for device in dgx.relevant if device.kind is DeviceKind.GPU][:2]
    holders = {held: ["team-a/train", "team-b/notebook"]}
    lines = text(dgx, holders=holders, names=NO_NAMES).splitlines()
    assert next(line for line in lines if held in line).endswith("held by team-a/train, team-b/notebook")
    assert next(line for line in lines if free in line).endswith("free")
    shown = list(texts(svg.draw(dgx, title="dgx", holders=holders, names=NO_NAMES)))
    assert "team-a/train +1" in shown
    drives = [device for device in dgx.relevant if device.kind is DeviceKind.NVME]
    assert shown.count("free") == len(dgx.relevant) - len(drives) - 1
    assert not any("free" in line for line in lines for drive in drives if drive.pci_address in line)


def test_utilization_and_taints_are_marked_at_their_device(dgx: Topology) -> None:
    busy, idle, tainted = [device.pci_address for device in dgx.relevant if device.kind is DeviceKind.GPU][:3]
    marks = {
        busy: DeviceMark(utilization_ratio=0.6),
        idle: DeviceMark(utilization_ratio=0.0),
        tainted: DeviceMark(utilization_ratio=7.0, taints=("dra-agent.internal/xid-79:NoSchedule",)),
    }
    cards = cards_of(svg.draw(dgx, title="dgx", holders={}, names=NO_NAMES, marks=marks))
    assert {address: filled_parts(card) for address, card in cards.items() if filled_parts(card) is not None} == {
        busy: (3, 4),
        idle: (0, 4),
        tainted: (4, 4),
    }
    assert "utilization up to 75 %" in "\n".join(texts(cards[busy]))
    assert "utilization 0 %" in "\n".join(texts(cards[idle]))
    assert [address for address, card in cards.items() if "\u26a0" in texts(card)] == [tainted]
    assert "taint dra-agent.internal/xid-79:NoSchedule" in "\n".join(texts(cards[tainted]))


def test_a_bar_changes_with_its_level_only(dgx: Topology) -> None:
    gpu = next(device.pci_address for device in dgx.relevant if device.kind is DeviceKind.GPU)

    def picture(ratio: float) -> str:
        marks = {gpu: DeviceMark(utilization_ratio=ratio)}
        return svg.draw(dgx, title="dgx", names=NO_NAMES, marks=marks)

    assert picture(0.76) == picture(0.99) == picture(1.0) != picture(0.75)
    assert picture(0.0) != picture(0.01)


def test_a_picture_explains_only_the_marks_that_it_has(dgx: Topology) -> None:
    gpu = next(device.pci_address for device in dgx.relevant if device.kind is DeviceKind.GPU)
    plain = set(texts(svg.draw(dgx, title="dgx", names=NO_NAMES)))
    assert not {"utilization", "\u26a0 tainted"} & plain
    marks = {gpu: DeviceMark(utilization_ratio=0.5, taints=("a:NoExecute",))}
    assert {"utilization", "\u26a0 tainted"} <= set(texts(svg.draw(dgx, title="dgx", names=NO_NAMES, marks=marks)))


def cards_of(picture: str) -> dict[str, str]:
    """Return the cards of devices by PCI address."""
    groups = [ET.tostring(group, encoding="unicode") for group in ET.fromstring(picture).iter(f"{SVG}g")]
    return {next(text for text in texts(one) if ADDRESS.fullmatch(text)): one for one in groups if "kind" in one}


def filled_parts(card: str) -> tuple[int, int] | None:
    """Return how many parts of the bar of a card are filled, and how many there are."""
    parts = [one.get("fill") for one in ET.fromstring(card).iter(f"{SVG}rect") if one.get("height") == "4"]
    return (sum(fill != FREE for fill in parts), len(parts)) if parts else None


def test_the_svg_is_valid_and_self_contained(dgx: Topology) -> None:
    picture = svg.draw(dgx, title='a <host> & its "devices"', holders={}, names=NO_NAMES)
    root = ET.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert 'a <host> & its "devices"' in texts(picture)
    for forbidden in ("http", "@import", "url(", "<image", "<script", "href"):
        assert forbidden not in picture.replace("http://www.w3.org/2000/svg", "")
    shown = set(texts(picture))
    for device in dgx.relevant:
        assert device.pci_address in shown
    for node in dgx.numa_nodes:
        assert any(f"NUMA node {node.id}" in line for line in shown)
    assert {device.pcie_root for device in dgx.relevant} <= shown
    assert {f"switch {device.pcie_switch}" for device in dgx.relevant if device.pcie_switch} <= shown


def test_boxes_are_nested_and_do_not_overlap(dgx: Topology, machine: Machine) -> None:
    recorded = scan(machine("hwloc-8ve"))
    for topology in (dgx, recorded):
        boxes = arrange(build_tree(topology), with_holders=True)
        assert_no_overlap(boxes)
        for outer in (box for top in boxes for box in top.walk()):
            assert_no_overlap(outer.inner)
            for inner in outer.inner:
                assert outer.x < inner.x
                assert outer.y < inner.y
                assert inner.x + inner.width < outer.x + outer.width
                assert inner.y + inner.height < outer.y + outer.height


def assert_no_overlap(boxes: list[Box]) -> None:
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            assert (
                one.x + one.width <= other.x
                or other.x + other.width <= one.x
                or one.y + one.height <= other.y
                or other.y + other.height <= one.y
            )


def test_names_of_a_damaged_host_are_escaped() -> None:
    hostile = "\x1b[31m<script>\x00&\ud800".encode("utf-8", "replace").decode() + "[bold]" + "x" * 300
    topology = msgspec.structs.replace(
        fake_topology(fake_function(1, net=[hostile], driver=hostile)),
        problems=tuple(ScanProblem(f"{hostile}{number}", hostile) for number in range(9)),
    )
    marks = {"0000:01:00.0": DeviceMark(taints=(hostile,))}
    picture = svg.draw(topology, title=hostile, holders={"0000:01:00.0": [hostile]}, names=NO_NAMES, marks=marks)
    ET.fromstring(picture)
    assert "<script>" not in picture
    assert "and 3 problems more" in texts(picture)
    assert "[bold]" in text(topology, names=NO_NAMES), "names are not markup"


def test_characters_that_change_the_direction_of_text_are_visible() -> None:
    topology = fake_topology(fake_function(1, driver="\u202edriver\u2066"))
    picture = svg.draw(topology, title="\u202etitle", holders={"0000:01:00.0": ["team/\u202etrain"]}, names=NO_NAMES)
    assert "\\u202etitle" in picture and "team/\\u202etrain" in picture
    assert not set("\u202e\u2066") & set(picture)


def test_hosts_with_few_devices_are_drawn(tmp_path: Path) -> None:
    empty = Topology((), (), {}, ())
    unknown = fake_topology(fake_function(1, numa_node=None), fake_function(2, numa_node=7))
    for topology in (empty, unknown, fake_topology(nodes=8)):
        ET.fromstring(svg.draw(topology, title="host", names=NO_NAMES))
        assert text(topology, names=NO_NAMES)
    assert "NUMA node unknown" in text(unknown, names=NO_NAMES)
    assert "0000:02:00.0" in text(unknown, names=NO_NAMES)


def test_virtual_functions_are_grouped_below_their_device() -> None:
    functions = [fake_function(0x10 + number, physfn="0000:01:00.0") for number in range(20)]
    topology = fake_topology(fake_function(1), *functions)
    held = {functions[3].pci_address: ["team-a/vf"]}
    lines = text(topology, holders=held, names=NO_NAMES)
    assert "19 free virtual functions" in lines
    assert functions[3].pci_address in lines
    assert functions[4].pci_address not in lines
    picture = svg.draw(topology, title="host", holders=held, names=NO_NAMES)
    assert "20 VFs" in texts(picture)
    assert any("held by team-a/vf" in line for line in texts(picture))


def test_switches_inside_a_card_are_omitted() -> None:
    ports = ["0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"]
    gpu = fake_function(5, kind="gpu", parents=ports, pcie_switch=ports[1])
    nic = fake_function(6, parents=[*ports[:2], "0000:02:01.0"], pcie_switch=ports[1])
    assert switches(gpu) == (ports[1], ports[3])
    [node] = build_tree(fake_topology(gpu, nic))
    [root] = node.branches
    [switch] = root.branches
    assert (switch.name, switch.branches) == (ports[1], [])
    assert [leaf.device for leaf in switch.leaves] == [gpu, nic]
    # With another device at the inner switch, the switch is shown.
    twin = fake_function(7, kind="gpu", parents=ports, pcie_switch=ports[1])
    inner: TreeNode = build_tree(fake_topology(gpu, nic, twin))[0].branches[0].branches[0]
    assert [branch.name for branch in inner.branches] == [ports[3]]


def test_products_are_named_by_pci_ids() -> None:
    names = PciIds(b"\n" + PCI_IDS)
    assert names.product("0x10de", "0x2331") == "GH100 [H100 PCIe]"
    assert names.product("0x10de", "0x001c") is None, "a product of another vendor"
    assert names.product("0x1bcf", "0x0001") is None, "a board id is not a product id"
    assert names.product("0xdead", "0x2331") is None
    assert names.short(fake_function(1)) == "Mellanox ConnectX-7"
    assert NO_NAMES.short(fake_function(1)) == "Mellanox 15b3:1021"
    assert NO_NAMES.short(fake_function(1, vendor_id="0xdead")) == "dead:1021"


@pytest.mark.parametrize("width", [80, 120])
def test_a_narrow_terminal_gets_a_line_for_each_device(dgx: Topology, width: int) -> None:
    held = {device.pci_address: ["default/a-claim"] for device in dgx.relevant if device.kind == DeviceKind.GPU}
    narrow = text(dgx, holders=held, width=width).splitlines()
    wide = text(dgx, holders=held).splitlines()
    assert len(narrow) == len(wide) and max(map(len, narrow)) <= width
    for device in dgx.relevant:
        (line,) = [line for line in narrow if f" {device.pci_address} " in line + " "]
        assert device.kind != DeviceKind.GPU or (line.endswith("held by default/a-claim") and " NVIDIA H" in line)
    # The state of a device is never shortened: a claim's name may be copied.
    long = {address: ["default/" + "c" * width] for address in held}
    assert sum(line.endswith("c" * width) for line in text(dgx, holders=long, width=width).splitlines()) == len(held)

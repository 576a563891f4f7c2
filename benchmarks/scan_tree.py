"""Sysfs trees of any size for the benchmarks, with the files that the kernel creates for each function."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BRIDGE = (0x060400, 0x10B5, 0x9797, "pcieport")
WANTED = (
    (0x030200, 0x10DE, 0x2330, "nvidia"),
    (0x020700, 0x15B3, 0x1021, "mlx5_core"),
    (0x010802, 0x144D, 0xA80A, "nvme"),
)
NOISE = (0x088000, 0x8086, 0x2042, None)
"""Most functions of a server: memory controllers and other parts of the CPUs, without a driver."""


@dataclass
class Built:
    """A tree, and the paths of its wanted devices under `devices/`."""

    root: Path
    functions: int
    wanted: list[str]


def build(root: Path, functions: int, wanted: int) -> Built:
    """Build two sockets; below each root port a switch with three wanted devices; the others on separate root buses."""
    sys = root / "sys"
    (sys / "bus/pci/devices").mkdir(parents=True)
    for node, cpus in enumerate(("0-31,64-95", "32-63,96-127")):
        _write(sys / f"devices/system/node/node{node}/cpulist", cpus)
        _write(sys / f"devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:       263000000 kB")
        _write(sys / f"devices/system/node/node{node}/distance", "10 21" if node == 0 else "21 10")
        _write(sys / f"devices/system/cpu/cpu{32 * node}/topology/physical_package_id", str(node))
    _write(sys / "devices/virtual/net/lo/mtu", "65536")
    (sys / "class/net").mkdir(parents=True)
    (sys / "class/net/lo").symlink_to("../../devices/virtual/net/lo")
    made, groups = 0, 0
    places: list[str] = []
    while len(places) < wanted:
        bus = 4 * groups
        # A domain has at most 256 buses, so the largest trees need several domains.
        domain, bus = bus // 240, bus % 240
        node = groups % 2
        port = f"pci{domain:04x}:{bus:02x}/{domain:04x}:{bus:02x}:00.0"
        upstream = f"{port}/{domain:04x}:{bus + 1:02x}:00.0"
        _function(sys, port, BRIDGE, node)
        _function(sys, upstream, BRIDGE, node)
        made += 2
        for slot, spec in enumerate(WANTED[: wanted - len(places)]):
            downstream = f"{upstream}/{domain:04x}:{bus + 2:02x}:{slot:02x}.0"
            place = f"{downstream}/{domain:04x}:{bus + 3:02x}:{slot:02x}.0"
            _function(sys, downstream, BRIDGE, node)
            _function(sys, place, spec, node)
            _details(sys, place, spec, slot + 3 * groups)
            places.append(place)
            made += 2
        groups += 1
    index = 0
    while made < functions:
        bus, function = divmod(index, 256)
        domain = 0x1000 + bus // 256
        address = f"{domain:04x}:{bus % 256:02x}:{function // 8:02x}.{function % 8}"
        _function(sys, f"pci{domain:04x}:{bus % 256:02x}/{address}", NOISE, index % 2)
        index += 1
        made += 1
    return Built(root, made, places)


def _function(sys: Path, place: str, spec: tuple[int, int, int, str | None], node: int) -> None:
    class_code, vendor, device, driver = spec
    address = place.rsplit("/", 1)[1]
    folder = sys / "devices" / place
    base, sub, interface = class_code >> 16, class_code >> 8 & 0xFF, class_code & 0xFF
    modalias = f"pci:v{vendor:08X}d{device:08X}sv00001028sd00000000bc{base:02x}sc{sub:02x}i{interface:02x}"
    bound = f"DRIVER={driver}\n" if driver else ""
    identity = f"PCI_CLASS={class_code:X}\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SUBSYS_ID=1028:0000\n"
    for name, content in {
        "uevent": f"{bound}{identity}PCI_SLOT_NAME={address}\nMODALIAS={modalias}",
        "class": f"0x{class_code:06x}",
        "vendor": f"0x{vendor:04x}",
        "device": f"0x{device:04x}",
        "subsystem_vendor": "0x1028",
        "subsystem_device": "0x0000",
        "revision": "0x01",
        "irq": "0",
        "numa_node": str(node),
        "modalias": modalias,
        "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13),
        "local_cpulist": "0-31,64-95",
    }.items():
        _write(folder / name, content)
    (folder / "config").write_bytes(bytes(256))
    (sys / "bus/pci/devices" / address).symlink_to(f"../../../devices/{place}")
    up = "../" * (place.count("/") + 2)
    (folder / "iommu_group").symlink_to(f"{up}kernel/iommu_groups/{abs(hash(place)) % 512}")
    if driver:
        (folder / "driver").symlink_to(f"{up}bus/pci/drivers/{driver}")


def _details(sys: Path, place: str, spec: tuple[int, int, int, str | None], index: int) -> None:
    folder = sys / "devices" / place
    _write(folder / "power/runtime_status", "active")
    for which in ("current", "max"):
        _write(folder / f"{which}_link_speed", "32.0 GT/s PCIe")
        _write(folder / f"{which}_link_width", "16")
    names = {0x02: [f"net/eth{index}", f"infiniband/mlx5_{index}", f"infiniband_verbs/uverbs{index}"]}
    names[0x03] = [f"drm/card{index}", f"drm/renderD{128 + index}"]
    for name in names.get(spec[0] >> 16, ()):
        (folder / name).mkdir(parents=True)
        (folder / name / "device").symlink_to("../..")
        (sys / "class" / name).parent.mkdir(parents=True, exist_ok=True)
        (sys / "class" / name).symlink_to(f"../../devices/{place}/{name}")
    if spec[0] >> 16 == 0x02:
        _write(folder / "sriov_totalvfs", "16")
        _write(folder / "sriov_numvfs", "0")


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content + "\n")

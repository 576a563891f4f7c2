"""Built trees: what the agent's own scan and other people's tools see of them, against the description."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.errors import PermanentError
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import scan
from dra_simulate import build, build_machine, inject, profiles
from dra_simulate.machine import Function, Machine, bus_of
from dra_simulate.profiles import load_profile
from dra_simulate.tree import reads
from eventually import DEADLINE_S

PROFILES = profiles()
Standing = Callable[[str], Host]


@pytest.mark.parametrize("profile", PROFILES)
def test_scan_finds_every_function_of_the_description(profile: str, standing: Standing) -> None:
    topology = scan(standing(profile), distances=True)
    assert topology.problems == ()
    described = {function.address: function for function in load_profile(profile).functions()}
    assert {device.pci_address for device in topology.devices} == set(described)
    for device in topology.devices:
        function = described[device.pci_address]
        assert device.vendor_id == f"0x{function.id.vendor:04x}"
        assert device.driver == function.driver


@pytest.mark.parametrize("profile", PROFILES)
def test_scan_reads_no_config_space(profile: str, tmp_path: Path) -> None:
    host = build(profile, tmp_path / "host")
    scan(host)
    assert reads(tmp_path / "host") == []
    some = next(iter((host.sysfs / "bus/pci/devices").iterdir())) / "config"
    some.read_bytes()
    if some.stat().st_atime_ns == 0:
        pytest.skip("the file system keeps no access times, so the test cannot detect reads")
    assert reads(tmp_path / "host") == [some.resolve()]


@pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci is not installed")
@pytest.mark.parametrize("profile", PROFILES)
def test_lspci_draws_the_tree_of_the_description(profile: str, standing: Standing) -> None:
    host = standing(profile)
    command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={host.sysfs}/bus/pci", "-D", "-n", "-PP"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    assert listing.stderr == ""
    found = dict(_chain_and_id(line) for line in listing.stdout.splitlines())
    expected = {}
    machine = load_profile(profile)
    for bridge in machine.bridges:
        for function in bridge.functions:
            expected.update(_chains(function, ()))
    assert found == expected


@pytest.mark.skipif(shutil.which("lstopo") is None, reason="lstopo is not installed")
@pytest.mark.parametrize("profile", PROFILES)
def test_lstopo_sees_numa_nodes_and_links(profile: str, standing: Standing) -> None:
    root = standing(profile).sysfs.parent
    environment = {
        **os.environ,
        "HWLOC_FSROOT": str(root),
        "HWLOC_COMPONENTS": "linux,stop",
        "HWLOC_THISSYSTEM": "0",
        "HWLOC_DUMPED_HWDATA_DIR": "/nonexistent",
    }
    command = ["lstopo-no-graphics", "--whole-io", "--of", "xml"]
    drawing = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    machine = load_profile(profile)
    assert drawing.count('<object type="NUMANode"') == len(machine.nodes)
    seen = set(re.findall(r'type="PCIDev"[^>]*pci_busid="([0-9a-f:.]+)"', drawing))
    endpoints = {function.address for function in machine.functions() if function.id.class_code >> 8 != 0x0604}
    # hwloc ignores domains of more than 16 bits unless it was built for them.
    assert seen == {address for address in endpoints if len(address.split(":")[0]) == 4}


@pytest.mark.parametrize("profile", PROFILES)
def test_no_link_of_a_tree_leads_nowhere_and_none_leaves_it(profile: str, standing: Standing) -> None:
    root = standing(profile).sysfs.parent
    for path in root.rglob("*"):
        if path.is_symlink() and path.name not in ("subsystem", "device"):
            assert path.exists(), f"{path} -> {path.readlink()}"
            assert path.resolve().is_relative_to(root)


def test_every_gpu_of_a_dgx_is_one_switch_from_its_adapter(standing: Standing) -> None:
    topology = scan(standing("dgx-h100"), distances=True)
    gpus = [device for device in topology.relevant if device.kind == "gpu"]
    adapters = [device for device in topology.relevant if device.kind == "nic"]
    assert (len(gpus), len(adapters)) == (8, 10)
    beside = {}
    for gpu in gpus:
        near = [nic for nic in adapters if topology.distance(gpu.pci_address, nic.pci_address) == "PIX"]
        beside[gpu.pci_address] = [nic.infiniband[0] for nic in near]
    numbers = (0, 2, 3, 4, 5, 7, 8, 9)
    buses = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
    assert beside == {f"0000:{bus}:00.0": [f"mlx5_{number}"] for bus, number in zip(buses, numbers, strict=True)}
    assert [gpu.numa_node for gpu in gpus] == [0, 0, 0, 0, 1, 1, 1, 1]


MI300X_BOARDS = ("mi300x", "mi300x-linux-6.18", "mi308x", "mi350x", "mi355x")
MATRICES = {
    "dgx-h100": {"PIX": 24, "PHB": 1, "NODE": 158, "SYS": 195},
    "hgx-h200": {"PIX": 40, "PHB": 2, "NODE": 90, "SYS": 144},
    "dgx-spark": {},
    "a30": {"NODE": 4, "SYS": 6},
    "a100-40gb": {"NODE": 16, "SYS": 20},
    "h100-nvl": {"NODE": 4, "SYS": 6},
    "h100-pcie": {"NODE": 4, "SYS": 6},
    "gh200-144g": {"NODE": 1},
    "b200": {"NODE": 16, "SYS": 20},
    "rtx-pro-6000": {"NODE": 16, "SYS": 20},
    **{profile: {"PIX": 1, "PXB": 8, "PHB": 2, "NODE": 72, "SYS": 88} for profile in MI300X_BOARDS},
    "mi300x-vf": {"NODE": 16, "SYS": 20},
    "mi300a": {"PHB": 1, "NODE": 2, "SYS": 12},
    "mi250x": {"PHB": 5, "NODE": 4, "SYS": 36},
    "mi210": {"PHB": 1, "NODE": 20, "SYS": 24},
    "strix-halo": {"PHB": 3},
    "gb200-nvl": {"PIX": 2, "NODE": 40, "SYS": 49},
    # As NVIDIA draws it: a pair per switch, two of those below another one, and two of those per socket.
    "dgx-2": {"PIX": 8, "PXB": 16, "NODE": 32, "SYS": 64},
    "azure-ndv5": {"NODE": 56, "SYS": 64},
    "aws-p4d": {"PHB": 15, "NODE": 36, "SYS": 54},
    "flex170": {"PIX": 10, "PHB": 1, "NODE": 16, "SYS": 28},
    "arc-b60": {"PIX": 10, "PHB": 18},
    "arc-pro": {"PIX": 3, "PHB": 25},
    "l40s": {"PIX": 10, "PHB": 8, "NODE": 16, "SYS": 32},
    "connectx-3": {"PHB": 6},
    "trn1": {"PHB": 147, "NODE": 162, "SYS": 432},
    "trn2": {"PHB": 48, "NODE": 208, "SYS": 272},
    "gaudi3": {"PIX": 12, "NODE": 24, "SYS": 42},
    "alveo-v80": {"PIX": 7, "NODE": 14, "SYS": 24},
    "mixed": {"PIX": 5, "PHB": 3, "NODE": 19, "SYS": 28},
    "vm-1gpu": {"PHB": 1},
    "cpu-only": {"PIX": 1, "PHB": 1, "SYS": 4},
}
"""Pairs at each distance among the GPUs, adapters, drives, FPGAs and accelerators.

Worked out from the descriptions: DGX trays are 8 x 3 pairs of GPU, adapter and drive; of the MI300X' pairs of GPU and
adapter each has more than one switch between; virtual functions are on the bus of their physical one. Four roots of
trn1 have nine devices, which are 4 x 36 pairs, and a fifth has the console and two volumes, which are 3.
"""


@pytest.mark.parametrize("profile", PROFILES)
def test_distances_are_those_of_the_description(profile: str, standing: Standing) -> None:
    topology = scan(standing(profile), distances=True)
    assert Counter(str(distance) for distance in topology.distances.values()) == MATRICES[profile]


def test_every_gpu_of_an_mi300x_host_is_more_than_a_switch_from_its_adapter(standing: Standing) -> None:
    topology = scan(standing("mi300x"), distances=True)
    near = {pair for pair, distance in topology.distances.items() if distance == "PXB"}
    gpus = [device for device in topology.relevant if device.kind == "gpu"]
    assert [gpu.kfd for gpu in gpus] == list(range(2, 10))
    for gpu in gpus:
        beside = [nic for nic in topology.relevant if nic.infiniband and nic.pcie_root == gpu.pcie_root]
        assert len(beside) == 1
        assert topology.distance(gpu.pci_address, beside[0].pci_address) == "PXB"
    assert len(near) == 8


def test_virtual_functions_name_their_physical_one_and_are_named_by_it(standing: Standing) -> None:
    for profile, physical, count in (("l40s", "0000:42:00.0", 4), ("flex170", "0000:9a:00.0", 4)):
        topology = scan(standing(profile), distances=True)
        devices = {device.pci_address: device for device in topology.devices}
        virtual = devices[physical].virtfns
        assert list(virtual) == [f"{physical[:-1]}{number}" for number in range(1, count + 1)]
        assert {devices[address].physfn for address in virtual} == {physical}
    assert devices["0000:9a:00.4"].vfio == "vfio0"


def test_a_virtual_machine_has_no_groups_and_its_node_only_by_its_cpus(standing: Standing) -> None:
    gpu, interface = scan(standing("vm-1gpu")).relevant
    assert (gpu.numa_node, gpu.numa_source, gpu.iommu_group, gpu.pcie_switch) == (0, "cpulist", None, None)
    assert interface.net == ("ens5",), "found below the virtio device"


def test_a_drive_behind_a_vmd_has_a_domain_of_five_digits(standing: Standing) -> None:
    drive = next(device for device in scan(standing("mixed")).relevant if device.kind == "nvme")
    assert (drive.pci_address, drive.pcie_root) == ("10000:e1:00.0", "pci0000:64")


@pytest.mark.parametrize("profile", PROFILES)
def test_inventory_finds_nothing_wrong_and_every_node_it_names(
    profile: str, standing: Standing, tmp_path: Path
) -> None:
    host = standing(profile)
    inventory = collect(host, scan(host), InventorySettings(nvml_timeout=DEADLINE_S))
    assert inventory.problems == ()
    assert all(device.health == "healthy" for device in inventory.devices)
    for device in inventory.devices:
        for node in device.nodes:
            status = host.dev_path(node.path).stat()
            assert stat.S_ISCHR(status.st_mode) or not _may_make_nodes(tmp_path)


@pytest.mark.parametrize("profile", PROFILES)
def test_numbers_of_nodes_agree_between_sysfs_and_dev(profile: str, standing: Standing, tmp_path: Path) -> None:
    host = standing(profile)
    if not _may_make_nodes(tmp_path):
        pytest.skip("mknod is not permitted")
    compared = 0
    for uevent in (host.sysfs / "devices").rglob("uevent"):
        fields = dict(line.split("=", 1) for line in uevent.read_text().splitlines())
        if "DEVNAME" in fields and "MINOR" in fields:
            number = os.makedev(int(fields["MAJOR"]), int(fields["MINOR"]))
            assert (host.dev / fields["DEVNAME"]).stat().st_rdev == number, uevent
            assert (uevent.parent / "dev").read_text().strip() == f"{fields['MAJOR']}:{fields['MINOR']}"
            compared += 1
    numbers = [path.stat().st_rdev for path in host.dev.rglob("*") if path.is_char_device() and not path.is_symlink()]
    assert len(numbers) == len(set(numbers)), "no two nodes share a number"
    # Nodes of NVIDIA GPUs are not in sysfs, and these hosts have no others.
    assert compared > 0 or profile in ("vm-1gpu", "dgx-spark", "dgx-2")


def test_unplugging_a_physical_function_takes_its_virtual_ones(tmp_path: Path) -> None:
    host = build("l40s", tmp_path / "host")
    whole = scan(host)
    assert inject.unplug(tmp_path / "host", "ens3np0") == "0000:42:00.0"
    rest = scan(host)
    gone = {device.pci_address for device in whole.devices} - {device.pci_address for device in rest.devices}
    assert gone == {f"0000:42:00.{number}" for number in range(5)}
    assert rest.problems == ()
    assert not list((host.sysfs / "class/net").glob("ens3*"))
    groups = {device.pci_address: device.iommu_group for device in whole.devices if device.pci_address not in gone}
    assert {device.pci_address: device.iommu_group for device in rest.devices} == groups, "numbers of others stay"
    inject.replug(tmp_path / "host", "0000:42:00.0")
    assert scan(host) == whole


def test_a_rebuild_repairs_and_keeps_written_values(tmp_path: Path) -> None:
    root = tmp_path / "host"
    host = build("mi300x", root)
    gpu = host.sysfs / "bus/pci/devices/0000:0c:00.0"
    (gpu / "current_compute_partition").write_text("CPX\n")
    (gpu / "class").unlink()
    (gpu / "numa_node").unlink()
    (host.sysfs / "bus/pci/devices/0000:15:00.0").unlink()
    (host.sysfs / "bus/pci/devices/0000:15:00.0.new").symlink_to("left by an interrupted write")
    broken = scan(host)
    assert broken.problems or len(broken.devices) < 85
    assert build("mi300x", root) == host
    assert (gpu / "current_compute_partition").read_text() == "CPX\n"
    assert len(scan(host).relevant) == 19
    assert scan(host).problems == ()


def test_other_directories_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(PermanentError, match="not empty, and not a simulated host"):
        build("cpu-only", tmp_path)
    build("cpu-only", tmp_path / "host")
    with pytest.raises(PermanentError, match="holds a simulated 'cpu-only', not 'vm-1gpu'"):
        build("vm-1gpu", tmp_path / "host")
    (tmp_path / "host/simulated.json").write_text("{")
    with pytest.raises(PermanentError, match="simulated.json: not the state of a simulated host"):
        build("cpu-only", tmp_path / "host")


def test_an_own_machine_needs_no_profile(tmp_path: Path) -> None:
    one = next(iter(load_profile("cpu-only").bridges))
    machine = Machine("own", "one root of another", load_profile("cpu-only").nodes, (one,), iommu=False)
    topology = scan(build_machine(machine, tmp_path / "host"))
    assert {device.pcie_root for device in topology.devices} == {one.name}
    assert all(device.iommu_group is None for device in topology.devices)


def _may_make_nodes(folder: Path) -> bool:
    try:
        os.mknod(folder / "probe", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        return False
    (folder / "probe").unlink()
    return True


def _chain_and_id(line: str) -> tuple[tuple[str, ...], str]:
    path, _class, numbers, *_ = line.split(" ")
    return tuple(_full(part, path) for part in path.split("/")), numbers


def _full(part: str, path: str) -> str:
    # lspci -PP leaves the domain out of all but the first part.
    return part if part.count(":") == 2 else f"{path.split(':')[0]}:{part}"


def _chains(function: Function, above: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    chain = (*above, function.address)
    found = {chain: f"{function.id.vendor:04x}:{function.id.device:04x}"}
    for virtual in function.sriov.functions if function.sriov else ():
        # lspci derives the tree from bus numbers, so a virtual function is next to its physical one.
        assert bus_of(virtual.address) == bus_of(function.address)
        found |= _chains(virtual, above)
    for child in function.children:
        found |= _chains(child, chain)
    for child in function.domain.functions if function.domain else ():
        # Nor does it know that another domain is below a VMD.
        found |= _chains(child, ())
    return found

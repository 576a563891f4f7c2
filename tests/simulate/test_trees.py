"""Built trees: what the agent's own scan and other people's tools see of them, against the description."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_agent.simulate import build, build_machine, profiles
from dra_agent.simulate.machine import Function, Machine, bus_of
from dra_agent.simulate.profiles import load
from dra_agent.simulate.tree import reads
from dra_agent.topology import scan

PROFILES = profiles()


@pytest.mark.parametrize("profile", PROFILES)
def test_scan_finds_every_function_of_the_description(profile: str, tmp_path: Path) -> None:
    topology = scan(build(profile, tmp_path / "host"))
    assert topology.problems == ()
    described = {function.address: function for function in load(profile).functions()}
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
        pytest.skip("the file system keeps no access times, so the trap cannot tell")
    assert reads(tmp_path / "host") == [some.resolve()]


@pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci is not installed")
@pytest.mark.parametrize("profile", PROFILES)
def test_lspci_draws_the_tree_of_the_description(profile: str, tmp_path: Path) -> None:
    host = build(profile, tmp_path / "host")
    command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={host.sysfs}/bus/pci", "-D", "-n", "-PP"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    assert listing.stderr == ""
    found = dict(_chain_and_id(line) for line in listing.stdout.splitlines())
    expected = {}
    machine = load(profile)
    for bridge in machine.bridges:
        for function in bridge.functions:
            expected.update(_chains(function, ()))
    assert found == expected


@pytest.mark.skipif(shutil.which("lstopo") is None, reason="lstopo is not installed")
@pytest.mark.parametrize("profile", PROFILES)
def test_lstopo_sees_numa_nodes_and_links(profile: str, tmp_path: Path) -> None:
    build(profile, tmp_path / "host")
    environment = {
        **os.environ,
        "HWLOC_FSROOT": str(tmp_path / "host"),
        "HWLOC_COMPONENTS": "linux,stop",
        "HWLOC_THISSYSTEM": "0",
        "HWLOC_DUMPED_HWDATA_DIR": "/nonexistent",
    }
    command = ["lstopo-no-graphics", "--whole-io", "--of", "xml"]
    drawing = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    machine = load(profile)
    assert drawing.count('<object type="NUMANode"') == len(machine.nodes)
    seen = set(re.findall(r'type="PCIDev"[^>]*pci_busid="([0-9a-f:.]+)"', drawing))
    endpoints = {function.address for function in machine.functions() if function.id.class_code >> 8 != 0x0604}
    # hwloc ignores domains of more than 16 bits unless it was built for them.
    assert seen == {address for address in endpoints if len(address.split(":")[0]) == 4}


@pytest.mark.parametrize("profile", PROFILES)
def test_no_link_of_a_tree_leads_nowhere_and_none_leaves_it(profile: str, tmp_path: Path) -> None:
    root = tmp_path / "host"
    build(profile, root)
    for path in root.rglob("*"):
        if path.is_symlink() and path.name not in ("subsystem", "device"):
            assert path.exists(), f"{path} -> {path.readlink()}"
            assert path.resolve().is_relative_to(root)


def test_every_gpu_of_a_dgx_is_one_switch_from_its_adapter(tmp_path: Path) -> None:
    topology = scan(build("dgx-h100", tmp_path / "host"))
    gpus = [device for device in topology.wanted if device.kind == "gpu"]
    adapters = [device for device in topology.wanted if device.kind == "nic"]
    assert (len(gpus), len(adapters)) == (8, 10)
    beside = {}
    for gpu in gpus:
        near = [nic for nic in adapters if topology.distance(gpu.pci_address, nic.pci_address) == "PIX"]
        beside[gpu.pci_address] = [nic.infiniband[0] for nic in near]
    numbers = (0, 2, 3, 4, 5, 7, 8, 9)
    buses = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
    assert beside == {f"0000:{bus}:00.0": [f"mlx5_{number}"] for bus, number in zip(buses, numbers, strict=True)}
    assert [gpu.numa_node for gpu in gpus] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_an_own_machine_needs_no_profile(tmp_path: Path) -> None:
    one = next(iter(load("cpu-only").bridges))
    machine = Machine("own", "one root of another", load("cpu-only").nodes, (one,), iommu=False)
    topology = scan(build_machine(machine, tmp_path / "host"))
    assert {device.pcie_root for device in topology.devices} == {one.name}
    assert all(device.iommu_group is None for device in topology.devices)


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
        # lspci derives the tree from bus numbers, so a virtual function is beside its physical one.
        assert bus_of(virtual.address) == bus_of(function.address)
        found |= _chains(virtual, above)
    for child in function.children:
        found |= _chains(child, chain)
    for child in function.domain.functions if function.domain else ():
        # Nor does it know that another domain lies below a VMD.
        found |= _chains(child, ())
    return found

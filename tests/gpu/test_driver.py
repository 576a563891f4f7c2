"""The agent's inventory of NVIDIA GPUs, compared with nvidia-smi, NVML and lspci. Nothing is changed."""

from __future__ import annotations

import itertools
import os
import re
import stat
from pathlib import Path

import pytest

from dra_agent.cdi.edits.nvidia import NvidiaGpu
from dra_agent.cdi.edits.nvidia_toolkit import ToolkitCommand
from dra_agent.doctor.record.tools import find_tool
from dra_agent.host import Host
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.nvidia.nvml_client import NotSupportedError, NvmlClient
from dra_agent.inventory.tracker import InventoryTracker
from dra_agent.topology import Distance, Topology
from inventory.rescan import rescan

from . import lspci
from .conftest import SETTINGS, Smi
from .journal import Journal
from .report import address, differences, mig_uuids, read

XID = 0x8
LEVELS = {0: Distance.PIX, 10: Distance.PIX, 20: Distance.PXB, 30: Distance.PHB, 40: Distance.NODE, 50: Distance.SYS}
"""nvmlGpuTopologyLevel_t, and the names of the agent and of `nvidia-smi topo -m`; 0 is one card."""
NODE_SCOPE = 0
"""NVML_AFFINITY_SCOPE_NODE."""


def test_every_gpu_is_as_nvidia_smi_reports_it(inventory: Inventory, smi: Smi, journal: Journal) -> None:
    report = read(smi.ask("-q", "-x"))
    assert report.gpus, "the driver is loaded and nvidia-smi reports no GPU"
    journal.add("Devices", [_row(device) for device in nvidia(inventory)])
    journal.add("Problems", [str(problem) for problem in inventory.problems])
    assert differences(inventory, report) == []


def test_mig_devices_have_the_uuids_that_nvidia_smi_lists(inventory: Inventory, smi: Smi) -> None:
    ours = {device.identity["uuid"] for device in nvidia(inventory) if "gpu_instance" in device.identity}
    assert ours == mig_uuids(smi.ask("-L"))


def test_device_nodes_have_the_drivers_numbers(host: Host, inventory: Inventory, journal: Journal) -> None:
    majors = {}
    for line in (host.proc / "devices").read_text().splitlines():
        if re.fullmatch(r"\s*\d+ \S+", line):
            number, name = line.split()
            majors[name] = int(number)
    nodes = {node.path: Path(node.host_path) for device in nvidia(inventory) for node in device.nodes}
    rows, wrong = [], []
    for path, real in sorted(nodes.items()):
        status = real.stat()
        rows.append({"node": path, "mode": stat.filemode(status.st_mode), "owner": f"{status.st_uid}:{status.st_gid}"})
        if not real.is_char_device():
            if host.dev == Path("/dev"):
                wrong.append(f"{path} is not a character device")
            continue
        rows[-1]["number"] = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        wrong += _wrong_number(path, os.major(status.st_rdev), os.minor(status.st_rdev), majors)
    journal.add("Device nodes", rows)
    journal.add("Majors of NVIDIA's devices", {name: major for name, major in majors.items() if "nvidia" in name})
    minors = host.proc / "driver/nvidia-caps/mig-minors"
    journal.add("mig-minors", f"{len(minors.read_text().splitlines())} lines" if minors.exists() else "missing")
    assert nodes and not wrong


def test_gpus_are_healthy_and_report_events(
    inventory: Inventory, tracker: InventoryTracker, nvml: NvmlClient, host: Host
) -> None:
    issues = {device.name: device.health_reason for device in nvidia(inventory) if device.health != "healthy"}
    assert not issues, "a GPU that reports no events would be unmonitored"
    assert tracker.faults() == [], "nothing has happened since"
    for gpu in handles(nvml).values():
        assert nvml.call("nvmlDeviceGetSupportedEventTypes", gpu) & XID


def test_memory_is_as_nvidia_smi_has_it(inventory: Inventory, smi: Smi) -> None:
    rows = {address(row["pci.bus_id"]): row for row in smi.query("pci.bus_id", "memory.total", "compute_cap")}
    assert rows
    for device in nvidia(inventory):
        row = rows.get(device.pci_address)
        if row is not None and "parent" not in device.identity and row["memory.total"].isdecimal():
            assert device.capacity["memory"] == Capacity.of_bytes(int(row["memory.total"]) << 20)
            assert str(device.attributes["cudaComputeCapability"].value) == f"{row['compute_cap']}.0"


def test_the_numa_node_is_the_one_with_the_nearest_memory(topology: Topology, nvml: NvmlClient) -> None:
    """NVML's NUMA node id is of GPUs that are nodes themselves; the memory affinity is of the node that a GPU is on."""
    compared = 0
    for place, gpu in handles(nvml).items():
        try:
            mask = list(nvml.call("nvmlDeviceGetMemoryAffinity", gpu, 16, NODE_SCOPE))
        except NotSupportedError:
            continue
        nodes = [64 * word + bit for word, bits in enumerate(mask) for bit in range(64) if bits >> bit & 1]
        ours = topology.by_address[place].numa_node
        assert ours is None or ours in nodes, place
        compared += 1
    if not compared:
        pytest.skip("the driver reports no memory affinity for any GPU of this machine")


def test_distances_are_the_drivers(topology: Topology, nvml: NvmlClient, journal: Journal) -> None:
    gpus = handles(nvml)
    pairs = list(itertools.combinations(sorted(gpus), 2))
    if not pairs:
        journal.add("Distances", "one GPU: there is no pair to compare")
        pytest.skip("one GPU: there is no pair to compare")
    found = {}
    for one, other in pairs:
        level = nvml.call("nvmlDeviceGetTopologyCommonAncestor", gpus[one], gpus[other])
        found[f"{one} {other}"] = (str(topology.distance(one, other)), str(LEVELS[level]))
    journal.add("Distances", {pair: f"{ours}, NVML {theirs}" for pair, (ours, theirs) in found.items()})
    assert {pair: both for pair, both in found.items() if both[0] != both[1]} == {}


def test_links_and_bridges_are_as_lspci_reports_them(
    host: Host, topology: Topology, addresses: list[str], journal: Journal
) -> None:
    tool = lspci.find_lspci()
    if tool is None:
        journal.add("lspci", "not installed: links, IOMMU groups and bridges were not compared")
        pytest.skip("lspci (pciutils) is not installed, and nothing else reports bridges")
    rows, wrong = [], []
    for place in addresses:
        theirs, ours = lspci.ask(tool, host, place), topology.by_address[place]
        link = ours.link
        pairs = {
            "width": (link and link.width, theirs.width),
            "max generation": (link and link.max_generation, theirs.max_generation),
            "max width": (link and link.max_width, theirs.max_width),
            "IOMMU group": (ours.iommu_group, theirs.iommu_group),
            "driver": (ours.driver, theirs.driver),
            "bridges": (tuple(one[-7:] for one in ours.parents), theirs.bridges),
            "NUMA node": (ours.numa_node if ours.numa_source == "device" else None, theirs.numa_node),
        }
        rows.append({"GPU": place, **{name: str(other) for name, (_, other) in pairs.items()}})
        wrong += [
            f"{place}: {name}: {own!r}, lspci {other!r}"
            for name, (own, other) in pairs.items()
            if other is not None and own != other
        ]
    journal.add("lspci", rows)
    assert wrong == []


def test_the_cdi_edits_have_the_nodes_of_the_toolkit(host: Host, inventory: Inventory, journal: Journal) -> None:
    path = find_tool(host, "nvidia-ctk")
    if path is None:
        journal.add("CDI", "nvidia-ctk is not installed: edits were not compared")
        pytest.skip("nvidia-ctk is not installed: there is no other source of CDI edits")
    rows, wrong = compare_nodes(NvidiaGpu(host, (), None), ToolkitCommand(path), nvidia(inventory))
    journal.add("CDI", rows)
    assert rows and wrong == []


def compare_nodes(
    provider: NvidiaGpu, toolkit: ToolkitCommand, devices: list[Device]
) -> tuple[list[dict[str, str]], list[str]]:
    """Return what either has alone, and the nodes of a device itself that nvidia-ctk does not list."""
    rows, wrong = [], []
    for device in devices:
        ours = provider(device)
        own, common = toolkit.edits(device.identity["uuid"], None)
        generated = {node.path for edits in (own, common) for node in edits.device_nodes}
        nodes = {node.path for edits in (ours.own, ours.common) for node in edits.device_nodes}
        rows.append(
            {
                "device": device.name,
                "only ours": " ".join(sorted(nodes - generated)),
                "only nvidia-ctk": " ".join(sorted(generated - nodes)),
            }
        )
        required = {node.path for node in ours.own.device_nodes}
        wrong += [f"{device.name}: nvidia-ctk does not list {one}" for one in sorted(required - generated)]
    return rows, wrong


def test_a_second_scan_finds_the_same(tracker: InventoryTracker, host: Host) -> None:
    assert not rescan(tracker, host), "nothing has changed"


def test_no_setting_has_changed(smi: Smi, tracker: InventoryTracker, settings_before: list[dict[str, str]]) -> None:
    assert tracker.inventory.devices, "the agent has scanned"
    assert smi.query(*SETTINGS) == settings_before


def nvidia(inventory: Inventory) -> list[Device]:
    """The GPUs and MIG devices of NVIDIA."""
    return [device for device in inventory.family("gpu") if device.vendor == "nvidia"]


def handles(nvml: NvmlClient) -> dict[str, object]:
    """Every GPU that NVML lists, by address as sysfs writes it."""
    found = {}
    for index in range(nvml.call("nvmlDeviceGetCount")):
        gpu = nvml.call("nvmlDeviceGetHandleByIndex", index)
        bus_id = nvml.call("nvmlDeviceGetPciInfo", gpu).busId
        found[address(bus_id.decode() if isinstance(bus_id, bytes) else bus_id)] = gpu
    return found


def _wrong_number(path: str, major: int, minor: int, majors: dict[str, int]) -> list[str]:
    if found := re.fullmatch(r"/dev/nvidia(\d+)", path):
        expected = (majors.get("nvidia", majors.get("nvidia-frontend")), int(found[1]))
    elif found := re.fullmatch(r"/dev/nvidia-caps/nvidia-cap(\d+)", path):
        expected = (majors.get("nvidia-caps"), int(found[1]))
    else:
        return []
    return [] if expected == (major, minor) else [f"{path} is {major}:{minor}, not {expected[0]}:{expected[1]}"]


def _row(device: Device) -> dict[str, str]:
    names = ("productName", "brand", "architecture", "cudaComputeCapability", "driverVersion", "profile", "uuid")
    attributes = {name: str(device.attributes[name].value) for name in names if name in device.attributes}
    memory = device.capacity.get("memory")
    return {"device": device.name, "health": device.health, "memory": memory.value if memory else "", **attributes}

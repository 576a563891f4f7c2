"""The agent's look at real NVIDIA GPUs, beside what nvidia-smi says of them. It changes nothing."""

from __future__ import annotations

import itertools
from pathlib import Path

from dra_agent.host import Host
from dra_agent.inventory import Capacity, Inventory
from dra_agent.inventory.nvidia.nvml_client import NotSupportedError, NvmlClient
from dra_agent.inventory.tracker import InventoryTracker
from dra_agent.topology import Distance, Topology, scan

from .conftest import SETTINGS, Smi
from .report import address, differences, read

XID = 0x8
LEVELS = {0: Distance.PIX, 10: Distance.PIX, 20: Distance.PXB, 30: Distance.PHB, 40: Distance.NODE, 50: Distance.SYS}
"""nvmlGpuTopologyLevel_t, and what the agent and `nvidia-smi topo -m` call it; 0 is one card."""


def test_every_gpu_is_as_nvidia_smi_reports_it(inventory: Inventory, smi: Smi) -> None:
    report = read(smi.everything())
    assert report.gpus, "the driver is loaded and nvidia-smi reports no GPU"
    assert differences(inventory, report) == []


def test_the_device_nodes_are_there(inventory: Inventory) -> None:
    nodes = [node for device in inventory.family("gpu") if device.vendor == "nvidia" for node in device.nodes]
    assert nodes
    missing = [node.host_path for node in nodes if not Path(node.host_path).is_char_device()]
    assert not missing


def test_gpus_are_healthy_and_their_events_are_heard(
    inventory: Inventory, watch: InventoryTracker, nvml: NvmlClient
) -> None:
    ailing = {device.name: device.health_reason for device in inventory.family("gpu") if device.health != "healthy"}
    assert not ailing, "a GPU whose events are not heard would be unmonitored"
    assert watch.faults() == [], "nothing has happened since"
    for gpu in handles(nvml).values():
        assert nvml.call("nvmlDeviceGetSupportedEventTypes", gpu) & XID


def test_memory_is_as_nvidia_smi_has_it(inventory: Inventory, smi: Smi) -> None:
    told = {address(row["pci.bus_id"]): row for row in smi.query("pci.bus_id", "memory.total", "compute_cap")}
    for device in inventory.family("gpu"):
        if device.pci_address in told and "parent" not in device.identity and "memory" in device.capacity:
            row = told[device.pci_address]
            assert device.capacity["memory"] == Capacity.of_bytes(int(row["memory.total"]) << 20)
            assert str(device.attributes["cudaComputeCapability"].value) == f"{row['compute_cap']}.0"


def test_the_topology_is_the_drivers(topology: Topology, nvml: NvmlClient) -> None:
    gpus = handles(nvml)
    for place, gpu in gpus.items():
        device = topology.by_address[place]
        try:
            node = nvml.call("nvmlDeviceGetNumaNodeId", gpu)
        except NotSupportedError:
            continue
        if device.numa_node is not None and node >= 0:
            assert device.numa_node == node, place
    for one, other in itertools.combinations(sorted(gpus), 2):
        level = nvml.call("nvmlDeviceGetTopologyCommonAncestor", gpus[one], gpus[other])
        assert topology.distance(one, other) == LEVELS[level], (one, other)


def test_looking_again_finds_the_same(watch: InventoryTracker, host: Host) -> None:
    assert not watch.refresh(scan(host)), "nothing changes while nobody changes it"


def test_no_setting_has_changed(smi: Smi, watch: InventoryTracker, settings_before: list[dict[str, str]]) -> None:
    assert watch.inventory.devices, "the agent has looked"
    assert smi.query(*SETTINGS) == settings_before


def handles(nvml: NvmlClient) -> dict[str, object]:
    """Every GPU that NVML lists, by address as sysfs writes it."""
    found = {}
    for index in range(nvml.call("nvmlDeviceGetCount")):
        gpu = nvml.call("nvmlDeviceGetHandleByIndex", index)
        bus_id = nvml.call("nvmlDeviceGetPciInfo", gpu).busId
        found[address(bus_id.decode() if isinstance(bus_id, bytes) else bus_id)] = gpu
    return found

"""Machines with one GPU of each product with MIG, offered in partitions."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.topology import LiveTopology
from dra_simulate import build_machine, inject, mig_models, models
from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import AMPERE, GIB, GpuModel
from dra_simulate.parts.nvidia import gpu

ADDRESS, NAME = "0000:01:00.0", "gpu-0000-01-00-0"
ALL = PartitionRule(when='device.attributes["dra-agent.internal"].type == "gpu"', mode="mig")
FAMILIES: dict[str, GpuModel] = {
    name: model
    for module in (models, mig_models)
    for name, model in vars(module).items()
    if isinstance(model, GpuModel) and model.mig
}
"""By the name of the constant."""


def machine_of(model: GpuModel) -> Machine:
    only = gpu(ADDRESS, model, 0, machine="one")
    node = NumaNode("0-3", 8 * GIB, (10,))
    return Machine(
        "one", "for tests", (node,), (HostBridge("pci0000:00", 0, (only,)),), nvidia=NvidiaDriver("1.2", 12080)
    )


def partitioned(root: Path, model: GpuModel) -> Inventory:
    """Return the inventory of a host; a GPU before Hopper has had its MIG mode switched on by a reset."""
    machine = machine_of(model)
    host = build_machine(machine, root)
    with ExitStack() as stack:
        collector = Collector(host, InventorySettings(partition=(ALL,)))
        stack.callback(collector.close)
        if model.architecture == AMPERE:
            switch_on(root, machine)
        return collector.collect(LiveTopology(host).snapshot())


def switch_on(root: Path, machine: Machine) -> None:
    from dra_agent.inventory.nvidia.nvml_client import acquire

    library = acquire(root / "lib/libnvidia-ml.so.1", 60.0)
    library.start()
    handle = library.call("nvmlDeviceGetHandleByPciBusId", ADDRESS.encode(), about=ADDRESS)
    library.call("nvmlDeviceSetMigMode", handle, 1, about=ADDRESS)
    library.close()
    inject.reset(root, "0", machine)


def partitions(inventory: Inventory) -> list[Device]:
    """Return the partitions in their published order."""
    found = [device for device in inventory.devices if device.name.startswith(f"{NAME}-mig-")]
    return sorted(found, key=lambda device: device.order)

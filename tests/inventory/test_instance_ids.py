"""Ids of MIG instances are independent of their placement: names and nodes are correct for all ids of the driver."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import LiveTopology
from dra_simulate import build_machine
from dra_simulate.machine import NvidiaDriver
from eventually import DEADLINE_S
from inventory.pair import ADDRESS, NAME, ONE_G, PAIR, TWO_G, handle, make


def devices(root: Path, seed: int) -> dict[str, Device]:
    host = build_machine(replace(PAIR, nvidia=NvidiaDriver("570.124.06", 12080, id_seed=seed)), root)
    library = acquire(host.nvml_library, DEADLINE_S)
    with ExitStack() as stack:
        stack.callback(library.close)
        library.start()
        library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
        make(library, ONE_G, 4, 1)
        make(library, TWO_G, 0, 2)
        collector = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S))
        stack.callback(collector.close)
        inventory = collector.collect(LiveTopology(host).snapshot())
    assert inventory.problems == ()
    return {device.name: device for device in inventory.devices if device.pci_address == ADDRESS}


@pytest.mark.parametrize("seed", range(4))
def test_names_and_nodes_are_those_of_the_place(tmp_path: Path, seed: int) -> None:
    found = devices(tmp_path / "host", seed)
    for profile, start in (("1g-10gb", 4), ("2g-20gb", 0)):
        (device,) = [device for name, device in found.items() if name.startswith(f"{NAME}-mig-{profile}-{start}")]
        instance, compute = (int(device.identity[key]) for key in ("gpu_instance", "compute_instance"))
        nodes = [Path(node.host_path) for node in device.nodes if node.role == "capability"]
        first = 3 + instance * 9
        assert [node.name for node in nodes] == [f"nvidia-cap{first}", f"nvidia-cap{first + 1 + compute}"]
        assert all(node.exists() for node in nodes)
        assert device.name == f"{NAME}-mig-{profile}-{start}" + (f"-{compute}" if compute else "")

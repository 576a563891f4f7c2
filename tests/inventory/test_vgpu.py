"""A vGPU in its guest: the driver describes MIG profiles, and refuses to create instances."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dra_agent.inventory.collector import Collector
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.topology import LiveTopology
from dra_simulate import build_machine
from dra_simulate.machine import HostBridge
from dra_simulate.models import H100_SXM
from dra_simulate.parts.nvidia import gpu
from inventory.pair import ADDRESS, NAME, PAIR

ALL = PartitionRule(when='device.attributes["dra-agent.internal"].type == "gpu"', mode="mig")
VGPU = 2


@pytest.mark.parametrize(("virtualization", "count"), [(0, 26), (1, 26), (VGPU, 1)])
def test_a_vgpu_is_published_as_a_whole_with_the_reason(tmp_path: Path, virtualization: int, count: int) -> None:
    only = gpu(ADDRESS, H100_SXM, 0, machine="guest", virtualization=virtualization)
    machine = replace(PAIR, name="guest", bridges=(HostBridge("pci0000:00", 0, (only,)),))
    host = build_machine(machine, tmp_path / "host")
    with ExitStack() as stack:
        collector = Collector(host, InventorySettings(partition=(ALL,)))
        stack.callback(collector.close)
        inventory = collector.collect(LiveTopology(host).snapshot())
    assert len(inventory.devices) == count
    assert {device.health for device in inventory.devices} == {"healthy"}
    if virtualization == VGPU:
        (problem,) = inventory.problems
        assert problem.where == NAME and "vGPU" in problem.message and problem.severity == "warning"
        assert inventory.devices[0].name == NAME and not inventory.devices[0].consumes_counters
    else:
        assert inventory.problems == ()

"""NVML's table of profiles: drivers that describe them only in MIG mode, and tables that do not exist yet."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.topology import LiveTopology
from dra_simulate import build_machine, inject
from dra_simulate.machine import Machine, NvidiaDriver
from inventory.pair import NAME, PAIR

ALL = PartitionRule(when='device.attributes["dra-agent.internal"].type == "gpu"', mode="mig")
NOT_SUPPORTED = 3
PROFILE_INFO = "nvmlDeviceGetGpuInstanceProfileInfo"


def strict(machine: Machine) -> Machine:
    """Return the machine with a driver that behaves as nvml.h states."""
    assert machine.nvidia is not None
    driver = NvidiaDriver(machine.nvidia.version, machine.nvidia.cuda, profiles_need_mig=True)
    return replace(machine, nvidia=driver)


def of_first(inventory: Inventory) -> dict[str, str]:
    return {
        device.name.removeprefix(NAME): str(device.attributes["profile"].value) if "-mig-" in device.name else ""
        for device in inventory.devices
        if device.name.startswith(NAME)
    }


def collector(stack: ExitStack, host: Host) -> Collector:
    made = Collector(host, InventorySettings(partition=(ALL,)))
    stack.callback(made.close)
    return made


def test_partitions_are_the_same_whether_the_driver_describes_them_without_mig_mode_or_not(tmp_path: Path) -> None:
    found = []
    for name, machine in (("lenient", PAIR), ("strict", strict(PAIR))):
        with ExitStack() as stack:
            host = build_machine(machine, tmp_path / name)
            inventory = collector(stack, host).collect(LiveTopology(host).snapshot())
        assert inventory.problems == ()
        found.append(of_first(inventory))
    assert found[0] == found[1]
    assert len(found[0]) == 26 and "1g.10gb+me" in found[1].values()


@pytest.mark.parametrize(
    "functions",
    [
        pytest.param((PROFILE_INFO, f"{PROFILE_INFO}V"), id="no profile"),
        pytest.param(("nvmlDeviceGetGpuInstancePossiblePlacements",), id="no placement"),
    ],
)
def test_a_missing_table_is_read_again(tmp_path: Path, functions: tuple[str, ...]) -> None:
    host = build_machine(PAIR, tmp_path / "host")
    topology = LiveTopology(host).snapshot()
    with ExitStack() as stack:
        made = collector(stack, host)
        for function in functions:
            inject.fail(tmp_path / "host", function, NOT_SUPPORTED, machine=PAIR)
        first = made.collect(topology)
        assert of_first(first) == {"": ""}, "the whole GPU stays"
        assert all("lists no MIG profile" in problem.message for problem in first.problems) and first.problems
        inject.clear(tmp_path / "host")
        second = made.collect(topology)
        assert second.problems == () and len(of_first(second)) == 26

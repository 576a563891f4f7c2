from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.question import allocate
from dra_agent.inventory.amd.modes import Modes, memory_partitions
from dra_agent.inventory.api import CounterConsumption
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.simulate import build_machine
from dra_agent.simulate.machine import HostBridge, Machine, NumaNode
from dra_agent.simulate.parts.amd import mi300x
from dra_agent.simulate.parts.bridges import port
from dra_agent.simulate.roles.amd import LINUX_6_8, AmdgpuDriver
from dra_agent.slices import desired_slices
from dra_agent.topology import scan

DRIVER = "dra-agent.internal"
PARTS = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}
MI300X = "SPX, DPX, QPX, CPX"
DIVISIBLE = InventorySettings(partition=(PartitionRule(f'device.attributes["{DRIVER}"].vendor == "amd"', "amd"),))


def machine(gpus: int = 2, driver: AmdgpuDriver = LINUX_6_8) -> Machine:
    functions = tuple(
        port(f"0000:10:{n + 1:02x}.0", mi300x(f"0000:{0x11 + n:02x}:00.0", n, machine="bench", driver=driver))
        for n in range(gpus)
    )
    node = NumaNode("0-7", 64 << 30, (10,))
    return Machine("bench", "two MI300X", (node,), (HostBridge("pci0000:10", 0, functions),))


def parts(modes: Modes) -> list[tuple[str, CounterConsumption]]:
    """Every device of a GPU with its mode."""
    return [
        (mode.name, modes.whole("gpu") if mode.partitions == 1 else modes.part("gpu", mode, index))
        for mode in modes.all
        for index in range(mode.partitions)
    ]


def fit(modes: Modes, taken: list[CounterConsumption]) -> bool:
    """As the scheduler adds up (KEP-4815): no counter may be overdrawn."""
    left = {name: int(counter.value) for name, counter in modes.counters("gpu").counters.items()}
    for consumption in taken:
        for name, counter in consumption.counters.items():
            left[name] -= int(counter.value)
    return min(left.values()) >= 0


@pytest.mark.parametrize(
    ("available", "dies", "memory", "expected"),
    [
        (MI300X, 8, 1, ["SPX", "DPX", "QPX", "CPX"]),
        (MI300X, 8, 2, ["DPX"]),
        (MI300X, 8, 4, ["QPX", "CPX"]),
        (MI300X, 8, 8, []),
        ("SPX, TPX, CPX", 6, 1, ["SPX", "TPX", "CPX"]),
        ("SPX, TPX, CPX", 6, 3, []),
        ("SPX, TPX, CPX", 6, 4, ["TPX", "CPX"]),
        ("SPX, DPX, CPX", 4, 2, ["DPX"]),
        ("SPX, DPX, QPX, CPX", 4, 1, ["SPX", "DPX", "CPX"]),
        ("SPX, DPX, TPX, QPX, CPX, ???", 24, 1, ["SPX", "DPX", "TPX", "QPX", "CPX"]),
        ("SPX", 1, 1, ["SPX"]),
        (MI300X, 0, 1, []),
    ],
)
def test_modes_that_the_driver_takes(available: str, dies: int, memory: int, expected: list[str]) -> None:
    assert [mode.name for mode in Modes(available, dies, memory).all] == expected


def test_the_memory_mode_is_a_number() -> None:
    assert [memory_partitions(text) for text in ("NPS1", "NPS4", None, "NPSx", "UNKNOWN")] == [1, 4, 1, 1, 1]


@pytest.mark.parametrize(("available", "dies", "memory"), [(MI300X, 8, 1), (MI300X, 8, 4), ("SPX, TPX, CPX", 6, 1)])
def test_exactly_the_sets_of_one_mode_fit_together(available: str, dies: int, memory: int) -> None:
    modes = Modes(available, dies, memory)
    devices = parts(modes)
    # All of a mode at once: what is part of it fits, too. Any two of different modes do not, and so nothing with them.
    for mode in modes.all:
        assert fit(modes, [consumption for name, consumption in devices if name == mode.name])
    for (one, ours), (other, theirs) in combinations(devices, 2):
        assert fit(modes, [ours, theirs]) == (one == other), (one, other)


def test_the_counters_are_few_enough_for_the_api() -> None:
    for dies in (6, 8, 24):
        modes = Modes("SPX, DPX, TPX, QPX, CPX", dies, 1)
        assert len(modes.counters("gpu").counters) <= 32


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    host = build_machine(machine(), tmp_path_factory.mktemp("mi300x") / "host")
    return collect(host, scan(host), DIVISIBLE)


def test_every_mode_is_offered_in_any_current_mode(inventory: Inventory) -> None:
    names = [device.name.removeprefix("gpu-0000-11-00-0") for device in inventory.devices][:15]
    assert names == [
        "",
        *(f"-{mode}-{n}" for mode, count in (("dpx", 2), ("qpx", 4), ("cpx", 8)) for n in range(count)),
    ]
    assert [counters.name for counters in inventory.counter_sets["gpu"]] == ["gpu-0000-11-00-0", "gpu-0000-12-00-0"]
    assert inventory.problems == ()
    part = inventory.device("gpu-0000-11-00-0-qpx-2")
    assert part is not None
    values = {name: value.value for name, value in part.attributes.items()}
    assert (values["type"], values["profile"], values["memoryEnforcement"]) == ("partition", "qpx-nps1", "none")
    parent = values["parentUUID"]
    assert isinstance(parent, str)
    assert values["computePartition"] == "QPX" and parent == "GPU-" + parent[4:]
    assert part.capacity["computeUnits"].value == "76"
    assert [node.path for node in part.nodes] == ["/dev/kfd"], "its own nodes are there once the GPU is in the mode"


def test_published_devices_do_not_depend_on_the_mode(tmp_path: Path, inventory: Inventory) -> None:
    from dra_agent.simulate.kernel import SimulatedKernel

    host = build_machine(machine(), tmp_path / "host")
    SimulatedKernel(tmp_path / "host", machine()).write("bus/pci/devices/0000:11:00.0/current_compute_partition", "CPX")
    assert len(collect(host, scan(host), InventorySettings()).devices) == 9, "eight partitions, and the other GPU"
    divided = collect(host, scan(host), DIVISIBLE)
    assert [device.to_api() for device in divided.devices] == [device.to_api() for device in inventory.devices]


def ask(name: str, mode: str, count: int) -> dict[str, Any]:
    wanted = f'device.attributes["{DRIVER}"].computePartition == "{mode}"'
    exactly = {"deviceClassName": "any", "count": count, "selectors": [{"cel": {"expression": wanted}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "any"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


class Node:
    """What a node offers, and what its claims have of it."""

    def __init__(self, inventory: Inventory) -> None:
        self.devices = {device.name: device for device in inventory.devices}
        self.slices = desired_slices(inventory, node="node-a", driver=DRIVER, naming="fixed").slices
        self.held: list[dict[str, Any]] = []

    def allocate(self, name: str, mode: str, count: int) -> bool:
        claim = ask(name, mode, count)
        answer = allocate(node="node-a", classes=[CLASS], slices=self.slices, claims=[claim], allocated=self.held)
        assert answer["error"] is None
        if answer["allocated"]:
            self.held.append({**claim, "status": {"allocation": answer["results"][0]}})
        return answer["allocated"]

    def modes(self) -> dict[str, list[str]]:
        """The mode of every partition that a claim has, by its GPU."""
        found: dict[str, list[str]] = {}
        for claim in self.held:
            for result in claim["status"]["allocation"]["devices"]["results"]:
                device = self.devices[result["device"]]
                found.setdefault(device.pci_address, []).append(str(device.attributes["computePartition"].value))
        return found


@pytest.fixture(scope="module")
def node(inventory: Inventory) -> Node:
    return Node(inventory)


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.tuples(st.sampled_from(["SPX", "DPX", "QPX", "CPX"]), st.integers(1, 4)), min_size=1, max_size=9),
    dropped=st.sets(st.integers(0, 8), max_size=4),
)
def test_the_scheduler_never_mixes_modes_and_refuses_nothing_else(
    node: Node, asked: list[tuple[str, int]], dropped: set[int]
) -> None:
    node.held.clear()
    for number, (mode, count) in enumerate(asked):
        before = node.modes()
        free = sum(
            PARTS[mode] - len(before.get(address, []))
            for address in ("0000:11:00.0", "0000:12:00.0")
            if set(before.get(address, [mode])) == {mode}
        )
        assert node.allocate(f"claim-{number}", mode, count) == (count <= free)
        assert all(len(set(modes)) == 1 for modes in node.modes().values()), node.modes()
        if number in dropped and node.held:
            node.held.pop(0)

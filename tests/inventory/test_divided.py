"""GPUs that are offered as a whole and in every MIG partition that they could hold, on simulated hosts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import dra_simulate
from dra_agent.inventory.api import Taint
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.nvidia.partitions import GpuInstance, PartitionLayout
from dra_agent.inventory.nvidia.profiles import MigProfile, Placement, profile_label
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.slices import desired_slices, diff_slices
from dra_agent.topology import LiveTopology
from dra_simulate import inject
from eventually import DEADLINE_S

ALL = 'device.attributes["dra-agent.internal"].type == "gpu"'
FIRST = "gpu-0000-1b-00-0"


def inventory(root: Path, profile: str, when: str) -> Inventory:
    host = dra_simulate.build(profile, root)
    collector = Collector(host, InventorySettings(partition=(PartitionRule(when=when, mode="mig"),)))
    try:
        return collector.collect(LiveTopology(host).snapshot())
    finally:
        collector.close()


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return inventory(tmp_path_factory.mktemp("dgx") / "host", "dgx-h100", ALL)


def amounts(device: Device) -> dict[str, str]:
    (takes,) = device.consumes_counters
    return {name: counter.value for name, counter in takes.counters.items()}


def test_every_profile_at_every_place_and_the_whole_draw_on_the_counters_of_their_gpu(dgx: Inventory) -> None:
    assert dgx.problems == ()
    gpus = dgx.family("gpu")
    assert len(gpus) == 8 * 26
    assert len({device.name for device in gpus}) == 8 * 26
    sets = {counters.name: counters for counters in dgx.counter_sets["gpu"]}
    assert len(sets) == 8
    first = {name: counter.value for name, counter in sets[FIRST].counters.items()}
    assert first == {
        "memory": "81152Mi",
        "multiprocessors": "132",
        "copy-engines": "8",
        "decoders": "7",
        "jpeg-engines": "7",
        "ofa-engines": "1",
        **{f"memory-slice-{number}": "1" for number in range(8)},
    }
    whole = dgx.device(FIRST)
    assert whole is not None
    assert whole.attributes["type"].string == "gpu"
    assert whole.identity["mig"] == "whole"
    assert amounts(whole) == first
    assert all(device.consumes_counters[0].counter_set in sets for device in gpus)


def test_a_partition_describes_its_future_instance(dgx: Inventory) -> None:
    device = dgx.device(f"{FIRST}-mig-3g-40gb-4")
    assert device is not None
    found = {name: attribute.value for name, attribute in device.attributes.items()}
    whole = dgx.device(FIRST)
    assert whole is not None
    assert found["type"] == "mig"
    assert found["profile"] == "3g.40gb"
    assert found["memoryEnforcement"] == "mig"
    assert found["parentUUID"] == whole.attributes["uuid"].value == device.identity["parent_uuid"]
    assert "uuid" not in found
    assert found["resource.kubernetes.io/pciBusID"] == "0000:1b:00.0"
    assert device.capacity["memory"].value == "40448Mi"
    assert device.capacity["multiprocessors"].value == "60"
    assert amounts(device) == {
        "memory": "40448Mi",
        "multiprocessors": "60",
        "copy-engines": "3",
        "decoders": "3",
        "jpeg-engines": "3",
        **{f"memory-slice-{number}": "1" for number in range(4, 8)},
    }
    assert device.identity["parent"] == FIRST
    assert device.identity["mig"] == "9:4:4"
    assert next(node.path for node in device.nodes) == "/dev/nvidia0"


def test_partitions_fit_together_as_the_placements_allow(dgx: Inventory) -> None:
    """Seven 1g; two 3g and nothing else; 3g + 2g + 1g + 1g; one with media engines at most."""
    devices = {device.name.removeprefix(f"{FIRST}-mig-"): device for device in dgx.family("gpu")}
    (counters,) = (one for one in dgx.counter_sets["gpu"] if one.name == FIRST)

    def fit(*names: str) -> bool:
        taken: dict[str, int] = {}
        for name in names:
            for counter, value in devices[name].consumes_counters[0].counters.items():
                taken[counter] = taken.get(counter, 0) + _number(value.value)
        return all(amount <= _number(counters.counters[name].value) for name, amount in taken.items())

    assert fit(*(f"1g-10gb-{start}" for start in range(7)))
    assert fit("3g-40gb-0", "3g-40gb-4")
    assert not any(fit("3g-40gb-0", "3g-40gb-4", f"1g-10gb-{start}") for start in range(7))
    assert fit("3g-40gb-4", "2g-20gb-2", "1g-10gb-1", "1g-10gb-0")
    assert fit("4g-40gb-0", "3g-40gb-4")
    assert not fit("1g-10gb-me-0", "1g-10gb-me-1")
    assert not fit("7g-80gb-0", "1g-10gb-6")


def test_a_rule_chooses_gpus(tmp_path: Path) -> None:
    when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"'
    taken = inventory(tmp_path / "host", "dgx-h100", when)
    assert len(taken.family("gpu")) == 26 + 7
    assert [counters.name for counters in taken.counter_sets["gpu"]] == [FIRST]
    assert all(not device.consumes_counters for device in taken.family("gpu") if device.pci_address != "0000:1b:00.0")


def test_a_gpu_whose_mode_takes_a_reset_is_offered_in_the_mode_that_it_is_in(tmp_path: Path) -> None:
    taken = inventory(tmp_path / "host", "mixed", 'device.attributes["dra-agent.internal"].vendor == "nvidia"')
    nvidia = [device for device in taken.family("gpu") if device.vendor == "nvidia"]
    assert [device.name for device in nvidia] == ["gpu-0000-1a-00-0"]
    (problem,) = (one for one in taken.problems if one.where == "gpu-0000-1a-00-0")
    assert "only with a reset" in problem.message
    assert problem.severity == "warning"


def test_an_a100_in_mig_mode_is_offered_in_partitions_only(tmp_path: Path) -> None:
    root = tmp_path / "host"
    host = dra_simulate.build("mixed", root)
    nvml = acquire(host.nvml_library, DEADLINE_S)
    nvml.start()
    gpu = nvml.call("nvmlDeviceGetHandleByPciBusId", b"00000000:1A:00.0")
    nvml.call("nvmlDeviceSetMigMode", gpu, 1)
    nvml.close()
    inject.reset(root, "0000:1a:00.0")
    taken = inventory(root, "mixed", 'device.attributes["dra-agent.internal"].vendor == "nvidia"')
    nvidia = [device for device in taken.family("gpu") if device.vendor == "nvidia"]
    assert len(nvidia) == 25
    assert {device.attributes["type"].string for device in nvidia} == {"mig"}
    (withheld,) = (one for one in taken.excluded if one.name == "gpu-0000-1a-00-0")
    assert "only with a reset" in withheld.reason


def test_a_rule_for_a_gpu_without_mig_is_reported(tmp_path: Path) -> None:
    taken = inventory(tmp_path / "host", "l40s", ALL)
    assert all(not device.consumes_counters for device in taken.devices)
    assert taken.counter_sets == {}


def test_a_node_of_eight_stays_within_the_limits_and_one_change_is_one_write(dgx: Inventory) -> None:
    desired = desired_slices(dgx, node="node-1", driver="dra-agent.internal", naming="fixed")
    assert desired.problems == []
    pool = [one for one in desired.slices if one["spec"]["pool"]["name"] == "node-1/gpu"]
    assert [len(one["spec"].get("devices", [])) for one in pool] == [52, 52, 52, 52, 0]
    assert [len(one["spec"].get("sharedCounters", [])) for one in pool] == [0, 0, 0, 0, 8]
    taint = Taint("dra-agent.internal/xid-48", "NoSchedule", time_added="2026-01-01T00:00:00Z")
    name = f"{FIRST}-mig-1g-10gb-4"
    tainted = msgspec.structs.replace(
        dgx,
        devices=tuple(
            msgspec.structs.replace(device, taints=(taint,)) if device.name == name else device
            for device in dgx.devices
        ),
    )
    after = desired_slices(
        tainted, node="node-1", driver="dra-agent.internal", published=desired.slices, naming="fixed"
    )
    (write,) = diff_slices(after.slices, desired.slices)
    assert (write.op, write.reason) == ("update", f"changes {name}")


def test_small_partitions_come_first_where_they_spoil_least_and_the_whole_comes_last(dgx: Inventory) -> None:
    desired = desired_slices(dgx, node="node-1", driver="dra-agent.internal", naming="fixed")
    names = [device["name"] for one in desired.slices for device in one["spec"].get("devices", [])]
    first = [name.removeprefix(FIRST) for name in names if name.startswith(FIRST)]
    assert names[:26] == [FIRST + rest for rest in first]  # no partition of the next GPU comes before
    assert [name[-1] for name in first if name.startswith("-mig-1g-10gb-") and "me" not in name] == list("6543210")
    assert [name[-1] for name in first if name.startswith("-mig-3g")] == ["4", "0"]
    assert [name[-1] for name in first if name.startswith("-mig-2g")] == ["4", "2", "0"]
    assert first[0] == "-mig-1g-10gb-6"
    assert first[-2:] == ["-mig-7g-80gb-0", ""]


H100 = (
    MigProfile(19, "1g.10gb", 1, 10 << 30, tuple(Placement(n, 1) for n in range(7)), {"multiprocessors": 16}),
    MigProfile(9, "3g.40gb", 3, 40 << 30, (Placement(0, 4), Placement(4, 4)), {"multiprocessors": 60}),
    MigProfile(0, "7g.80gb", 7, 80 << 30, (Placement(0, 8),), {"multiprocessors": 132}),
)


def test_partitions_that_overlap_foreign_instances_do_not_fit() -> None:
    division = PartitionLayout(H100, [GpuInstance(1, 9, Placement(4, 4))])
    fitting = [partition.text for partition in division.partitions if division.fits(partition)]
    assert fitting == [*(f"1g.10gb at memory slice {n}" for n in (3, 2, 1, 0)), "3g.40gb at memory slice 0"]
    counters = division.counters("gpu").counters
    assert counters["multiprocessors"].value == "72"
    assert counters["memory-slice-3"].value == "1"
    assert counters["memory-slice-4"].value == "0"


def test_an_instance_of_an_unoffered_profile_uses_its_place() -> None:
    division = PartitionLayout(H100, [GpuInstance(1, 77, Placement(0, 2))])
    assert not any(division.fits(one) for one in division.partitions if one.placement.start < 2)
    assert division.named(77, 0) == "profile 77 at memory slice 0"


@pytest.mark.parametrize(
    ("profile", "part"),
    [("1g.10gb", "1g.10gb"), ("1g.24gb+me", "1g.24gb+me"), ("1g.24gb-me", "1g.24gb-nome")],
)
def test_profiles_with_and_without_media_engines_differ_in_name(profile: str, part: str) -> None:
    assert profile_label(profile) == part


def _number(quantity: str) -> int:
    for suffix, factor in (("Gi", 1 << 30), ("Mi", 1 << 20)):
        if quantity.endswith(suffix):
            return int(quantity.removesuffix(suffix)) * factor
    return int(quantity)

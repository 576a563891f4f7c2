"""The example claims on simulated hosts: each is allocated on suitable hosts and refused on others."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import pytest

from allocator.question import allocate
from dra_agent import simulate, topology
from dra_agent.agent.config import load_config
from dra_agent.inventory.collector import collect
from dra_agent.inventory.settings import InventorySettings
from dra_agent.manifests import load_manifests
from dra_agent.slices import desired_slices

EXAMPLES = Path(__file__).parents[2] / "examples"
DRIVER = "dra-agent.internal"
ANY = "h100-else-l40s-else-any"


def objects(folder: str) -> dict[str, dict[str, Any]]:
    return {
        loaded.name: loaded.value
        for path in sorted((EXAMPLES / folder).glob("*.yaml"))
        for loaded in load_manifests(path)
    }


def published(profile: str, root: Path, settings: InventorySettings | None = None) -> list[dict[str, Any]]:
    host = simulate.build(profile, root)
    found = collect(host, topology.scan(host), settings, driver=DRIVER)
    desired = desired_slices(found, node="node-1", driver=DRIVER, naming="fixed")
    assert desired.problems == []
    return desired.slices


def allocated_devices(claim: dict[str, Any], slices: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the devices of each request of a claim, as the slices describe them; empty if it does not fit."""
    outcome = allocate(node="node-1", classes=objects("classes").values(), slices=slices, claims=[claim])
    assert outcome["error"] is None
    by_name = {
        (spec["pool"]["name"], device["name"]): device
        for slice_ in slices
        for spec in [slice_["spec"]]
        for device in spec.get("devices", [])
    }
    devices: dict[str, list[dict[str, Any]]] = {}
    for allocation in outcome["results"]:
        for result in allocation["devices"]["results"]:
            devices.setdefault(result["request"], []).append(by_name[result["pool"], result["device"]])
    return devices


def value(device: dict[str, Any], attribute: str) -> Any:
    return next(iter(device["attributes"][attribute].values()))


@pytest.mark.parametrize(
    ("profile", "fitting"),
    [
        (
            "dgx-h100",
            {
                "high-memory",
                "research",
                "inference",
                "development",
                "four-gpus-one-link-group",
                "gpu-and-nic-one-switch",
                "one-gpu",
                ANY,
            },
        ),
        (
            "hgx-h200",
            {
                "four-gpus-one-link-group",
                "high-memory",
                "research",
                "inference",
                "development",
                "gpu-and-nic-one-switch",
                "two-gpus-one-root",
                "one-gpu",
                ANY,
            },
        ),
        ("mi300x", {"amd", "development", "four-gpus-one-link-group", "gpu-and-nic-one-switch", "one-gpu", ANY}),
        ("flex170", {"intel", "development", "one-gpu", ANY}),
        ("l40s", {"high-memory", "research", "inference", "development", "one-gpu", ANY}),
        ("mixed", {"amd", "intel", "fpga", "high-memory", "inference", "development", "one-gpu", ANY}),
        ("cpu-only", set()),
    ],
)
def test_each_claim_fits_exactly_the_suitable_hosts(profile: str, fitting: set[str], tmp_path: Path) -> None:
    slices = published(profile, tmp_path)
    claims = objects("claims")
    assert {name for name, claim in claims.items() if allocated_devices(claim, slices)} == fitting
    chosen = {"dgx-h100": "gpu/h100", "l40s": "gpu/l40s", "cpu-only": None}.get(profile, "gpu/any")
    assert list(allocated_devices(claims[ANY], slices)) == ([chosen] if chosen else [])


def test_devices_with_a_locality_constraint_are_close(tmp_path: Path) -> None:
    slices = published("hgx-h200", tmp_path)
    claims = objects("claims")
    pair = allocated_devices(claims["two-gpus-one-root"], slices)["gpus"]
    assert len({gpu["name"] for gpu in pair}) == 2
    assert len({value(gpu, "resource.kubernetes.io/pcieRoot") for gpu in pair}) == 1
    closest = allocated_devices(claims["gpu-and-nic-one-switch"], slices)
    (gpu,), (nic,) = closest["gpu"], closest["nic"]
    assert value(gpu, "pcieSwitch") == value(nic, "pcieSwitch")
    assert value(nic, "rdma") is True


@pytest.mark.parametrize(
    ("profile", "fits"),
    [
        pytest.param("hgx-h200", True, id="two GPUs per switch"),
        pytest.param("dgx-h100", False, id="one GPU per switch"),
    ],
)
def test_two_gpus_and_a_nic_of_the_pod_are_below_one_switch(profile: str, *, fits: bool, tmp_path: Path) -> None:
    claim = next(
        loaded.value
        for loaded in load_manifests(EXAMPLES / "pods/two-gpus-and-a-nic.yaml", strict=False)
        if loaded.kind == "ResourceClaim"
    )
    found = allocated_devices(claim, published(profile, tmp_path))
    assert {request: len(devices) for request, devices in found.items()} == ({"gpus": 2, "nic": 1} if fits else {})
    assert len({value(device, "pcieSwitch") for devices in found.values() for device in devices}) == int(fits)


@pytest.mark.parametrize(
    ("profile", "counts"),
    [
        pytest.param("mi210", {4: 2, 5: 0, 2: 4}, id="two hives of four"),
        pytest.param("h100-nvl", {2: 2, 3: 0, 4: 0}, id="bridged pairs"),
        pytest.param("dgx-2", {16: 1, 8: 2}, id="all sixteen"),
    ],
)
def test_gpus_of_one_link_group_are_linked(profile: str, counts: dict[int, int], tmp_path: Path) -> None:
    """`counts`: how many claims of so many GPUs fit at the same time."""
    slices = published(profile, tmp_path)
    for count, fitting in counts.items():
        claim = copy.deepcopy(objects("claims")["four-gpus-one-link-group"])
        claim["spec"]["devices"]["requests"][0]["exactly"]["count"] = count
        claims = [{**claim, "metadata": {"name": f"c{n}", "namespace": "default", "uid": f"uid-{n}"}} for n in range(5)]
        for number in {max(fitting, 1), fitting + 1}:
            outcome = allocate(
                node="node-1", classes=objects("classes").values(), slices=slices, claims=claims[:number]
            )
            assert outcome["error"] is None and outcome["allocated"] is (number == fitting), (count, number)
        if fitting:
            devices = allocated_devices(claim, slices)["gpus"]
            assert len(devices) == count and len({value(device, "interconnectGroup") for device in devices}) == 1


@pytest.mark.parametrize(
    ("claim", "memory", "fits"),
    [
        pytest.param("high-memory", "22731Mi", True, id="A10 under driver 470"),
        pytest.param("high-memory", "23028Mi", True, id="A10 under driver 535"),
        pytest.param("high-memory", "20475Mi", False, id="20 GB are less than 24 GB"),
        pytest.param("research", "45634Mi", True, id="RTX A6000 under driver 470"),
        pytest.param("research", "40960Mi", False, id="40 GB are less than 48 GB"),
        pytest.param("inference", "15109Mi", True, id="T4 under driver 470"),
        pytest.param("inference", "15360Mi", True, id="T4 under driver 535"),
        pytest.param("inference", "12288Mi", False, id="12 GB are less than 16 GB"),
        pytest.param("development", "7611Mi", True, id="P4 under driver 440"),
    ],
)
def test_a_claim_by_memory_fits_a_board_under_every_driver(claim: str, memory: str, fits: bool, tmp_path: Path) -> None:
    slices = published("l40s", tmp_path)
    for slice_ in slices:
        for device in slice_["spec"].get("devices") or []:
            if "memory" in device.get("capacity", {}):
                device["capacity"]["memory"]["value"] = memory
    assert bool(allocated_devices(objects("claims")[claim], slices)) is fits


def test_latency_from_the_configuration_makes_a_nic_claimable(tmp_path: Path) -> None:
    claim = objects("claims")["low-latency-smartnic"]
    assert allocated_devices(claim, published("dgx-h100", tmp_path)) == {}
    config = load_config(argparse.Namespace(config=EXAMPLES / "agent/latency.toml"), {})
    devices = allocated_devices(claim, published("dgx-h100", tmp_path, config.inventory))
    (nic,) = devices["nic"]
    assert (value(nic, "type"), value(nic, "latency")) == ("nic", "sub-microsecond")


def test_a_shared_gpu_serves_several_claims(tmp_path: Path) -> None:
    claim = objects("claims")["small-model"]
    config = load_config(argparse.Namespace(config=EXAMPLES / "agent/shares.toml"), {})
    slices = published("dgx-h100", tmp_path, config.inventory)
    claims = [{**claim, "metadata": {"name": f"c{n}", "namespace": "default", "uid": f"uid-{n}"}} for n in range(20)]
    outcome = allocate(node="node-1", classes=objects("classes").values(), slices=slices, claims=claims)
    results = [result for one in outcome["results"] for result in one["devices"]["results"]]
    devices = [result["device"] for result in results]
    # 19 times 4Gi of 79.6Gi, and the next GPU is used for the twentieth only.
    assert [devices.count(name) for name in dict.fromkeys(devices)] == [19, 1]
    assert {result["consumedCapacity"]["memory"] for result in results} == {"4Gi"}
    assert allocated_devices(claim, published("dgx-h100", tmp_path)) == {}


def test_mig_partitions_fill_one_gpu_before_the_next(tmp_path: Path) -> None:
    config = load_config(argparse.Namespace(config=EXAMPLES / "agent/mig.toml"), {})
    slices = published("dgx-h100", tmp_path, config.inventory)
    small = objects("claims")["mig-small"]
    (chosen,) = allocated_devices(objects("claims")["mig-by-memory"], slices)["gpu"]
    assert value(chosen, "profile") == "3g.40gb"
    claims = [{**small, "metadata": {"name": f"c{n}", "namespace": "default", "uid": f"uid-{n}"}} for n in range(57)]
    outcome = allocate(node="node-1", classes=objects("classes").values(), slices=slices, claims=claims[:56])
    results = [result for one in outcome["results"] for result in one["devices"]["results"]]
    gpus = [result["device"].partition("-mig-")[0] for result in results]
    assert gpus == sorted(gpus)
    assert [gpus.count(gpu) for gpu in dict.fromkeys(gpus)] == [7] * 8
    assert not allocate(node="node-1", classes=objects("classes").values(), slices=slices, claims=claims)["allocated"]
    assert allocated_devices(small, published("dgx-h100", tmp_path)) == {}

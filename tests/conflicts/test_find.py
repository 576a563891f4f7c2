"""Which devices another manager advertises too, as a pure function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from dra_agent.conflicts import ForeignDevice, exclude, find_conflicts, foreign_devices, observe
from dra_agent.inventory.api import Attribute, CounterConsumption, CounterSet
from dra_agent.inventory.model import Device, Inventory

DRIVER, NODE = "dra-agent.internal", "node-1"


def device(name: str, family: Any, vendor: str, address: str, **more: Any) -> Device:
    attributes = {key: Attribute.of(value) for key, value in more.pop("attributes", {}).items()}
    return Device(name, family, vendor, address, attributes=attributes, **more)


GPU = device("gpu-0", "gpu", "nvidia", "0000:1b:00.0", identity={"uuid": "GPU-1B"})
MIG = device(
    "gpu-1-mig", "gpu", "nvidia", "0000:43:00.0", identity={"uuid": "MIG-9"}, attributes={"parentUUID": "GPU-43"}
)
AMD = device("gpu-2", "gpu", "amd", "0000:05:00.0")
INTEL = device("gpu-3", "gpu", "intel", "0000:03:00.0")
RDMA = device("nic-0", "nic", "mellanox", "0000:18:00.0", attributes={"rdma": True, "isSriovVf": False})
VF = device("nic-1", "nic", "intel", "0000:3b:01.0", attributes={"rdma": False, "isSriovVf": True})
GAUDI = device("accelerator-0", "accelerator", "habana", "0000:19:00.0")
FPGA = device("fpga-0", "fpga", "xilinx", "0000:af:00.1")
ALL = (GPU, MIG, AMD, INTEL, RDMA, VF, GAUDI, FPGA)


def node(**capacity: str) -> dict[str, Any]:
    return {"metadata": {"name": NODE}, "status": {"capacity": {"cpu": "8", "memory": "64Gi", **capacity}}}


def api_slice(driver: str, *devices: dict[str, Any], node: str = NODE) -> dict[str, Any]:
    return {"spec": {"driver": driver, "nodeName": node, "devices": list(devices)}}


def api_device(name: str, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def devices_of(slices: Iterable[dict[str, Any]]) -> list[ForeignDevice]:
    return list(foreign_devices(slices, driver=DRIVER, node=NODE))


def conflicts(*slices: dict[str, Any], node: dict[str, Any] = node(), devices: Any = ALL) -> dict[str, str]:  # noqa: B008
    return find_conflicts(devices, observe(node=node, foreign=devices_of(slices))).managers


def test_another_agent_of_the_host_is_named_by_its_state_directory() -> None:
    """Two drivers of this product on one node: the message leads to the second one's configuration."""
    slices = [
        api_slice(
            "nvidia.example.com", api_device("gpu-0000-1b-00-0", **{"resource.kubernetes.io/pciBusID": "0000:1b:00.0"})
        )
    ]
    agents = {"nvidia.example.com": "/var/lib/second", "nics.example.com": "/var/lib/third"}
    observation = observe(node=node(), foreign=devices_of(slices), agents=agents)
    conflicts = find_conflicts(ALL, observation)
    assert conflicts.managers == {
        "gpu-0": "driver nvidia.example.com (dra-agent of this host, state directory /var/lib/second)"
    }


@pytest.mark.parametrize(
    ("resource", "covered"),
    [
        ("nvidia.com/gpu", [GPU, MIG]),
        ("nvidia.com/gpu.shared", [GPU, MIG]),
        ("nvidia.com/mig-1g.10gb", [GPU, MIG]),
        ("nvidia.com/GA102GL_A10", [GPU, MIG]),
        ("amd.com/gpu", [AMD]),
        ("amd.com/cpx_nps4", [AMD]),
        ("amd.com/xilinx_u250_gen3x16_xdma_4_1_202210_1-0", [FPGA]),
        ("xilinx.com/fpga-xilinx_u200", [FPGA]),
        ("gpu.intel.com/i915", [INTEL]),
        ("gpu.intel.com/xe", [INTEL]),
        ("gpu.intel.com/i915_monitoring", []),
        ("rdma/hca_shared_devices_a", [RDMA]),
        ("nvidia.com/hostdev", [RDMA]),
        ("intel.com/intel_sriov_netdevice", [VF]),
        ("openshift.io/mlx_vf", [VF]),
        ("nvidia.com/GA102_vfio", [GPU, MIG]),
        ("habana.ai/gaudi", [GAUDI]),
        ("example.com/foo", []),
        ("hugepages-2Mi", []),
        ("dra-agent.internal/gpu", []),
    ],
)
def test_a_device_plugin_covers_the_devices_of_its_kind(resource: str, covered: list[Device]) -> None:
    expected = {found.name: f"device plugin {resource}" for found in ALL if found in covered}
    assert conflicts(node=node(**{resource: "2"})) == expected


@pytest.mark.parametrize("amount", ["0", "00", "0Ki", "0.0", "0e3"])
def test_zero_capacity_of_a_removed_plugin_is_ignored(amount: str) -> None:
    assert conflicts(node=node(**{"nvidia.com/gpu": amount})) == {}
    assert conflicts(node=node(**{"nvidia.com/gpu": f"{amount}1" if amount.isdigit() else "10Ki"})) != {}


def test_a_node_without_status_has_no_device_plugin() -> None:
    nothing: list[dict[str, Any]] = [{}, {"status": None}, {"status": {"capacity": None}}, {"status": {}}]
    for empty in nothing:
        assert conflicts(node=empty) == {}


def test_an_extended_resource_of_dra_is_not_a_device_plugin() -> None:
    # A DeviceClass with extendedResourceName: nvidia.com/gpu changes no Node; the agent's own slices are ignored, too.
    own = api_slice(DRIVER, api_device("gpu-0", **{"resource.kubernetes.io/pciBusID": "0000:1b:00.0"}))
    assert conflicts(own, node=node()) == {}


@pytest.mark.parametrize(
    ("driver", "device", "conflicting"),
    [
        ("gpu.nvidia.com", api_device("gpu-0", **{"resource.kubernetes.io/pciBusID": "0000:1b:00.0"}), GPU),
        ("gpu.nvidia.com", api_device("gpu-0", pcieBusID="00000000:1B:00.0"), GPU),
        ("gpu.nvidia.com", api_device("gpu-0", uuid="gpu-1b"), GPU),
        ("gpu.nvidia.com", api_device("gpu-0", **{"gpu.nvidia.com/uuid": "GPU-1B"}), GPU),
        ("gpu.nvidia.com", api_device("gpu-1", uuid="GPU-43"), MIG),
        ("gpu.nvidia.com", api_device("gpu-1-mig-9", uuid="MIG-1", parentUUID="GPU-43"), MIG),
        ("gpu.amd.com", api_device("gpu-1-129", pciAddr="0000:05:00.0"), AMD),
        ("gpu.intel.com", api_device("0000-03-00-0-0x56c0", model="0x56c0"), INTEL),
        ("dra.net", api_device("eth7", **{"dra.net/pciAddress": "0000:18:00.0"}), RDMA),
        ("dra.net", api_device("pci-0000-18-00-0"), RDMA),
        ("sriovnetwork.k8snetworkplumbingwg.io", api_device("x", pciAddress="0000:3b:01.0"), VF),
    ],
)
def test_a_device_of_another_driver_is_identified(driver: str, device: dict[str, Any], conflicting: Device) -> None:
    assert conflicts(api_slice(driver, device)) == {conflicting.name: f"driver {driver}"}


@pytest.mark.parametrize(
    "item",
    [
        api_slice(DRIVER, api_device("x", uuid="GPU-1B")),
        api_slice("gpu.nvidia.com", api_device("x", uuid="GPU-1B"), node="node-2"),
        api_slice("gpu.nvidia.com", api_device("x", uuid="GPU-FF")),
        api_slice("gpu.nvidia.com", api_device("x", **{"resource.kubernetes.io/pcieRoot": "0000:1b:00.0"})),
        api_slice("gpu.nvidia.com", api_device("x", pciBusID="0000:1b:00.1")),
        api_slice("gpu.nvidia.com", api_device("x", pciBusID="nonsense")),
        api_slice("gpu.nvidia.com", {"name": "x", "attributes": {"uuid": {"int": 5}, "y": None}}),
        api_slice("gpu.nvidia.com", {"name": "x", "attributes": None}),
        {"spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "devices": [None, 7, {}]}},
        {"spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "sharedCounters": []}},
        {"spec": {"driver": "gpu.nvidia.com", "allNodes": True, "devices": [api_device("x", uuid="GPU-1B")]}},
        {"spec": None},
        {},
    ],
)
def test_unrelated_slices_cause_no_conflict(item: dict[str, Any]) -> None:
    assert conflicts(item) == {}


def test_a_driver_takes_precedence_over_a_device_plugin() -> None:
    found = conflicts(api_slice("gpu.nvidia.com", api_device("x", uuid="GPU-1B")), node=node(**{"nvidia.com/gpu": "8"}))
    assert found == {GPU.name: "driver gpu.nvidia.com", MIG.name: "device plugin nvidia.com/gpu"}


def test_two_drivers_of_one_device_are_named_in_a_stable_order() -> None:
    slices = [api_slice(name, api_device("x", uuid="GPU-1B")) for name in ("b.example.com", "a.example.com")]
    assert conflicts(*slices) == conflicts(*reversed(slices)) == {GPU.name: "driver a.example.com"}


def test_conflicting_devices_are_excluded_with_a_reason() -> None:
    counters = (CounterSet("gpu-a", {}), CounterSet("gpu-b", {}))
    partitions = {
        name: device(
            f"gpu-{name}",
            "gpu",
            "amd",
            f"0000:0{name}:00.0",
            consumes_counters=(CounterConsumption(f"gpu-{name}", {}),),
        )
        for name in ("a", "b")
    }
    inventory = Inventory(devices=(partitions["a"], partitions["b"], RDMA), counter_sets={"gpu": counters})
    conflicts = find_conflicts(
        inventory.devices,
        observe(node=node(), foreign=devices_of([api_slice("x.y", api_device("z", pciAddr="0000:0a:00.0"))])),
    )
    published = exclude(inventory, conflicts)
    assert published.devices == (partitions["b"], RDMA)
    assert published.counter_sets == {"gpu": (counters[1],)}
    (exclusion,) = published.excluded
    assert exclusion.name == "gpu-a" and exclusion.reason.startswith("driver x.y also advertises it on this node")
    assert "inventory.exclude" in exclusion.reason and 'second_manager = "publish"' in exclusion.reason
    assert exclude(inventory, find_conflicts((), observe(node={}, foreign=()))) is inventory

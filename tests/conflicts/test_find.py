"""Which devices another manager advertises too, as a pure function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from dra_agent.conflicts import (
    DeviceConflicts,
    ForeignDevice,
    exclude,
    find_conflicts,
    foreign_devices,
    identities_of_host,
    observe,
)
from dra_agent.diagnostic import Diagnostic
from dra_agent.inventory.api import Attribute, CounterConsumption, CounterSet
from dra_agent.inventory.model import Device, Exclusion, Inventory
from dra_agent.inventory.rules import Rules
from dra_agent.inventory.settings import InventorySettings

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


def find(
    *slices: dict[str, Any],
    node: dict[str, Any] = node(),  # noqa: B008
    devices: Any = ALL,
    host: Iterable[str] = (),
) -> DeviceConflicts:
    foreign = [device for device in devices_of(slices) if device.is_on(node)]
    return find_conflicts(devices, observe(node=node, foreign=foreign), host)


def conflicts(*slices: dict[str, Any], node: dict[str, Any] = node(), devices: Any = ALL) -> dict[str, str]:  # noqa: B008
    return find(*slices, node=node, devices=devices).managers


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
    "item",
    [
        api_slice(DRIVER, api_device("x", uuid="GPU-1B")),
        api_slice("gpu.nvidia.com", api_device("x", uuid="GPU-1B"), node="node-2"),
        {"spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "sharedCounters": []}},
        {"spec": {"driver": "gpu.nvidia.com", "nodeName": 5, "devices": [api_device("x", uuid="GPU-1B")]}},
        {"spec": {"driver": "gpu.nvidia.com", "allNodes": "yes", "devices": [api_device("x", uuid="GPU-1B")]}},
        {"spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "devices": {"x": 1}}},
        {"spec": {"driver": ["gpu.nvidia.com"], "nodeName": NODE, "devices": [api_device("x", uuid="GPU-1B")]}},
        {"spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "devices": [None, 7, {}, {"name": 5}]}},
        {"spec": []},
        {"spec": None},
        {},
    ],
)
def test_unrelated_and_invalid_slices_are_passed_over(item: dict[str, Any]) -> None:
    assert conflicts(item) == {}
    valid = api_slice("gpu.amd.com", api_device("x", pciAddr="0000:05:00.0"))
    assert conflicts(item, valid) == conflicts(valid, item) == {AMD.name: "driver gpu.amd.com"}


@pytest.mark.parametrize(
    "attributes",
    [None, [], {"uuid": {"int": 5}, "y": None, "z": [1]}, {"uuid": {"string": "x" * 1_000_000}}, {5: {"string": "x"}}],
)
def test_a_device_with_nonsense_is_a_device_that_cannot_be_matched(attributes: Any) -> None:
    found = find(api_slice("gpu.nvidia.com", {"name": "x" * 1000, "attributes": attributes}))
    assert found.managers == {GPU.name: "driver gpu.nvidia.com", MIG.name: "driver gpu.nvidia.com"}
    assert set(found.unmatched.values()) == {"its slices do not identify the devices"}


def test_many_devices_that_do_not_differ_are_one() -> None:
    item = api_slice("gpu.nvidia.com", *(api_device(f"gpu-{number}") for number in range(10_000)))
    assert devices_of([item]) == [ForeignDevice("gpu.nvidia.com")]


TRAINIUM = tuple(
    device(
        f"accelerator-0000-{bus}-00-0",
        "accelerator",
        "amazon",
        f"0000:{bus}:00.0",
        identity={"driver": "neuron", "accel": f"neuron{number}"},
    )
    for number, bus in enumerate(("10", "20"))
)
EFA = device("nic-0000-c9-00-0", "nic", "amazon", "0000:c9:00.0", attributes={"rdma": True, "isSriovVf": False})


def neuron_device(number: int) -> dict[str, Any]:
    """A device as AWS's driver publishes it: an index, and the address of its network adapter."""
    return {
        "name": f"neuron-device-{number}",
        "attributes": {
            "deviceId": {"int": number},
            "instanceType": {"string": "trn2.48xlarge"},
            "topology_x": {"int": number},
            "topology_y": {"int": 0},
            "networkNodeLayer1": {"string": "nn-1"},
            "resource.aws.com/devicegroup1_id": {"string": "0000:c9:00.0"},
            "resource.aws.com/devicegroup4_id": {"string": "5e884898da280471"},
        },
    }


def test_all_devices_of_a_driver_that_names_them_by_index_are_withheld() -> None:
    found = find(api_slice("neuron.aws.com", neuron_device(0)), devices=(*TRAINIUM, EFA, GPU))
    assert found.managers == dict.fromkeys((device.name for device in TRAINIUM), "driver neuron.aws.com")
    reason = found.reason(TRAINIUM[1].name)
    assert "driver neuron.aws.com may advertise it on this node too" in reason
    assert "its slices do not identify the devices" in reason
    assert "inventory.exclude" in reason and 'second_manager = "publish"' in reason
    (group,) = found.groups()
    assert str(group) == (
        "driver neuron.aws.com may advertise 2 devices of this node too (its slices do not identify the devices)"
    )
    (published,) = exclude(Inventory(devices=TRAINIUM), found).excluded[:1]
    assert (published.reason, published.code) == (found.reason(TRAINIUM[0].name), "unmatched-manager")


def test_one_device_that_is_not_of_this_host_withholds_the_rest_of_the_family() -> None:
    slices = api_slice("gpu.nvidia.com", api_device("gpu-0", uuid="GPU-1B"), api_device("gpu-1", uuid="GPU-FF"))
    found = find(slices)
    assert found.managers == {GPU.name: "driver gpu.nvidia.com", MIG.name: "driver gpu.nvidia.com"}
    assert found.unmatched == {MIG.name: "it lists gpu-ff, which this host does not have"}
    assert found.reason(GPU.name).startswith("driver gpu.nvidia.com also advertises it on this node")
    assert [(group.names, bool(group.unmatched)) for group in found.groups()] == [
        ([GPU.name], False),
        ([MIG.name], True),
    ]


def test_functions_of_the_host_that_are_excluded_here_are_known() -> None:
    slices = api_slice("gpu.nvidia.com", api_device("gpu-0", pcieBusID="00000000:99:00.0"))
    assert find(slices).unmatched
    assert find(slices, host={"0000:99:00.0"}) == DeviceConflicts()
    slices = api_slice("dra.net", api_device("eth0", **{"dra.net/ifName": "eth0"}))
    assert find(slices).unmatched == dict.fromkeys(
        (RDMA.name, VF.name), "it lists net/eth0, which this host does not have"
    )
    assert find(slices, host={"net/eth0"}) == DeviceConflicts()


@pytest.mark.parametrize("device", [GPU, MIG], ids=["whole", "partition"])
def test_a_gpu_that_a_rule_leaves_to_another_driver_is_known_by_its_uuid(device: Device) -> None:
    other = msgspec.structs.replace(device, name="gpu-9", pci_address="0000:99:00.0", identity={"uuid": "GPU-99"})
    problems: list[Diagnostic] = []
    excluded: list[Exclusion] = []
    rules = Rules(InventorySettings(exclude=("true",)), DRIVER)
    assert rules.apply([other], problems, excluded) == ()
    slices = api_slice("gpu.nvidia.com", api_device("gpu-0", parentUUID="GPU-43" if device is MIG else "GPU-99"))
    kept = (msgspec.structs.replace(GPU, identity={"uuid": "GPU-2"}),)
    assert find(slices, devices=kept).unmatched, "without the exclusion, the device is not of this host"
    assert find(slices, devices=kept, host=identities_of_host((), excluded)) == DeviceConflicts()


def test_a_driver_without_a_row_is_judged_by_common_attributes_or_named() -> None:
    def of(driver: str, **attributes: str) -> DeviceConflicts:
        return find(api_slice(driver, api_device("x", **attributes)))

    for key in ("resource.kubernetes.io/pciBusID", "pciAddress", "x.example.com/bdf"):
        assert of("x.example.com", **{key: "0000:1b:00.0"}) == DeviceConflicts({GPU.name: "driver x.example.com"})
    assert of("x.example.com", uuid="GPU-1B").managers == {GPU.name: "driver x.example.com"}
    unjudged = DeviceConflicts(unjudged=("driver x.example.com",))
    for key in ("parentPciAddress", "pfPciAddress", "other.example.com/pciAddress", "resource.aws.com/devicegroup1_id"):
        assert of("x.example.com", **{key: "0000:1b:00.0"}) == unjudged
    assert of("x.example.com", pciAddress="0000:99:00.0") == unjudged
    assert not of("gpu.example.com", uuid="GPU-FF").unjudged, "a row without devices says that it has none"


def test_plugins_whose_names_operators_choose_are_named() -> None:
    found = find(node=node(**{"squat.ai/serial": "1", "example.com/foo": "1"}))
    assert found == DeviceConflicts(unjudged=("device plugin squat.ai/serial",))


LABELED = {"metadata": {"name": NODE, "labels": {"fabric": "7", "gpus": "4"}}}


def terms(*requirements: Any, fields: bool = False) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchFields" if fields else "matchExpressions": list(requirements)}]}


def requirement(key: Any, operator: Any, *values: Any) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (terms(requirement("fabric", "In", "7", "8")), True),
        (terms(requirement("fabric", "In", "8")), False),
        (terms(requirement("other", "In", "7")), False),
        (terms(requirement("fabric", "NotIn", "7")), False),
        (terms(requirement("other", "NotIn", "7")), True),
        (terms(requirement("fabric", "Exists")), True),
        (terms(requirement("fabric", "DoesNotExist")), False),
        (terms(requirement("gpus", "Gt", "3")), True),
        (terms(requirement("gpus", "Lt", "3")), False),
        (terms(requirement("other", "Gt", "3")), False),
        (terms(requirement("fabric", "In", "7"), requirement("gpus", "In", "5")), False),
        (terms(requirement("metadata.name", "In", NODE), fields=True), True),
        (terms(requirement("metadata.name", "In", "node-2"), fields=True), False),
        ({"nodeSelectorTerms": [{}, terms(requirement("fabric", "Exists"))["nodeSelectorTerms"][0]]}, True),
        ({"nodeSelectorTerms": [{}]}, False),
        ({"nodeSelectorTerms": []}, False),
        # What cannot be evaluated counts.
        (terms(requirement("fabric", "Near", "7")), True),
        (terms(requirement("gpus", "Gt", "many")), True),
        (terms(requirement(5, "Exists")), True),
        (terms("fabric"), True),
        ({"nodeSelectorTerms": "all"}, True),
        ({"nodeSelectorTerms": [7]}, True),
    ],
)
def test_node_selectors_are_evaluated_as_the_scheduler_does(selector: dict[str, Any], selected: bool) -> None:
    slices = {"spec": {"driver": "gpu.amd.com", "nodeSelector": selector, "devices": [api_device("x")]}}
    found = [device for device in devices_of([slices]) if device.is_on(LABELED)]
    assert bool(found) == selected
    assert all(device.is_on({}) for device in devices_of([slices])), "an unknown Node may be selected"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_each_form_of_naming_nodes_is_read(version: str) -> None:
    def in_version(name: str, address: str, **more: Any) -> dict[str, Any]:
        details = {"attributes": {"pciAddr": {"string": address}}, **more}
        return {"name": name, "basic": details} if version == "v1beta1" else {"name": name, **details}

    def of(*devices: dict[str, Any], **spec: Any) -> list[str]:
        found = devices_of([{"spec": {"driver": "gpu.amd.com", "devices": list(devices), **spec}}])
        return sorted(identity for device in found if device.is_on(LABELED) for identity in device.identities)

    here, there = terms(requirement("fabric", "In", "7")), terms(requirement("fabric", "In", "8"))
    gpu = in_version("gpu-0", "0000:05:00.0")
    for spec in ({"nodeName": NODE}, {"nodeSelector": here}, {"allNodes": True}):
        assert of(gpu, **spec) == ["0000:05:00.0"]
    for spec in ({"nodeName": "node-2"}, {"nodeSelector": there}, {"allNodes": False}, {}):
        assert of(gpu, **spec) == []
    assert of(
        in_version("gpu-0", "0000:00:00.0", nodeName=NODE),
        in_version("gpu-1", "0000:01:00.0", nodeName="node-2"),
        in_version("gpu-2", "0000:02:00.0", nodeSelector=here),
        in_version("gpu-3", "0000:03:00.0", nodeSelector=there),
        in_version("gpu-4", "0000:04:00.0", allNodes=True),
        in_version("gpu-5", "0000:05:00.0"),
        perDeviceNodeSelection=True,
    ) == ["0000:00:00.0", "0000:02:00.0", "0000:04:00.0"]


def test_devices_of_a_fabric_that_are_not_attached_are_no_devices_of_this_host() -> None:
    """As CoHDI's composable-dra-driver publishes them: under the name of the driver that has them once attached."""
    labels = {"cohdi.com/nvidia-a100-80g": "true", "cohdi.com/fabric": "1"}
    spec = {
        "pool": {"name": "nvidia-a100-80g-fabric1", "generation": 1, "resourceSliceCount": 1},
        "nodeSelector": terms(*(requirement(key, "In", value) for key, value in labels.items())),
        "devices": [
            {
                **api_device(f"nvidia-a100-80g-gpu{number}", type="gpu", productName="NVIDIA A100 80GB PCIe"),
                "bindsToNode": True,
                "bindingConditions": ["FabricDeviceReady"],
                "bindingFailureConditions": ["FabricDeviceReschedule", "FabricDeviceFailed"],
            }
            for number in range(3)
        ],
    }
    labeled = {"metadata": {"name": NODE, "labels": labels}}
    found = find({"spec": {"driver": "fabric.example.com", **spec}}, node=labeled)
    assert found == DeviceConflicts(unjudged=("driver fabric.example.com",))
    # That driver has each GPU that is attached, and lists it later than this agent sees it.
    found = find({"spec": {"driver": "gpu.nvidia.com", **spec}}, node=labeled)
    assert found.unmatched == dict.fromkeys(
        (GPU.name, MIG.name), "it lists devices of a fabric, which are attached to this node for its claims"
    )
    assert find({"spec": {"driver": "gpu.nvidia.com", **spec}}, node=node()) == DeviceConflicts()
    # This agent has those of its own driver once they are attached.
    assert devices_of([{"spec": {"driver": DRIVER, **spec}}]) == []


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
    assert (exclusion.name, exclusion.code) == ("gpu-a", "other-manager")
    assert exclusion.reason.startswith("driver x.y also advertises it on this node")
    assert "inventory.exclude" in exclusion.reason and 'second_manager = "publish"' in exclusion.reason
    assert exclude(inventory, find_conflicts((), observe(node={}, foreign=()))) is inventory

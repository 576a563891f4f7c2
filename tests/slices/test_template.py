"""Templates of nodes: what is left out, what differs from a real node, and which pools have different devices."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from allocator.cases import device, slice_of
from dra_cluster.instance_type import dynamic_resources, unsupported_fields
from dra_cluster.template import Difference, differences, make_template, unlike_devices

Json = dict[str, Any]


def gpu(name: str, **attributes: str) -> Json:
    values = {"productName": "H100", "uuid": f"GPU-{name}", **attributes}
    return {
        **device(name),
        "attributes": {key: {"string": value} for key, value in values.items()},
        "capacity": {"memory": {"value": "80Gi"}},
    }


def of_node(node: str, *devices: Json, **spec: Any) -> Json:
    return slice_of(*devices, name=f"{node}-gpu", pool=f"{node}/gpu", nodeName=node, **spec)


def test_identities_and_taints_are_left_out() -> None:
    taints = [{"key": "broken", "effect": "NoSchedule"}]
    one = {**gpu("gpu-0"), "taints": taints}
    original = [of_node("n1", one)]
    before = copy.deepcopy(original)
    template = make_template(original)
    (left,) = template.slices[0]["spec"]["devices"]
    assert left["attributes"] == {"productName": {"string": "H100"}} and "taints" not in left
    assert left["capacity"] == one["capacity"]
    assert template.left_out == ["taints", "uuid"]
    assert original == before


def test_a_node_of_the_same_kind_has_no_difference() -> None:
    template = make_template([of_node("n1", gpu("gpu-0"), gpu("gpu-1"))]).slices
    other = gpu("gpu-0", uuid="GPU-of-another-node")
    other["capacity"]["memory"]["value"] = str(80 << 30)
    # The devices of a pool may be spread over slices in another way.
    assert differences(template, [of_node("n2", gpu("gpu-1")), of_node("n2", other)]) == []


def test_each_difference_is_named() -> None:
    counters = [{"name": "gpu-0-counters", "counters": {"memory": {"value": "8Gi"}}}]
    consumed = [{"counterSet": "gpu-0-counters", "counters": {"memory": {"value": "8Gi"}}}]
    part = {**gpu("gpu-0"), "consumesCounters": consumed}
    template = [of_node("n1", part, gpu("gpu-1")), of_node("n1", sharedCounters=counters)]
    changed = copy.deepcopy(part)
    changed["attributes"]["productName"] = {"string": "H200"}
    changed["attributes"]["rdma"] = {"bool": True}
    changed["capacity"]["memory"]["value"] = "141Gi"
    changed["consumesCounters"][0]["counters"]["memory"]["value"] = "4Gi"
    changed["allowMultipleAllocations"] = True
    fewer = [{"name": "gpu-0-counters", "counters": {"memory": {"value": "4Gi"}}}]
    node = [of_node("n2", changed, gpu("gpu-9")), of_node("n2", sharedCounters=fewer)]
    assert differences(template, node) == [
        Difference("gpu", "device gpu-0", "attribute productName", "H100", "H200"),
        Difference("gpu", "device gpu-0", "capacity memory", "80Gi", "141Gi"),
        Difference("gpu", "device gpu-0", "consumed counter of gpu-0-counters memory", "8Gi", "4Gi"),
        Difference("gpu", "device gpu-0", "attribute rdma", "none", "true"),
        Difference("gpu", "device gpu-0", "allowMultipleAllocations", "none", "True"),
        Difference("gpu", "device gpu-1", "", "present", "none"),
        Difference("gpu", "counter set gpu-0-counters", "counter memory", "8Gi", "4Gi"),
        Difference("gpu", "device gpu-9", "", "none", "present"),
    ]


@pytest.mark.parametrize(
    "broken",
    [
        {"attributes": {"a": {}, "b": None, "c": {"strings": ["x"]}}},
        {"capacity": {"memory": {"value": "much"}, "b": None}},
        {"consumesCounters": [{}]},
    ],
)
def test_a_node_with_unknown_forms_is_compared(broken: Json) -> None:
    template = [of_node("n1", gpu("gpu-0"))]
    assert differences(template, [of_node("n2", {"name": "gpu-0", **broken})])


def test_pools_of_different_devices_are_named() -> None:
    same = of_node("n1", gpu("gpu-0", pcieRoot="pci0000:15"), gpu("gpu-1", pcieRoot="pci0000:37"))
    assert unlike_devices([same]) == {}
    assert unlike_devices([of_node("n1", gpu("gpu-0"), gpu("gpu-1", productName="H200"))]) == {
        "gpu": ["attribute productName"]
    }


@pytest.mark.parametrize(("second", "unlike"), [("8Gi", {}), ("4Gi", {"gpu": ["counter memory"]})])
def test_of_partitions_the_counter_sets_are_compared(second: str, unlike: Json) -> None:
    counters = [
        {"name": f"set-{index}", "counters": {"memory": {"value": value}}}
        for index, value in enumerate(("8Gi", second))
    ]
    parts = of_node("n1", gpu("gpu-0", productName="whole"), gpu("mig-0", productName="part"))
    assert unlike_devices([parts, of_node("n1", sharedCounters=counters)]) == unlike


def test_an_instance_type_has_the_devices_and_which_of_them_have_equal_values() -> None:
    """The value of an attribute is known on the node only; that it is the same for devices is known before."""
    counters = [{"name": "gpu-0-counters", "counters": {"memory": {"value": "8Gi"}}}]
    devices = [gpu("gpu-0", fabricDomain="one"), gpu("gpu-1", fabricDomain="one"), gpu("gpu-2", fabricDomain="two")]
    devices[2] |= {"bindingConditions": ["Prepared"], "consumesCounters": [{"counterSet": "gpu-0-counters"}]}
    # A list is equal to another one if they share a value, and a value of one device binds nothing.
    lists = {"dra-agent.internal/rack": {"strings": ["r1"]}}
    for one in devices[:2]:
        one["attributes"] |= lists
    slices = [of_node("n1", *devices), of_node("n1", sharedCounters=counters)]
    template = make_template(slices)
    found = dynamic_resources(template, slices)
    driver = slices[0]["spec"]["driver"]
    of_devices, of_counters = found["resourceSliceTemplates"]
    assert of_devices | {"devices": []} == {"driver": driver, "pool": {"name": "n1/gpu"}, "devices": []}
    assert of_counters == {"driver": driver, "pool": {"name": "n1/gpu"}, "sharedCounters": counters}
    assert of_devices["devices"][0] == template.slices[0]["spec"]["devices"][0]
    assert of_devices["devices"][2].keys() == {"name", "attributes", "capacity", "consumesCounters"}
    assert unsupported_fields(template) == ["bindingConditions"]
    bound = [{"driver": driver, "pool": "n1/gpu", "device": name} for name in ("gpu-0", "gpu-1")]
    assert found["attributeBindings"] == [{"attribute": f"{driver}/fabricDomain", "devices": bound}]

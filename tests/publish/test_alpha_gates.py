"""Fields of gates that are off by default: the overhead of devices, and list-typed attributes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tiers
from dra_agent.inventory.api import Attribute, AttributeList, Overhead
from dra_agent.inventory.model import Device, Inventory
from dra_agent.publish import Publisher
from dra_agent.publish.feature_gates import LISTS, OVERHEAD, Gates, refused_lists, remedy, used
from eventually import eventually_async
from fake_apiserver.store import RefusedError
from publish.node import Node, assert_no_more_writes, device, wait_until_published

MEMORY = {"memory": Overhead(per_pod="1Gi", per_container="64Mi")}
PUBLISHED = {"memory": {"overhead": {"perPod": "1Gi", "perContainer": "64Mi"}}}


def costly(number: int) -> Device:
    return device(number, overhead=MEMORY)


def listed(number: int) -> Device:
    plain = device(number)
    zones = AttributeList.of_values(["a", "b"])
    return msgspec.structs.replace(plain, attributes={**plain.attributes, "site.example/zones": zones})


def without_overhead(plural: str, document: dict[str, Any]) -> None:
    """Drop the overhead, as an API server whose gate is off does (dropDisabledDRANodeAllocatableResourcesFields)."""
    if plural == "resourceslices":
        for entry in document["spec"].get("devices", ()):
            entry.pop("nodeAllocatableResources", None)


def without_lists(plural: str, document: dict[str, Any]) -> None:
    """Drop lists and refuse attributes without a value, as an API server whose gate is off does.

    k8s.io/kubernetes v1.37.1, dropDisableDRAListTypeAttributesFields, then validateDeviceAttribute.
    """
    if plural != "resourceslices":
        return
    errors = []
    for number, entry in enumerate(document["spec"].get("devices", ())):
        for name, value in entry.get("attributes", {}).items():
            for kind in ("ints", "bools", "strings", "versions"):
                value.pop(kind, None)
            if not value:
                path = f"spec.devices[{number}].attributes[{name}]"
                errors.append(f'{path}: Invalid value: "": exactly one value must be specified')
    if errors:
        message = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        raise RefusedError(422, "Invalid", f'ResourceSlice.resource.k8s.io "n1" is invalid: {message}')


def without_kubelet(plural: str, document: dict[str, Any]) -> None:
    """Refuse an overhead, as an API server whose gate is on does if the gate of the node's kubelet is off.

    k8s.io/kubernetes v1.37.1, plugin/pkg/admission/nodedeclaredfeatures.
    """
    if plural == "resourceslices" and any(
        entry.get("nodeAllocatableResources") for entry in document["spec"].get("devices", ())
    ):
        message = 'resourceslices "n1" is forbidden: node "n1" does not support DRANodeAllocatableResources feature'
        raise RefusedError(403, "Forbidden", message)


def both_off(plural: str, document: dict[str, Any]) -> None:
    without_overhead(plural, document)
    without_lists(plural, document)


def published(node: Node) -> list[dict[str, Any]]:
    return [entry for slice_ in node.slices() for entry in slice_["spec"].get("devices", ())]


def test_the_overhead_of_a_device_is_published(node: Node) -> None:
    node.set_devices(costly(1), device(2))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)
        assert publisher.reading().problems == ()

    node.run(scenario)
    assert [entry.get("nodeAllocatableResources") for entry in published(node)] == [PUBLISHED, None]


@pytest.mark.parametrize("server", [without_overhead, without_kubelet])
def test_without_the_gate_of_overhead_devices_are_published_without_it(
    node: Node, server: Callable[[str, dict[str, Any]], None]
) -> None:
    node.api.drop_fields(server)
    node.set_devices(costly(1), device(2))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)
        (problem,) = publisher.reading().problems
        assert "DRANodeAllocatableResources" in problem and "without the overhead" in problem
        assert "kube-apiserver, kube-scheduler and the kubelets" in problem

    node.run(scenario)
    assert [entry.get("nodeAllocatableResources") for entry in published(node)] == [None, None]


@tiers.PATIENCE
@pytest.mark.parametrize("server", [without_overhead, without_kubelet])
def test_the_gate_of_overhead_is_found_on_after_a_reconnection(
    node: Node, server: Callable[[str, dict[str, Any]], None]
) -> None:
    node.api.drop_fields(server)
    node.set_devices(costly(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        await wait_until_published(publisher)
        node.api.drop_fields(None)
        node.api.stop()
        await eventually_async(lambda: publisher.reading().lag_s > 0)
        node.api.start()
        await eventually_async(lambda: published(node)[0].get("nodeAllocatableResources") == PUBLISHED)
        await eventually_async(lambda: publisher.reading().problems == ())

    node.run(scenario)


def test_a_kubelet_without_the_gate_is_found_by_an_update(node: Node) -> None:
    node.set_devices(costly(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        await wait_until_published(publisher)
        node.api.drop_fields(without_kubelet)
        node.set_devices(costly(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)

    node.run(scenario)
    assert [entry.get("nodeAllocatableResources") for entry in published(node)] == [None, None]


def test_lists_are_published(node: Node) -> None:
    node.set_devices(listed(1), device(2))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)
        assert publisher.reading().problems == ()

    node.run(scenario)
    assert published(node)[0]["attributes"]["site.example/zones"] == {"strings": ["a", "b"]}


def test_without_the_gate_of_lists_devices_are_published_without_them(node: Node) -> None:
    node.api.drop_fields(without_lists)
    node.set_devices(listed(1), device(2))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)
        (problem,) = publisher.reading().problems
        assert "DRAListTypeAttributes" in problem and "site.example/zones" in problem

    node.run(scenario)
    assert [sorted(entry["attributes"]) for entry in published(node)] == [["type"], ["type"]]


def test_with_both_gates_off_both_are_reported(node: Node) -> None:
    node.api.drop_fields(both_off)
    node.set_devices(msgspec.structs.replace(listed(1), overhead=MEMORY))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        await assert_no_more_writes(node, publisher)
        (problem,) = publisher.reading().problems
        assert "DRANodeAllocatableResources" in problem and "DRAListTypeAttributes" in problem

    node.run(scenario)


def test_other_rejections_of_an_attribute_do_not_indicate_the_gate() -> None:
    sent = {"spec": {"devices": [{"name": "a", "attributes": {"x": {"strings": ["a"]}, "y": {"string": "b"}}}]}}
    path = "spec.devices[0].attributes"
    assert refused_lists(sent, f'{path}[x]: Invalid value: ""') == ["devices[a].attributes.x.strings"]
    for message in (
        f"{path}[y]: Invalid value",
        f"{path}[x].strings[0]: Too long",
        f"{path}[z]: Required value",
        "spec.devices[3].attributes[x]: Invalid value",
    ):
        assert refused_lists(sent, message) == []


@pytest.mark.parametrize(
    ("entry", "gates"),
    [
        ({"nodeAllocatableResources": PUBLISHED}, {OVERHEAD}),
        ({"attributes": {"x": {"ints": [1]}, "y": {"int": 1}}}, {LISTS}),
        ({"attributes": {"y": {"int": 1}}}, set()),
    ],
)
def test_gates_that_a_device_needs(entry: dict[str, Any], gates: set[str]) -> None:
    assert used({"spec": {"devices": [{"name": "a", **entry}]}}) == gates


def test_without_a_gate_only_its_field_is_left_out() -> None:
    both = msgspec.structs.replace(listed(1), overhead=MEMORY)
    gates = Gates()
    gates.record_dropped({OVERHEAD})
    (reduced,) = gates.reduce(Inventory(devices=(both,))).devices
    assert reduced == listed(1)
    gates.record_dropped({LISTS})
    (reduced,) = gates.reduce(Inventory(devices=(both,))).devices
    assert reduced == device(1)
    assert remedy({OVERHEAD, LISTS}) == (
        "pods are scheduled without the overhead of their devices, attributes with lists are left out"
    )


@pytest.mark.parametrize(
    ("values", "written", "text"),
    [
        ([1, 2], {"ints": [1, 2]}, "1, 2"),
        ([True, False], {"bools": [True, False]}, "true, false"),
        (["a"], {"strings": ["a"]}, "a"),
    ],
)
def test_a_list_is_written_by_the_type_of_its_values(values: list[Any], written: dict[str, Any], text: str) -> None:
    made = AttributeList.of_values(values)
    assert (json.loads(msgspec.json.encode(made)), made.value, made.count) == (written, text, len(values))


@pytest.mark.parametrize("values", [[], [1, "a"], [True, 1], ["x" * 65]])
def test_a_list_of_mixed_or_no_values_is_refused(values: list[Any]) -> None:
    with pytest.raises(ValueError, match="list has at least one value|at most 64"):
        AttributeList.of_values(values)
    assert Attribute.of(1).value == 1


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 1 << 70])
def test_a_number_that_the_api_does_not_have_is_refused(number: int) -> None:
    """A slice with it cannot be decoded by the API server: none of its devices would be published."""
    with pytest.raises(ValueError, match="64 bits"):
        Attribute.of(number)
    with pytest.raises(ValueError, match="64 bits"):
        AttributeList.of_values([1, number])
    largest = (1 << 63) - 1
    assert (Attribute.of(largest).value, AttributeList.of_values([largest]).integers) == (largest, (largest,))

"""API servers that drop fields because a feature gate is disabled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_agent.inventory.api import Capacity, RequestPolicy
from dra_agent.inventory.model import Inventory
from dra_agent.publish import Publisher, feature_gates
from dra_agent.publish.feature_gates import dropped_fields, gate_of, refused_counters
from eventually import eventually_async
from fake_apiserver.store import RefusedError
from publish.node import NODE, Node, assert_no_more_writes, device, devices, partitioned, tainted, wait_until_published


def dropping(*fields: str) -> Any:
    """Drop these fields of slices and devices, as an API server with a disabled gate does."""

    def drop(plural: str, document: dict[str, Any]) -> None:
        if plural == "resourceslices":
            for field in fields:
                document["spec"].pop(field, None)
                for entry in document["spec"].get("devices", ()):
                    entry.pop(field, None)
                    for capacity in entry.get("capacity", {}).values():
                        capacity.pop(field, None)

    return drop


def test_without_taints_a_tainted_device_is_not_published(node: Node) -> None:
    node.api.drop_fields(dropping("taints"))
    node.set_devices(device(1), device(2))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        node.set_devices(device(1), tainted(device(2), "sick"))
        publisher.devices_changed()
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await assert_no_more_writes(node, publisher)
        assert any("DRADeviceTaints" in problem for problem in publisher.reading().problems)
        assert publisher.reading().errors["dropped_fields"] == 1
        node.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 2)

    node.run(scenario)


@pytest.mark.parametrize("upgrade", ["breaks the watch", "keeps the watch"])
def test_a_gate_enabled_by_an_upgrade_is_used_without_a_restart(
    node: Node, monkeypatch: pytest.MonkeyPatch, upgrade: str
) -> None:
    node.api.drop_fields(dropping("taints"))
    node.set_devices(device(1), device(2))

    def has_evicting_taints() -> list[bool]:
        devices_ = [entry for slice_ in node.slices() for entry in slice_["spec"].get("devices", ())]
        return [any(taint["effect"] == "NoExecute" for taint in entry.get("taints", ())) for entry in devices_]

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        node.set_devices(device(1), tainted(device(2), "sick"))
        publisher.devices_changed()
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await wait_until_published(publisher)
        node.api.drop_fields(None)
        if upgrade == "breaks the watch":
            node.api.stop()
            await eventually_async(lambda: publisher.reading().lag_s > 0)
            node.api.start()
        else:
            monkeypatch.setattr(feature_gates, "OFF_EXPIRES_AFTER_S", 0.0)
        await eventually_async(lambda: publisher.reading().lag_s == 0)
        node.set_devices(*(tainted(device(number), "reclaim", effect="NoExecute") for number in (1, 2)))
        publisher.devices_changed()
        await eventually_async(lambda: has_evicting_taints() == [True, True])
        await wait_until_published(publisher)
        assert publisher.reading().problems == ()

    node.run(scenario)


def test_a_disabled_gate_is_checked_with_a_dry_run_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.api.drop_fields(dropping("taints", "allowMultipleAllocations", "requestPolicy"))
    node.set_devices(device(1, allow_multiple_allocations=True), tainted(device(2), "sick"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await wait_until_published(publisher)
        node.clear_requests()
        monkeypatch.setattr(feature_gates, "OFF_EXPIRES_AFTER_S", 0.0)
        publisher.devices_changed()
        await eventually_async(lambda: any("dryRun" in request.query for request in node.api.requests))
        await wait_until_published(publisher)
        assert node.writes() == [] and node.names() == ["gpu-0000-01-00-0"]

    node.run(scenario)


def test_a_dropped_taint_without_effect_keeps_its_device(node: Node) -> None:
    node.api.drop_fields(dropping("taints"))
    node.set_devices(device(1), tainted(device(2), "noted", effect="None"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)

    node.run(scenario)


def test_without_counters_no_partition_is_ever_published(node: Node) -> None:
    node.api.drop_fields(dropping("consumesCounters", "sharedCounters"))
    node.inventory = partitioned()
    published: set[str] = set()

    def drop_and_forward(plural: str, document: dict[str, Any]) -> None:
        dropping("consumesCounters", "sharedCounters")(plural, document)

    node.api.drop_fields(drop_and_forward)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await assert_no_more_writes(node, publisher)
        assert any("DRAPartitionableDevices" in problem for problem in publisher.reading().problems)

    node.run(scenario)
    for _, _, _, stored in node.api.store.history:
        published |= {entry["name"] for entry in stored.get("spec", {}).get("devices", ())}
    assert published == {"gpu-0000-01-00-0"}, "not even temporarily"


def kubernetes_1_34(plural: str, document: dict[str, Any]) -> None:
    """Require the counters of a device in its own slice, as Kubernetes 1.34 does with DRAPartitionableDevices.

    k8s.io/kubernetes v1.34.4, pkg/apis/resource/validation/validation.go, validateDevice.
    """
    if plural != "resourceslices":
        return
    sets = {entry["name"] for entry in document["spec"].get("sharedCounters") or ()}
    errors = [
        f'spec.devices[{number}].consumesCounters[{at}].counterSet: Invalid value: "{used["counterSet"]}": '
        "must reference a counterSet defined in the ResourceSlice sharedCounters"
        for number, entry in enumerate(document["spec"].get("devices") or ())
        for at, used in enumerate(entry.get("consumesCounters") or ())
        if used["counterSet"] not in sets
    ]
    if errors:
        message = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        raise RefusedError(422, "Invalid", f'ResourceSlice.resource.k8s.io "n1" is invalid: {message}')


def test_kubernetes_1_34_with_the_gate_gets_whole_devices(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.api.drop_fields(kubernetes_1_34)
    node.inventory = partitioned()

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await assert_no_more_writes(node, publisher)
        (problem,) = publisher.reading().problems
        assert "devices[gpu-0000-01-00-0].consumesCounters" in problem and "whole devices" in problem
        assert "enable DRAPartitionableDevices" in problem and "Kubernetes 1.35 or newer" in problem
        # Later only a dry run checks whether the server was upgraded.
        node.clear_requests()
        monkeypatch.setattr(feature_gates, "OFF_EXPIRES_AFTER_S", 0.0)
        publisher.devices_changed()
        await eventually_async(lambda: any("dryRun" in request.query for request in node.api.requests))
        await wait_until_published(publisher)
        assert node.writes() == [] and node.names() == ["gpu-0000-01-00-0"]
        node.api.drop_fields(None)
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 3)

    node.run(scenario)


def test_other_rejections_of_counters_do_not_indicate_kubernetes_1_34() -> None:
    sent = {"spec": {"devices": [{"name": "a", "consumesCounters": [{"counterSet": "s", "counters": {}}]}]}}
    path, elsewhere = "spec.devices", "must reference a counterSet defined in the ResourceSlice sharedCounters"
    known = f'{path}[0].consumesCounters[0].counterSet: Invalid value: "s": {elsewhere}'
    assert refused_counters(sent, f"[{known}, {known}]") == ["devices[a].consumesCounters"]
    for message in (
        f'{path}[0].consumesCounters[0].counterSet: Invalid value: "s": must be a DNS label',
        f'{path}[0].consumesCounters[1].counterSet: Invalid value: "s": {elsewhere}',
        f'{path}[7].consumesCounters[0].counterSet: Invalid value: "s": {elsewhere}',
    ):
        assert refused_counters(sent, message) == []


def test_with_counters_partitions_are_published_without_dry_runs(node: Node) -> None:
    node.inventory = partitioned()

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 3)
        await assert_no_more_writes(node, publisher)
        assert publisher.reading().problems == ()
        node.inventory = msgspec.structs.replace(
            node.inventory, devices=(*node.inventory.devices[:2], tainted(node.inventory.devices[2], "sick"))
        )
        publisher.devices_changed()
        await eventually_async(lambda: node.writes() == ["PUT"])

    node.run(scenario)
    node.clear_requests()
    node.run(lambda publisher: assert_no_more_writes(node, publisher))
    assert not any("dryRun" in request.query for request in node.api.requests)


def test_without_consumable_capacity_a_device_has_one_claim(node: Node) -> None:
    node.api.drop_fields(dropping("allowMultipleAllocations", "requestPolicy"))
    shared = msgspec.structs.replace(
        device(1),
        allow_multiple_allocations=True,
        capacity={"memory": Capacity("80Gi", request_policy=RequestPolicy(default="1Gi"))},
    )
    node.set_devices(shared)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await assert_no_more_writes(node, publisher)
        assert any("DRAConsumableCapacity" in problem for problem in publisher.reading().problems)

    node.run(scenario)


def drop_attributes(plural: str, document: dict[str, Any]) -> None:
    if plural == "resourceslices":
        for entry in document["spec"].get("devices", ()):
            entry.pop("attributes", None)


def test_without_binding_conditions_the_device_is_published_plain(node: Node) -> None:
    node.api.drop_fields(dropping("bindingConditions", "bindingFailureConditions"))
    conditions = {"binding_conditions": ("x/Prepared",), "binding_failure_conditions": ("x/PrepareFailed",)}
    node.set_devices(device(1, **conditions), device(2))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)
        assert any("DRADeviceBindingConditions" in problem for problem in publisher.reading().problems)

    node.run(scenario)


def test_binding_conditions_are_published(node: Node) -> None:
    node.set_devices(
        device(1, binding_conditions=("x/Prepared",), binding_failure_conditions=("x/PrepareFailed",)), device(2)
    )

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)

    node.run(scenario)
    (slice_,) = node.slices()
    published = [
        (one.get("bindingConditions"), one.get("bindingFailureConditions")) for one in slice_["spec"]["devices"]
    ]
    assert published == [(["x/Prepared"], ["x/PrepareFailed"]), (None, None)]


def test_a_slice_stored_in_part_follows_its_pool(node: Node) -> None:
    def drop_unknown(plural: str, document: dict[str, Any]) -> None:
        drop_attributes(plural, document)
        for field in document.get("spec", {}).keys() - {"driver", "nodeName", "pool", "devices", "unschedulable"}:
            del document["spec"][field]

    def change(*changed: int) -> None:
        node.set_devices(*(tainted(one, "sick") if at in changed else one for at, one in enumerate(devices(192))))

    node.api.drop_fields(drop_unknown)
    change()

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 192)
        await wait_until_published(publisher)
        before = {slice_["spec"]["pool"]["generation"] for slice_ in node.slices()}
        change(0, 70)
        publisher.devices_changed()
        await eventually_async(lambda: {slice_["spec"]["pool"]["generation"] for slice_ in node.slices()} != before)
        await eventually_async(lambda: len(node.names()) == 192)
        await assert_no_more_writes(node, publisher)

    node.run(scenario)
    assert len(node.slices()) == 3


def test_a_field_dropped_for_an_unknown_reason_is_sent_once(node: Node) -> None:
    node.api.drop_fields(drop_attributes)
    node.set_devices(device(1), device(2))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)
        assert any("does not know" in problem for problem in publisher.reading().problems)
        node.set_devices(device(1), device(2), device(3))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 3)
        await assert_no_more_writes(node, publisher)

    node.run(scenario)


def test_a_restart_without_the_taints_gate_writes_nothing(node: Node) -> None:
    node.api.drop_fields(dropping("taints"))
    node.set_devices(device(1), tainted(device(2), "sick"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await wait_until_published(publisher)

    node.run(scenario)
    node.clear_requests()
    node.run(scenario)
    assert node.writes() == []


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": {"driver": "d", "devices": [{"name": "a", **fields}]}}


@pytest.mark.parametrize(
    ("sent", "stored", "missing"),
    [
        ({"capacity": {"m": {"value": "1024Mi"}}}, {"capacity": {"m": {"value": "1Gi"}}}, []),
        ({"capacity": {"m": {"value": "1Gi"}}}, {"capacity": {"m": {"value": "2Gi"}}}, ["devices[a].capacity.m.value"]),
        ({"taints": [{"key": "k"}]}, {"taints": [{"key": "k", "timeAdded": "2026-01-01T00:00:00Z"}]}, []),
        ({"taints": [{"key": "k"}]}, {}, ["devices[a].taints"]),
        ({"bindsToNode": False, "taints": []}, {}, []),
        ({"attributes": {"x": {"strings": ["a"]}}}, {"attributes": {"x": {}}}, ["devices[a].attributes.x.strings"]),
    ],
)
def test_a_dropped_field_is_reported_by_its_path(sent: Any, stored: Any, missing: list[str]) -> None:
    assert dropped_fields(spec(**sent), spec(**stored)) == missing


@pytest.mark.parametrize(
    ("path", "gate"),
    [
        ("devices[a].taints", "DRADeviceTaints"),
        ("devices[a].attributes.x.strings", "DRAListTypeAttributes"),
        ("devices[a].capacity.m.requestPolicy", "DRAConsumableCapacity"),
        ("sharedCounters", "DRAPartitionableDevices"),
        ("skipNodeOperations", "DRAOptionalNodeOperations"),
        ("devices[a].attributes", None),
    ],
)
def test_a_path_maps_to_its_feature_gate(path: str, gate: str | None) -> None:
    assert gate_of(path) == gate


def test_with_all_gates_enabled_the_inventory_is_unchanged() -> None:
    from dra_agent.publish.feature_gates import Gates

    inventory = Inventory(devices=(tainted(device(1), "sick"),))
    assert Gates().reduce(inventory) is inventory and NODE

"""API servers that drop fields, because a feature gate is off."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_agent.inventory.api import Capacity, RequestPolicy
from dra_agent.inventory.model import Inventory
from dra_agent.publish import Publisher, feature_gates
from dra_agent.publish.feature_gates import dropped_fields, gate_of
from eventually import eventually_async
from publish.node import NODE, Node, device, partitioned, quiet, settled, tainted


def no(*fields: str) -> Any:
    """Drop these fields of slices and devices, as an API server without their gate does."""

    def drop(plural: str, document: dict[str, Any]) -> None:
        if plural == "resourceslices":
            for field in fields:
                document["spec"].pop(field, None)
                for entry in document["spec"].get("devices", ()):
                    entry.pop(field, None)
                    for amount in entry.get("capacity", {}).values():
                        amount.pop(field, None)

    return drop


def test_without_taints_a_device_that_must_not_be_allocated_is_left_out(node: Node) -> None:
    node.api.drop_fields(no("taints"))
    node.has(device(1), device(2))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        node.has(device(1), tainted(device(2), "sick"))
        publisher.devices_changed()
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await quiet(node, publisher)
        assert any("DRADeviceTaints" in problem for problem in publisher.reading().problems)
        assert publisher.reading().errors["dropped_fields"] == 1
        node.has(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 2)

    node.run(story)


@pytest.mark.parametrize("upgrade", ["breaks the watch", "keeps the watch"])
def test_a_gate_that_an_upgrade_has_turned_on_is_used_without_a_restart(
    node: Node, monkeypatch: pytest.MonkeyPatch, upgrade: str
) -> None:
    node.api.drop_fields(no("taints"))
    node.has(device(1), device(2))

    def evicted() -> list[bool]:
        found = [entry for one in node.slices() for entry in one["spec"].get("devices", ())]
        return [any(taint["effect"] == "NoExecute" for taint in entry.get("taints", ())) for entry in found]

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        node.has(device(1), tainted(device(2), "sick"))
        publisher.devices_changed()
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await settled(publisher)
        node.api.drop_fields(None)
        if upgrade == "breaks the watch":
            node.api.stop()
            await eventually_async(lambda: publisher.reading().lag_s > 0)
            node.api.start()
        else:
            monkeypatch.setattr(feature_gates, "OFF_EXPIRES_AFTER_S", 0.0)
        await eventually_async(lambda: publisher.reading().lag_s == 0)
        node.has(*(tainted(device(number), "reclaim", effect="NoExecute") for number in (1, 2)))
        publisher.devices_changed()
        await eventually_async(lambda: evicted() == [True, True])
        await settled(publisher)
        assert publisher.reading().problems == ()

    node.run(story)


def test_a_gate_that_stays_off_is_asked_for_with_a_dry_run_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.api.drop_fields(no("taints", "allowMultipleAllocations", "requestPolicy"))
    node.has(device(1, allow_multiple_allocations=True), tainted(device(2), "sick"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await settled(publisher)
        node.forget()
        monkeypatch.setattr(feature_gates, "OFF_EXPIRES_AFTER_S", 0.0)
        publisher.devices_changed()
        await eventually_async(lambda: any("dryRun" in seen.query for seen in node.api.requests))
        await settled(publisher)
        assert node.writes() == [] and node.names() == ["gpu-0000-01-00-0"]

    node.run(story)


def test_a_taint_without_effect_is_only_left_away(node: Node) -> None:
    node.api.drop_fields(no("taints"))
    node.has(device(1), tainted(device(2), "noted", effect="None"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await quiet(node, publisher)

    node.run(story)


def test_without_counters_no_partition_is_ever_published(node: Node) -> None:
    node.api.drop_fields(no("consumesCounters", "sharedCounters"))
    node.inventory = partitioned()
    ever: set[str] = set()

    def note(plural: str, document: dict[str, Any]) -> None:
        no("consumesCounters", "sharedCounters")(plural, document)

    node.api.drop_fields(note)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await quiet(node, publisher)
        assert any("DRAPartitionableDevices" in problem for problem in publisher.reading().problems)

    node.run(story)
    for _, _, _, stored in node.api.store.history:
        ever |= {entry["name"] for entry in stored.get("spec", {}).get("devices", ())}
    assert ever == {"gpu-0000-01-00-0"}, "not even for a moment"


def test_with_counters_partitions_are_published_and_nothing_is_asked_twice(node: Node) -> None:
    node.inventory = partitioned()

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 3)
        await quiet(node, publisher)
        assert publisher.reading().problems == ()
        node.inventory = msgspec.structs.replace(
            node.inventory, devices=(*node.inventory.devices[:2], tainted(node.inventory.devices[2], "sick"))
        )
        publisher.devices_changed()
        await eventually_async(lambda: node.writes() == ["PUT"])

    node.run(story)
    node.forget()
    node.run(lambda publisher: quiet(node, publisher))
    assert not any("dryRun" in seen.query for seen in node.api.requests)


def test_without_sharing_a_device_is_for_one_claim(node: Node) -> None:
    node.api.drop_fields(no("allowMultipleAllocations", "requestPolicy"))
    shared = msgspec.structs.replace(
        device(1),
        allow_multiple_allocations=True,
        capacity={"memory": Capacity("80Gi", request_policy=RequestPolicy(default="1Gi"))},
    )
    node.has(shared)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await quiet(node, publisher)
        assert any("DRAConsumableCapacity" in problem for problem in publisher.reading().problems)

    node.run(story)


def test_a_field_that_no_known_gate_explains_is_sent_once_and_then_let_be(node: Node) -> None:
    def forgetful(plural: str, document: dict[str, Any]) -> None:
        if plural == "resourceslices":
            for entry in document["spec"].get("devices", ()):
                entry.pop("attributes", None)

    node.api.drop_fields(forgetful)
    node.has(device(1), device(2))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await quiet(node, publisher)
        assert any("does not know" in problem for problem in publisher.reading().problems)
        node.has(device(1), device(2), device(3))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 3)
        await quiet(node, publisher)

    node.run(story)


def test_a_successor_where_taints_are_dropped_changes_nothing(node: Node) -> None:
    node.api.drop_fields(no("taints"))
    node.has(device(1), tainted(device(2), "sick"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await settled(publisher)

    node.run(story)
    node.forget()
    node.run(story)
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
def test_what_is_missing_is_named_by_its_path(sent: Any, stored: Any, missing: list[str]) -> None:
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
def test_a_path_leads_to_its_gate(path: str, gate: str | None) -> None:
    assert gate_of(path) == gate


def test_an_inventory_without_any_gate_off_is_untouched() -> None:
    from dra_agent.publish.feature_gates import Gates

    inventory = Inventory(devices=(tainted(device(1), "sick"),))
    assert Gates().reduce(inventory) is inventory and NODE

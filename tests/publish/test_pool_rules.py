"""The rules of the Kubernetes helper for the slices of a pool, case by case.

The cases are those of TestControllerSyncPool in k8s.io/dynamic-resource-allocation/resourceslice that apply to a driver
of one node. They run through a publisher and a fake API server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dra_agent.inventory.api import Attribute, Counter, CounterConsumption, CounterSet
from dra_agent.inventory.model import Device, Inventory
from dra_agent.publish import Publisher
from publish.node import DRIVER, NODE, Node, Slice, device, devices, partitioned, tainted, wait_until_published

POOL = f"{NODE}/gpu"
SHARD = 64


def index_name(index: int) -> str:
    return f"{index:05x}-{DRIVER}-{NODE}-{'bcdfg'[index % 5]}1234"


def put_slice(
    node: Node, name: str, devices: Sequence[Device], *, generation: int = 1, count: int = 1, pool: str = POOL
) -> Slice:
    """Create a slice as an earlier publisher left it."""
    uid = node.api.store.get("nodes", "", NODE)["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": True}
    return node.api.put(
        "resourceslices",
        {
            "metadata": {"name": name, "ownerReferences": [reference]},
            "spec": {
                "driver": DRIVER,
                "nodeName": NODE,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
                "devices": [device_.to_api() for device_ in devices],
            },
        },
    )


def publish(node: Node) -> dict[str, int]:
    """Publish until nothing is pending, and return the number of writes."""

    async def scenario(publisher: Publisher) -> dict[str, int]:
        await wait_until_published(publisher)
        return {operation: count for operation, count in publisher.reading().writes.items() if count}

    node.clear_requests()
    writes: dict[str, int] = node.run(scenario)
    return writes


def slice_states(node: Node, pool: str = POOL) -> list[tuple[str, int, int, int]]:
    """Return (index, generation, count, devices) of each slice."""
    return [
        (
            slice_["metadata"]["name"].split("-")[0],
            slice_["spec"]["pool"]["generation"],
            slice_["spec"]["pool"]["resourceSliceCount"],
            len(slice_["spec"].get("devices", ())),
        )
        for slice_ in node.slices(pool)
    ]


def with_attribute(device_: Device) -> Device:
    return msgspec.structs.replace(device_, attributes={**device_.attributes, "new": Attribute.of(1)})


def with_times(device_: Device) -> Device:
    """Return the device with taints added on different days."""
    taints = (
        msgspec.structs.replace(taint, time_added=f"2026-01-0{day}T00:00:00Z")
        for day, taint in enumerate(device_.taints, 1)
    )
    return msgspec.structs.replace(device_, taints=tuple(taints))


def test_a_slice_is_created(node: Node) -> None:
    node.set_devices(device(1))
    assert publish(node) == {"create": 1}
    assert slice_states(node) == [("00000", 1, 1, 1)]


def test_an_unchanged_slice_is_kept(node: Node) -> None:
    before = put_slice(node, index_name(0), [device(1)])
    node.set_devices(device(1))
    assert publish(node) == {}
    assert node.slices() == [before]


def test_an_unchanged_taint_is_kept(node: Node) -> None:
    sick = tainted(device(1), "a", "b")
    before = put_slice(node, index_name(0), [with_times(sick)])
    node.set_devices(sick)
    assert publish(node) == {}
    assert node.slices() == [before]


def test_added_taints_keep_the_time_of_existing_ones(node: Node) -> None:
    """An existing taint keeps its time; a new one gets the time of the server."""
    put_slice(node, index_name(0), [with_times(tainted(device(1), "a", "b"))])
    node.set_devices(tainted(device(1), "c", "a", "b"))
    assert publish(node) == {"update": 1}
    taints = {taint["key"]: taint["timeAdded"] for taint in node.slices()[0]["spec"]["devices"][0]["taints"]}
    assert (taints["x/a"], taints["x/b"]) == ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    assert taints["x/c"] > "2026-01-02T00:00:00Z"


def test_a_removed_taint_is_dropped(node: Node) -> None:
    put_slice(node, index_name(0), [tainted(device(1), "a")])
    node.set_devices(device(1))
    assert publish(node) == {"update": 1}
    assert "taints" not in node.slices()[0]["spec"]["devices"][0]


def test_unknown_pools_are_deleted(node: Node) -> None:
    put_slice(node, index_name(0), [device(1)])
    put_slice(node, index_name(1), [device(2)], pool="elsewhere")
    assert publish(node) == {"delete": 2}
    assert node.slices() == []


def test_an_existing_slice_is_updated_in_place(node: Node) -> None:
    put_slice(node, index_name(0), [])
    node.set_devices(device(1))
    assert publish(node) == {"update": 1}
    assert slice_states(node) == [("00000", 1, 1, 1)]


def test_one_of_two_slices_is_updated_in_place(node: Node) -> None:
    put_slice(node, index_name(0), [], count=2)
    put_slice(node, index_name(1), [device(2)], count=2)
    node.set_devices(device(1), device(2))
    assert publish(node) == {"update": 1}
    assert {row[1] for row in slice_states(node)} == {1}
    assert len(node.names()) == 2


def test_a_redundant_slice_is_deleted(node: Node) -> None:
    kept = put_slice(node, "00000-a", [device(1)])
    put_slice(node, "00000-b", [device(1)])
    node.set_devices(device(1))
    assert publish(node) == {"delete": 1}
    assert node.slices() == [kept]


@pytest.mark.parametrize("count", [1, 2])
def test_a_changed_device_updates_its_slice(node: Node, count: int) -> None:
    put_slice(node, index_name(0), devices(count))
    node.set_devices(*devices(count - 1), with_attribute(device(count - 1)))
    assert publish(node) == {"update": 1}
    assert slice_states(node) == [("00000", 1, 1, count)]
    assert "new" in node.slices()[0]["spec"]["devices"][-1]["attributes"]


def put_full_slices(node: Node, slices: int) -> list[Device]:
    """Create a pool of full slices, and return its devices."""
    devices_ = [device(number) for number in range(slices * SHARD)]
    for index in range(slices):
        put_slice(node, index_name(index), devices_[index * SHARD : (index + 1) * SHARD], count=slices)
    return devices_


def test_several_unchanged_slices_are_kept(node: Node) -> None:
    node.set_devices(*put_full_slices(node, 3))
    assert publish(node) == {}


def test_slices_of_older_generations_are_deleted(node: Node) -> None:
    """Only the latest generation counts; a slice of it with an index in its name stays."""
    put_slice(node, index_name(0), [], generation=1)
    put_slice(node, index_name(1), [device(1)], generation=2)
    put_slice(node, index_name(2), [], generation=1)
    node.set_devices(device(1))
    writes = publish(node)
    assert writes.pop("delete") == 2 and len(node.slices()) == 1
    assert node.names() == ["gpu-0000-01-00-0"]
    assert sum(writes.values()) <= 1


def test_one_changed_slice_of_several_is_updated_in_place(node: Node) -> None:
    devices_ = put_full_slices(node, 3)
    devices_[SHARD] = with_attribute(devices_[SHARD])
    node.set_devices(*devices_)
    assert publish(node) == {"update": 1}
    assert {row[1] for row in slice_states(node)} == {1}


def test_two_changed_slices_start_a_new_generation(node: Node) -> None:
    devices_ = put_full_slices(node, 3)
    devices_[0], devices_[SHARD] = with_attribute(devices_[0]), with_attribute(devices_[SHARD])
    node.set_devices(*devices_)
    assert publish(node) == {"update": 3}
    assert [row[1:] for row in slice_states(node)] == [(2, 3, SHARD)] * 3


def test_a_slice_without_devices_is_kept_empty(node: Node) -> None:
    """The helper deletes the slice and rewrites the others; this publisher keeps it empty for devices that return."""
    devices_ = put_full_slices(node, 3)
    node.set_devices(*devices_[: 2 * SHARD])
    assert publish(node) == {"update": 1}
    assert [row[1:] for row in slice_states(node)] == [(1, 3, SHARD), (1, 3, SHARD), (1, 3, 0)]


def test_an_added_slice_starts_a_new_generation(node: Node) -> None:
    devices_ = put_full_slices(node, 3)
    node.set_devices(*devices_, device(3 * SHARD))
    assert publish(node) == {"update": 3, "create": 1}
    assert {row[1:3] for row in slice_states(node)} == {(2, 4)}
    assert len(node.names()) == 3 * SHARD + 1


def test_partitionable_devices_get_a_slice_of_counters(node: Node) -> None:
    node.inventory = partitioned()
    assert publish(node) == {"create": 2}
    assert slice_states(node) == [("00000", 1, 2, 3), ("00001", 1, 2, 0)]
    assert "devices" not in node.slices()[1]["spec"], "a slice has either devices or counters"


def with_counters(*sets: CounterSet, consumption: CounterConsumption) -> Inventory:
    return Inventory(devices=(device(1), device(2, consumes_counters=(consumption,))), counter_sets={"gpu": sets})


MEMORY = CounterSet("a", {"memory": Counter("1Gi")})
CONSUMPTION = CounterConsumption("a", {"memory": Counter("1Gi")})


@pytest.mark.parametrize(
    ("inventory", "published", "message"),
    [
        (with_counters(MEMORY, MEMORY, consumption=CONSUMPTION), 2, "sharedCounters[a]: is defined twice"),
        (Inventory(devices=(device(1), device(1))), 1, "name: is defined twice in the pool"),
        (with_counters(consumption=CONSUMPTION), 1, 'the pool has no counter set "a"'),
        (
            with_counters(MEMORY, consumption=CounterConsumption("a", {"cores": Counter("1")})),
            1,
            'the counter set "a" has no such counter',
        ),
    ],
)
def test_an_entry_that_makes_the_pool_invalid_is_left_out(
    node: Node, caplog: pytest.LogCaptureFixture, inventory: Inventory, published: int, message: str
) -> None:
    """The helper reports it and publishes nothing of the pool; this publisher leaves out only the device or counter
    set.
    """
    node.inventory = inventory
    publish(node)
    assert len(node.names()) == published
    assert any(message in getattr(record, "problem", "") for record in caplog.records)


def test_slices_with_random_names_are_replaced(node: Node) -> None:
    for number, name in enumerate(("random-name1", "random-name2", "random-name3")):
        put_slice(node, name, [device(number)], count=3)
    node.set_devices(*devices(3))
    assert publish(node) == {"delete": 3, "create": 1}
    assert slice_states(node) == [("00000", 2, 1, 3)]


def test_slices_with_mixed_names_are_replaced(node: Node) -> None:
    put_slice(node, "random-name1", [device(0)], count=3)
    put_slice(node, index_name(1), [device(1)], count=3)
    put_slice(node, "random-name3", [device(2)], count=3)
    node.set_devices(*devices(3))
    writes = publish(node)
    assert writes["delete"] == 2 and sum(writes.values()) == 3
    assert len(node.slices()) == 1 and len(node.names()) == 3


def test_a_slice_is_updated_then_deleted_then_created_again(node: Node) -> None:
    for devices_, writes in (
        ([device(1)], {"create": 1}),
        ([with_attribute(device(1))], {"update": 1}),
        ([], {"delete": 1}),
        ([device(1)], {"create": 1}),
    ):
        node.set_devices(*devices_)
        assert publish(node) == writes
    assert slice_states(node) == [("00000", 1, 1, 1)]


def test_foreign_labels_stay_on_an_updated_slice(node: Node) -> None:
    """Labels and annotations of other writers stay on a slice that the agent changes."""
    before = put_slice(node, index_name(0), [device(1)])
    labeled: dict[str, Any] = {**before, "metadata": {**before["metadata"], "labels": {"a": "b"}}}
    node.api.put("resourceslices", labeled)
    node.set_devices(with_attribute(device(1)))
    assert publish(node) == {"update": 1}
    assert node.slices()[0]["metadata"]["labels"] == {"a": "b"}

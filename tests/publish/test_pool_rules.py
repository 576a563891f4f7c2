"""The rules of Kubernetes' own helper for the slices of a pool, case by case.

The cases are those of TestControllerSyncPool in k8s.io/dynamic-resource-allocation/resourceslice, as far as a driver of
one node has them. They run through a publisher and an API server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dra_agent.inventory.api import Attribute, Counter, CounterConsumption, CounterSet
from dra_agent.inventory.model import Device, Inventory
from dra_agent.publish import Publisher
from publish.node import DRIVER, NODE, Node, Slice, device, devices, partitioned, settled, tainted

POOL = f"{NODE}/gpu"
SHARD = 64


def index_name(index: int) -> str:
    return f"{index:05x}-{DRIVER}-{NODE}-{'bcdfg'[index % 5]}1234"


def there(
    node: Node, name: str, found: Sequence[Device], *, generation: int = 1, count: int = 1, pool: str = POOL
) -> Slice:
    """A slice that somebody published before."""
    owner = node.api.store.get("nodes", "", NODE)["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": owner, "controller": True}
    return node.api.put(
        "resourceslices",
        {
            "metadata": {"name": name, "ownerReferences": [reference]},
            "spec": {
                "driver": DRIVER,
                "nodeName": NODE,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
                "devices": [entry.to_api() for entry in found],
            },
        },
    )


def publish(node: Node) -> dict[str, int]:
    """Publish until nothing is left to do; give the writes."""

    async def story(publisher: Publisher) -> dict[str, int]:
        await settled(publisher)
        return {op: count for op, count in publisher.reading().writes.items() if count}

    node.forget()
    writes: dict[str, int] = node.run(story)
    return writes


def state(node: Node, pool: str = POOL) -> list[tuple[str, int, int, int]]:
    """(index, generation, count, devices) of each slice."""
    return [
        (
            o["metadata"]["name"].split("-")[0],
            o["spec"]["pool"]["generation"],
            o["spec"]["pool"]["resourceSliceCount"],
            len(o["spec"].get("devices", ())),
        )
        for o in node.slices(pool)
    ]


def changed(found: Device) -> Device:
    return msgspec.structs.replace(found, attributes={**found.attributes, "new": Attribute.of(1)})


def timed(found: Device) -> Device:
    """With taints that were added on different days."""
    taints = (
        msgspec.structs.replace(taint, time_added=f"2026-01-0{day}T00:00:00Z")
        for day, taint in enumerate(found.taints, 1)
    )
    return msgspec.structs.replace(found, taints=tuple(taints))


def test_create_slice(node: Node) -> None:
    node.has(device(1))
    assert publish(node) == {"create": 1}
    assert state(node) == [("00000", 1, 1, 1)]


def test_keep_slice_unchanged(node: Node) -> None:
    before = there(node, index_name(0), [device(1)])
    node.has(device(1))
    assert publish(node) == {}
    assert node.slices() == [before]


def test_keep_taint_unchanged(node: Node) -> None:
    sick = tainted(device(1), "a", "b")
    before = there(node, index_name(0), [timed(sick)])
    node.has(sick)
    assert publish(node) == {}
    assert node.slices() == [before]


def test_add_taints(node: Node) -> None:
    """Each taint that was there keeps its own time; the new one gets the server's."""
    there(node, index_name(0), [timed(tainted(device(1), "a", "b"))])
    node.has(tainted(device(1), "c", "a", "b"))
    assert publish(node) == {"update": 1}
    taints = {t["key"]: t["timeAdded"] for t in node.slices()[0]["spec"]["devices"][0]["taints"]}
    assert (taints["x/a"], taints["x/b"]) == ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    assert taints["x/c"] > "2026-01-02T00:00:00Z"


def test_drop_taints(node: Node) -> None:
    there(node, index_name(0), [tainted(device(1), "a")])
    node.has(device(1))
    assert publish(node) == {"update": 1}
    assert "taints" not in node.slices()[0]["spec"]["devices"][0]


def test_remove_pool(node: Node) -> None:
    there(node, index_name(0), [device(1)])
    there(node, index_name(1), [device(2)], pool="elsewhere")
    assert publish(node) == {"delete": 2}
    assert node.slices() == []


def test_one_existing_and_one_desired_slice_is_updated_in_place(node: Node) -> None:
    there(node, index_name(0), [])
    node.has(device(1))
    assert publish(node) == {"update": 1}
    assert state(node) == [("00000", 1, 1, 1)]


def test_one_of_two_slices_is_updated_in_place(node: Node) -> None:
    there(node, index_name(0), [], count=2)
    there(node, index_name(1), [device(2)], count=2)
    node.has(device(1), device(2))
    assert publish(node) == {"update": 1}
    assert {row[1] for row in state(node)} == {1}
    assert len(node.names()) == 2


def test_delete_redundant_slice(node: Node) -> None:
    kept = there(node, "00000-a", [device(1)])
    there(node, "00000-b", [device(1)])
    node.has(device(1))
    assert publish(node) == {"delete": 1}
    assert node.slices() == [kept]


@pytest.mark.parametrize("count", [1, 2])
def test_update_slice(node: Node, count: int) -> None:
    there(node, index_name(0), devices(count))
    node.has(*devices(count - 1), changed(device(count - 1)))
    assert publish(node) == {"update": 1}
    assert state(node) == [("00000", 1, 1, count)]
    assert "new" in node.slices()[0]["spec"]["devices"][-1]["attributes"]


def several(node: Node, slices: int) -> list[Device]:
    """A pool of full slices, as it was published."""
    found = [device(number) for number in range(slices * SHARD)]
    for index in range(slices):
        there(node, index_name(index), found[index * SHARD : (index + 1) * SHARD], count=slices)
    return found


def test_several_slices_without_changes(node: Node) -> None:
    node.has(*several(node, 3))
    assert publish(node) == {}


def test_slices_of_older_generations_are_deleted(node: Node) -> None:
    """Only the newest generation counts; what is of it and named by an index stays."""
    there(node, index_name(0), [], generation=1)
    there(node, index_name(1), [device(1)], generation=2)
    there(node, index_name(2), [], generation=1)
    node.has(device(1))
    writes = publish(node)
    assert writes.pop("delete") == 2 and len(node.slices()) == 1
    assert node.names() == ["gpu-0000-01-00-0"]
    assert sum(writes.values()) <= 1


def test_one_of_several_changed(node: Node) -> None:
    found = several(node, 3)
    found[SHARD] = changed(found[SHARD])
    node.has(*found)
    assert publish(node) == {"update": 1}
    assert {row[1] for row in state(node)} == {1}


def test_two_of_several_changed(node: Node) -> None:
    found = several(node, 3)
    found[0], found[SHARD] = changed(found[0]), changed(found[SHARD])
    node.has(*found)
    assert publish(node) == {"update": 3}
    assert [row[1:] for row in state(node)] == [(2, 3, SHARD)] * 3


def test_the_devices_of_a_slice_are_gone(node: Node) -> None:
    """The helper deletes the slice and rewrites the others; here it stays, empty, for the devices to come back to."""
    found = several(node, 3)
    node.has(*found[: 2 * SHARD])
    assert publish(node) == {"update": 1}
    assert [row[1:] for row in state(node)] == [(1, 3, SHARD), (1, 3, SHARD), (1, 3, 0)]


def test_one_slice_added(node: Node) -> None:
    found = several(node, 3)
    node.has(*found, device(3 * SHARD))
    assert publish(node) == {"update": 3, "create": 1}
    assert {row[1:3] for row in state(node)} == {(2, 4)}
    assert len(node.names()) == 3 * SHARD + 1


def test_create_partitionable_devices(node: Node) -> None:
    node.inventory = partitioned()
    assert publish(node) == {"create": 2}
    assert state(node) == [("00000", 1, 2, 3), ("00001", 1, 2, 0)]
    assert "devices" not in node.slices()[1]["spec"], "devices and counters exclude each other"


def with_counters(*sets: CounterSet, takes: CounterConsumption) -> Inventory:
    return Inventory(devices=(device(1), device(2, consumes_counters=(takes,))), counter_sets={"gpu": sets})


MEMORY = CounterSet("a", {"memory": Counter("1Gi")})
TAKES = CounterConsumption("a", {"memory": Counter("1Gi")})


@pytest.mark.parametrize(
    ("inventory", "published", "complaint"),
    [
        (with_counters(MEMORY, MEMORY, takes=TAKES), 2, "sharedCounters[a]: is defined twice"),
        (Inventory(devices=(device(1), device(1))), 1, "name: is defined twice in the pool"),
        (with_counters(takes=TAKES), 1, 'the pool has no counter set "a"'),
        (
            with_counters(MEMORY, takes=CounterConsumption("a", {"cores": Counter("1")})),
            1,
            'the counter set "a" has no such counter',
        ),
    ],
)
def test_what_would_make_the_pool_invalid_is_left_out(
    node: Node, caplog: pytest.LogCaptureFixture, inventory: Inventory, published: int, complaint: str
) -> None:
    """The helper reports it and publishes nothing of the pool; here only the device or counter set is left out."""
    node.inventory = inventory
    publish(node)
    assert len(node.names()) == published
    assert any(complaint in getattr(record, "problem", "") for record in caplog.records)


def test_migration_from_random_names(node: Node) -> None:
    for number, name in enumerate(("random-name1", "random-name2", "random-name3")):
        there(node, name, [device(number)], count=3)
    node.has(*devices(3))
    assert publish(node) == {"delete": 3, "create": 1}
    assert state(node) == [("00000", 2, 1, 3)]


def test_migration_from_mixed_names(node: Node) -> None:
    there(node, "random-name1", [device(0)], count=3)
    there(node, index_name(1), [device(1)], count=3)
    there(node, "random-name3", [device(2)], count=3)
    node.has(*devices(3))
    writes = publish(node)
    assert writes["delete"] == 2 and sum(writes.values()) == 3
    assert len(node.slices()) == 1 and len(node.names()) == 3


def test_update_then_delete_then_recreate(node: Node) -> None:
    for wanted, writes in (
        ([device(1)], {"create": 1}),
        ([changed(device(1))], {"update": 1}),
        ([], {"delete": 1}),
        ([device(1)], {"create": 1}),
    ):
        node.has(*wanted)
        assert publish(node) == writes
    assert state(node) == [("00000", 1, 1, 1)]


def test_a_writer_of_the_helper_s_kind_is_replaced_in_place(node: Node) -> None:
    """Labels and annotations that somebody put on a slice stay when the agent changes it."""
    before = there(node, index_name(0), [device(1)])
    labelled: dict[str, Any] = {**before, "metadata": {**before["metadata"], "labels": {"a": "b"}}}
    node.api.put("resourceslices", labelled)
    node.has(changed(device(1)))
    assert publish(node) == {"update": 1}
    assert node.slices()[0]["metadata"]["labels"] == {"a": "b"}

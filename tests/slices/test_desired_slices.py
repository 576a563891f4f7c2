from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_agent.errors import PermanentError
from dra_agent.inventory.api import Attribute, Capacity, Counter, CounterConsumption, CounterSet, Taint
from dra_agent.inventory.model import Device, Inventory, device_name
from dra_agent.slices import DesiredSlices, desired_slices, diff_slices


def gpu(bus: int, **fields: Any) -> Device:
    address = f"0000:{bus:02x}:00.0"
    return Device(
        name=device_name("gpu", address),
        family="gpu",
        vendor="nvidia",
        pci_address=address,
        numa_node=bus % 2,
        attributes={"type": Attribute.of("gpu"), "tensorCores": Attribute.of(True)},
        capacity={"memory": Capacity.of_bytes(80 * 1024**3)},
        **fields,
    )


def nic(bus: int) -> Device:
    address = f"0000:{bus:02x}:00.0"
    name = device_name("nic", address)
    return Device(name=name, family="nic", vendor="mellanox", pci_address=address, attributes={})


def desire(inventory: Inventory, published: list[dict[str, Any]] | None = None) -> DesiredSlices:
    return desired_slices(
        inventory, node="node-1", driver="dra-agent.internal", published=published or [], naming="fixed"
    )


def test_each_family_has_a_pool() -> None:
    desired = desire(Inventory(devices=(gpu(0x3B), nic(0x5E), gpu(0x1A))))
    assert desired.problems == []
    assert [(s["spec"]["pool"]["name"], [d["name"] for d in s["spec"]["devices"]]) for s in desired.slices] == [
        ("node-1/gpu", ["gpu-0000-1a-00-0", "gpu-0000-3b-00-0"]),
        ("node-1/nic", ["nic-0000-5e-00-0"]),
    ]
    assert desired.slices[0] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "00000-dra-agent.internal-node-1-gpu"},
        "spec": {
            "driver": "dra-agent.internal",
            "nodeName": "node-1",
            "pool": {"name": "node-1/gpu", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": name,
                    "attributes": {"tensorCores": {"bool": True}, "type": {"string": "gpu"}},
                    "capacity": {"memory": {"value": "80Gi"}},
                }
                for name in ("gpu-0000-1a-00-0", "gpu-0000-3b-00-0")
            ],
        },
    }


def test_partitions_have_counter_slices() -> None:
    counters = {"memory": Counter("80Gi")}
    partition = gpu(0x3B, consumes_counters=(CounterConsumption("gpu-0000-3b-00-0", counters),))
    inventory = Inventory(devices=(partition,), counter_sets={"gpu": (CounterSet("gpu-0000-3b-00-0", counters),)})
    devices, sets = desire(inventory).slices
    assert devices["spec"]["devices"][0]["consumesCounters"] == [
        {"counterSet": "gpu-0000-3b-00-0", "counters": {"memory": {"value": "80Gi"}}}
    ]
    assert sets["spec"]["sharedCounters"] == [{"name": "gpu-0000-3b-00-0", "counters": {"memory": {"value": "80Gi"}}}]
    assert devices["spec"]["pool"]["resourceSliceCount"] == 2


def test_only_changed_slices_are_written() -> None:
    inventory = Inventory(devices=(gpu(0x3B), gpu(0x5E), nic(0x1A)))
    published = desire(inventory).slices
    assert diff_slices(desire(inventory, published).slices, published) == []

    tainted = msgspec.structs.replace(
        gpu(0x5E), taints=(Taint(key="dra-agent.internal/unhealthy", effect="NoSchedule"),)
    )
    desired = desire(Inventory(devices=(gpu(0x3B), tainted, nic(0x1A))), published).slices
    (write,) = diff_slices(desired, published)
    assert (write.op, write.reason) == ("update", "changes gpu-0000-5e-00-0")
    assert write.slice["spec"]["pool"]["generation"] == 1


def test_a_device_over_a_limit_is_reported_and_not_published() -> None:
    many = {f"attribute{n}": Attribute.of(n) for n in range(40)}
    oversized = msgspec.structs.replace(gpu(0x5E), attributes=many)
    desired = desire(Inventory(devices=(gpu(0x3B), oversized)))
    assert [str(problem) for problem in desired.problems] == [
        "node-1/gpu/gpu-0000-5e-00-0: has 41 attributes and capacities, the limit is 32"
    ]
    assert [d["name"] for d in desired.slices[0]["spec"]["devices"]] == ["gpu-0000-3b-00-0"]


def test_an_invalid_node_name_is_refused() -> None:
    with pytest.raises(PermanentError, match=r"\"Node_1/gpu\" is not a pool name"):
        desired_slices(Inventory(devices=(gpu(1),)), node="Node_1", driver="dra-agent.internal")


def test_new_slices_are_owned_by_the_node() -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u", "controller": True}
    inventory = Inventory(devices=(gpu(1),))
    (slice_,) = desired_slices(inventory, node="node-1", driver="dra-agent.internal", owner=owner).slices
    assert slice_["metadata"] == {
        "generateName": "00000-dra-agent.internal-node-1-",
        "ownerReferences": [owner],
    }

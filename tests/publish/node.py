"""A node whose devices the test changes, and its publisher against a fake API server."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.inventory.api import Attribute, Capacity, Counter, CounterConsumption, CounterSet, Taint
from dra_agent.inventory.model import Device, Inventory, device_name
from dra_agent.kube_client import connect
from dra_agent.publish import Publisher
from dra_agent.publish.slice_store import SliceStore
from eventually import eventually_async
from fake_apiserver.fake import FakeApi

DRIVER = "dra-agent.internal"
NODE = "n1"
Slice = dict[str, Any]


def device(number: int, family: Any = "gpu", **fields: Any) -> Device:
    address = f"0000:{number:02x}:00.0"
    return Device(
        name=device_name(family, address),
        family=family,
        vendor="nvidia",
        pci_address=address,
        attributes={"type": Attribute.of(family)},
        capacity={"memory": Capacity.of_bytes(80 << 30)},
        **fields,
    )


def devices(count: int, family: Any = "gpu") -> tuple[Device, ...]:
    return tuple(device(number, family) for number in range(count))


def tainted(device: Device, *keys: str, effect: Any = "NoSchedule") -> Device:
    return msgspec.structs.replace(device, taints=tuple(Taint(key=f"x/{key}", effect=effect) for key in keys))


def partitioned(number: int = 1) -> Inventory:
    """Return a GPU that can be allocated whole or as two halves."""
    counters, set_name = {"memory": Counter("80Gi")}, f"gpu-{number}"
    whole = device(number, consumes_counters=(CounterConsumption(set_name, counters),))
    halves = tuple(
        msgspec.structs.replace(
            whole,
            name=f"{whole.name}-half-{half}",
            identity={"parent": whole.name},
            consumes_counters=(CounterConsumption(set_name, {"memory": Counter("40Gi")}),),
        )
        for half in range(2)
    )
    return Inventory(devices=(whole, *halves), counter_sets={"gpu": (CounterSet(set_name, counters),)})


class Node:
    """A node with devices that the test sets, and its API server."""

    def __init__(self, api: FakeApi, path: Path) -> None:
        self.api = api
        self.kubeconfig = api.kubeconfig(path)
        self.inventory = Inventory()
        self.is_leader = True
        self.is_urgent = False
        self.leader_checks = 0
        self.register()

    def register(self, name: str = NODE) -> str:
        """Create the Node object, and return its uid."""
        uid: str = self.api.put("nodes", {"metadata": {"name": name}})["metadata"]["uid"]
        return uid

    def check_leader(self) -> bool:
        self.leader_checks += 1
        return self.is_leader

    def set_devices(self, *devices: Device) -> None:
        self.inventory = Inventory(devices=devices)

    def run(self, scenario: Callable[[Publisher], Awaitable[Any]]) -> Any:
        """Run a publisher from its start to its stop."""

        async def main() -> Any:
            async with connect(self.kubeconfig) as api:
                publisher = Publisher(
                    api,
                    node=NODE,
                    driver=DRIVER,
                    inventory=lambda: self.inventory,
                    is_leader=self.check_leader,
                    urgent=lambda: self.is_urgent,
                )
                await publisher.start()
                try:
                    return await scenario(publisher)
                finally:
                    await publisher.stop()

        return asyncio.run(main())

    # Published slices.

    def slices(self, pool: str | None = None) -> list[Slice]:
        """Return slices sorted by name, the order in which the scheduler reads them."""
        return self.api.objects("resourceslices", lambda o: pool in (None, o["spec"]["pool"]["name"]))

    def names(self, pool: str = f"{NODE}/gpu") -> list[str]:
        """Return the devices that a scheduler may allocate: those of a complete pool."""
        slices = self.slices(pool)
        generation = max((slice_["spec"]["pool"]["generation"] for slice_ in slices), default=0)
        slices = [slice_ for slice_ in slices if slice_["spec"]["pool"]["generation"] == generation]
        if any(slice_["spec"]["pool"]["resourceSliceCount"] != len(slices) for slice_ in slices):
            return ["incomplete"]
        return [device["name"] for slice_ in slices for device in slice_["spec"].get("devices", ())]

    def writes(self) -> list[str]:
        return [request.method for request in self.api.writes()]

    def clear_requests(self) -> None:
        self.api.requests.clear()


async def wait_until_published(publisher: Publisher) -> None:
    """Wait until the publisher has nothing pending."""
    await eventually_async(lambda: publisher.reading().lag_s == 0.0 and not publisher.reading().pending)


async def wait_until_watched(node: Node, publisher: Publisher) -> None:
    """Wait until the publisher has handled every earlier event of its watch, and has no reason to write.

    The watch delivers events in order: the last is a label, which the publisher keeps.
    """
    marked = copy.deepcopy(node.slices()[0])
    labels = marked["metadata"].setdefault("labels", {})
    labels["marker"] = str(int(labels.get("marker", 0)) + 1)
    node.api.put("resourceslices", marked)
    await eventually_async(
        lambda: labels["marker"] in [found["metadata"].get("labels", {}).get("marker") for found in publisher.slices()]
    )
    await wait_until_published(publisher)


async def assert_no_more_writes(node: Node, publisher: Publisher) -> None:
    """Wait until the pools are published, and check that nothing more is written."""
    await wait_until_published(publisher)
    node.clear_requests()
    for _ in range(3):
        publisher.devices_changed()
        await wait_until_published(publisher)
    assert node.writes() == []


__all__ = [
    "DRIVER",
    "NODE",
    "Node",
    "SliceStore",
    "device",
    "devices",
    "partitioned",
    "tainted",
    "wait_until_published",
    "wait_until_watched",
]

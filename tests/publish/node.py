"""A node whose devices the test changes, and its publisher against a fake API server."""

from __future__ import annotations

import asyncio
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


def tainted(found: Device, *keys: str, effect: Any = "NoSchedule") -> Device:
    return msgspec.structs.replace(found, taints=tuple(Taint(key=f"x/{key}", effect=effect) for key in keys))


def partitioned() -> Inventory:
    """A GPU of which either the whole or its two halves can be held."""
    counters = {"memory": Counter("80Gi")}
    whole = device(1, consumes_counters=(CounterConsumption("gpu-1", counters),))
    halves = tuple(
        msgspec.structs.replace(
            whole,
            name=f"{whole.name}-half-{n}",
            identity={"parent": whole.name},
            consumes_counters=(CounterConsumption("gpu-1", {"memory": Counter("40Gi")}),),
        )
        for n in range(2)
    )
    return Inventory(devices=(whole, *halves), counter_sets={"gpu": (CounterSet("gpu-1", counters),)})


class Node:
    """What a test sees and changes."""

    def __init__(self, api: FakeApi, path: Path) -> None:
        self.api = api
        self.kubeconfig = api.kubeconfig(path)
        self.inventory = Inventory()
        self.is_leader = True
        self.register()

    def register(self, name: str = NODE) -> str:
        """Make the Node object; give its uid."""
        uid: str = self.api.put("nodes", {"metadata": {"name": name}})["metadata"]["uid"]
        return uid

    def has(self, *found: Device) -> None:
        self.inventory = Inventory(devices=found)

    def run(self, story: Callable[[Publisher], Awaitable[Any]]) -> Any:
        """Run a publisher from its start to its stop."""

        async def main() -> Any:
            async with connect(self.kubeconfig) as api:
                publisher = Publisher(
                    api,
                    node=NODE,
                    driver=DRIVER,
                    inventory=lambda: self.inventory,
                    is_leader=lambda: self.is_leader,
                )
                await publisher.start()
                try:
                    return await story(publisher)
                finally:
                    await publisher.stop()

        return asyncio.run(main())

    # What is published.

    def slices(self, pool: str | None = None) -> list[Slice]:
        """In the order of names, which is the scheduler's."""
        return self.api.objects("resourceslices", lambda o: pool in (None, o["spec"]["pool"]["name"]))

    def names(self, pool: str = f"{NODE}/gpu") -> list[str]:
        """The devices that a scheduler may use: those of a complete pool."""
        found = self.slices(pool)
        newest = max((o["spec"]["pool"]["generation"] for o in found), default=0)
        found = [o for o in found if o["spec"]["pool"]["generation"] == newest]
        if any(o["spec"]["pool"]["resourceSliceCount"] != len(found) for o in found):
            return ["incomplete"]
        return [entry["name"] for o in found for entry in o["spec"].get("devices", ())]

    def writes(self) -> list[str]:
        return [seen.method for seen in self.api.writes()]

    def forget(self) -> None:
        self.api.requests.clear()


async def settled(publisher: Publisher) -> None:
    """Wait until what is published is what should be."""
    await eventually_async(lambda: publisher.reading().lag_s == 0.0 and not publisher.reading().pending)


async def quiet(node: Node, publisher: Publisher) -> None:
    """Wait until nothing more is written."""
    await settled(publisher)
    node.forget()
    for _ in range(3):
        publisher.devices_changed()
        await asyncio.sleep(0.1)
    assert node.writes() == []


__all__ = ["DRIVER", "NODE", "Node", "SliceStore", "device", "devices", "partitioned", "settled", "tainted"]

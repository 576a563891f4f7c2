"""A cluster with a claim on devices of this driver and of another, and the devices of the host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device, Inventory
from dra_agent.kube_client import ApiClient, connect
from fake_apiserver.fake import FakeApi

DRIVER = "dra-agent.internal"
POOL = "node-1/gpu"
Scenario = Callable[[ApiClient], Awaitable[Any]]


def result(device: str, *, driver: str = DRIVER, pool: str = POOL, **more: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": driver, "pool": pool, "device": device, **more}


def claim(name: str, *results: dict[str, Any], uid: str | None = None) -> dict[str, Any]:
    status = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    return {
        "metadata": {"name": name, "namespace": "team-a", "uid": uid or f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": status,
    }


class Host:
    """Devices that a test changes."""

    def __init__(self) -> None:
        self.devices = {
            name: Device(
                name,
                "gpu",
                "nvidia",
                f"0000:{index:02x}:00.0",
                attributes={"productName": Attribute.of("NVIDIA H100 80GB HBM3")},
                identity={"uuid": f"GPU-{index}"},
                numa_node=1,
            )
            for index, name in enumerate(("gpu-0", "gpu-1"))
        }
        self.devices["nic-0"] = Device(
            "nic-0",
            "nic",
            "mellanox",
            "0000:40:00.0",
            attributes={"mac": Attribute.of("b8:ce:f6:00:00:01")},
            identity={"ifname": "eth2"},
        )

    @property
    def inventory(self) -> Inventory:
        return Inventory(devices=tuple(self.devices.values()))

    def lookup(self, pool: str, name: str) -> Device | None:
        device = self.devices.get(name)
        return device if device is not None and pool.endswith(device.family) else None

    def change(self, name: str, **fields: Any) -> None:
        self.devices[name] = msgspec.structs.replace(self.devices[name], **fields)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def run_with_client(fake_api: FakeApi, tmp_path: Path) -> Callable[[Scenario], Any]:
    """Run a scenario with a client of the fake API server."""
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(scenario: Scenario) -> Any:
        async def main() -> Any:
            async with connect(path) as api:
                return await scenario(api)

        return asyncio.run(main())

    return run

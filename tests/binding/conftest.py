"""A node with a real preparer and a fake API server, with the scheduler played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_agent.binding.conditions import ConditionNames
from dra_agent.binding.service import BindingService
from dra_agent.kube_client import ApiClient, connect
from dra_agent.prepare.ahead import AheadPreparer, prepared_ahead
from dra_agent.status.events import EventRecorder
from fake_apiserver.fake import FakeApi
from prepare.simulated_node import DRIVER, POOL, SimulatedNode, partition

NODE = POOL.partition("/")[0]
PREPARED, FAILED = ConditionNames.of(DRIVER)


class Taints:
    """Records what the service reports of devices."""

    def __init__(self) -> None:
        self.tainted: dict[str, str] = {}
        self.on_failed: Callable[[], None] = lambda: None

    async def failed(self, devices: Iterable[str], message: str) -> None:
        self.on_failed()
        self.tainted.update(dict.fromkeys(devices, message))

    async def completed(self, devices: Iterable[str]) -> None:
        for device in devices:
            self.tainted.pop(device, None)


class Stage:
    """The node, the API server, and the actions of the scheduler."""

    def __init__(self, node: SimulatedNode, api: FakeApi, kubeconfig: Path) -> None:
        self.node = node
        self.api = api
        self.taints = Taints()
        self.refusal = ""
        self.more_config: list[dict[str, Any]] = []
        """What the pods of a claim request in addition to its own configuration."""
        self.leads = True
        self.changes: list[bool] = []
        self._kubeconfig = kubeconfig

    @asynccontextmanager
    async def service(
        self, client: ApiClient, *, timeout_s: float = 300.0, follows_pods: bool = True
    ) -> AsyncIterator[BindingService]:
        events = EventRecorder(client, DRIVER, NODE)
        events.start()

        async def completed(claim: dict[str, Any]) -> dict[str, Any]:
            claim["status"]["allocation"]["devices"]["config"] += self.more_config
            return claim

        service: BindingService
        service = BindingService(
            client,
            self.node.ledger,
            AheadPreparer(self.node.preparer),
            self.node.preparer.check,
            self.taints,
            events,
            node=NODE,
            driver=DRIVER,
            timeout_s=timeout_s,
            is_leader=lambda: self.leads,
            changed=lambda: self.changes.append(service.is_ready),
            refusal=lambda: self.refusal,
            completed=completed,
            poll_s=0.05,
        )
        service.start(follows_pods=follows_pods)
        try:
            yield service
        finally:
            await service.stop()
            await events.stop()

    def run(self, scenario: Callable[[ApiClient], Awaitable[None]]) -> None:
        async def main() -> None:
            async with connect(self._kubeconfig) as client:
                await scenario(client)

        asyncio.run(main())

    def nominate(self, pod: str, *claims: str, node: str = NODE, **status: Any) -> None:
        self.api.put(
            "pods",
            {
                "metadata": {"name": pod, "namespace": "default", "uid": f"uid-{pod}"},
                "spec": {"resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims]},
                "status": {"nominatedNodeName": node, **status},
            },
        )

    def bind(self, pod: str) -> None:
        found = self.api.store.get("pods", "default", pod)
        self.api.put("pods", {**found, "spec": {**found["spec"], "nodeName": NODE}})

    def allocate(
        self, name: str, *devices: str, size: int = 2, fail: bool = False, timestamp: str | None = None, **more: Any
    ) -> None:
        results = [
            {
                "request": "gpus",
                "driver": DRIVER,
                "pool": POOL,
                "device": device,
                "bindingConditions": [PREPARED],
                "bindingFailureConditions": [FAILED],
                **more,
            }
            for device in devices
        ]
        allocation: dict[str, Any] = {"devices": {"results": results, "config": [partition(size, fail=fail)]}}
        if timestamp is not None:
            allocation["allocationTimestamp"] = timestamp
        status: dict[str, Any] = {"allocation": allocation}
        if self.api.objects("resourceclaims", lambda found: found["metadata"]["name"] == name):
            self.api.set_status("resourceclaims", "default", name, status)
            return
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        self.api.put("resourceclaims", {"metadata": metadata, "spec": {}, "status": status})

    def deallocate(self, name: str) -> None:
        """As the scheduler does when it gives up; the API server drops the entries of deallocated devices."""
        self.api.set_status("resourceclaims", "default", name, {})

    def conditions(self, name: str) -> dict[str, dict[str, str]]:
        """By device: the conditions with their status."""
        devices = self.api.store.get("resourceclaims", "default", name)["status"].get("devices", [])
        return {
            entry["device"]: {one["type"]: one["status"] for one in entry.get("conditions", [])} for entry in devices
        }

    def message(self, name: str) -> str:
        devices = self.api.store.get("resourceclaims", "default", name)["status"]["devices"]
        return str(next(one["message"] for one in devices[0]["conditions"] if one["type"] == FAILED))

    def ahead(self) -> list[str]:
        return [entry.name for entry in prepared_ahead(self.node.ledger)]


SUCCESS = {PREPARED: "True", FAILED: "False"}
FAILURE = {PREPARED: "False", FAILED: "True"}


@pytest.fixture
def stage(fake_api: FakeApi, tmp_path: Path) -> Stage:
    return Stage(SimulatedNode(tmp_path / "node"), fake_api, fake_api.kubeconfig(tmp_path / "kubeconfig"))

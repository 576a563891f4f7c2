"""A plugin in a kubelet directory, with fake claims, a fake preparer, and a fake kubelet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.health.published_health import DeviceHealthStore
from dra_agent.kubelet_plugin.plugin import KubeletPlugin
from dra_agent.kubelet_plugin.sockets import socket_paths
from kubelet_plugin.fake_kubelet import Driver, FakeKubelet

DRIVER = "dra-agent.internal"


def claim(name: str, uid: str, device: str = "gpu-0", **status: Any) -> dict[str, Any]:
    results = [{"request": "gpu", "driver": DRIVER, "pool": "n/gpu", "device": device}]
    allocated = {"allocation": {"devices": {"results": results}}}
    return {"metadata": {"namespace": "default", "name": name, "uid": uid}, "status": status or allocated}


@dataclass
class Claims:
    """The claims of the API server; the `errors` of a claim are raised first, one per request."""

    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    hang: set[str] = field(default_factory=set)
    tries: list[str] = field(default_factory=list)

    def add(self, name: str, uid: str, **more: Any) -> None:
        self.claims[name] = claim(name, uid, **more)

    async def claim(self, namespace: str, name: str, timeout: float) -> dict[str, Any]:
        self.tries.append(name)
        if name in self.hang:
            await asyncio.sleep(timeout)
            raise TimeoutError
        if self.errors.get(name):
            raise self.errors[name].pop(0)
        return self.claims[name]

    def claim_on_thread(self, namespace: str, name: str, timeout: float) -> dict[str, Any] | None:
        if name in self.hang:
            return None
        self.tries.append(name)
        if self.errors.get(name):
            raise self.errors[name].pop(0)
        return self.claims[name]


@dataclass
class Devices:
    """A preparer: `raises` has errors by uid, and `gates` blocks work on a uid until its event is set."""

    raises: dict[str, BaseException] = field(default_factory=dict)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    active: dict[str, int] = field(default_factory=dict)

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> list[ClaimDevice]:
        uid = claim["metadata"]["uid"]
        self._work("prepare", uid)
        return [
            ClaimDevice(
                result["pool"],
                result["device"],
                (result["request"].partition("/")[0],),
                result.get("shareID"),
                cdi_device_ids=(f"{DRIVER}/claim={uid}-{result['device']}",),
            )
            for result in claim["status"]["allocation"]["devices"]["results"]
        ]

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        self._work("unprepare", uid)

    def _work(self, operation: str, uid: str) -> None:
        self.calls.append(f"{operation} {uid}")
        self.active[uid] = self.active.get(uid, 0) + 1
        assert self.active[uid] == 1, "two operations on one claim at once"
        try:
            if uid in self.gates:
                assert self.gates[uid].wait(60)
            if uid in self.raises:
                raise self.raises[uid]
        finally:
            self.active[uid] -= 1


@dataclass
class Node:
    """A kubelet directory, and the claims and devices of its plugins."""

    directory: Path
    claims: Claims = field(default_factory=Claims)
    devices: Devices = field(default_factory=Devices)

    @property
    def kubelet_dir(self) -> Path:
        return self.directory / "k"

    @asynccontextmanager
    async def plugin(
        self, *, serve: bool = True, pod_uid: str = "", health: DeviceHealthStore | None = None, **more: Any
    ) -> AsyncIterator[KubeletPlugin]:
        more["health"] = health is not None
        plugin = KubeletPlugin(socket_paths(self.kubelet_dir, DRIVER, pod_uid), DRIVER, self.claims, **more)
        await plugin.open()
        if serve:
            plugin.serve(self.devices, health)
        try:
            yield plugin
        finally:
            for gate in self.devices.gates.values():
                gate.set()
            await plugin.close()

    @asynccontextmanager
    async def registered(self, **more: Any) -> AsyncIterator[tuple[KubeletPlugin, Driver]]:
        async with self.plugin(**more) as plugin, self.kubelet() as kubelet:
            yield plugin, await kubelet.driver()

    @asynccontextmanager
    async def kubelet(self, **more: Any) -> AsyncIterator[FakeKubelet]:
        kubelet = FakeKubelet(self.kubelet_dir, **more)
        try:
            yield kubelet
        finally:
            await kubelet.close()


@pytest.fixture
def node(short_path: Path) -> Node:
    return Node(short_path)


Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def run() -> Run:
    return asyncio.run

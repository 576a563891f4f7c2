"""A queue with a real store, an allocator of two devices, and a preparer that can fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError
from dra_agent.standalone import protocol as client_module
from dra_agent.standalone import requests as requests_module
from dra_agent.standalone import service as service_module
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.store import Store
from eventually import DEADLINE_S


@dataclass
class Preparer:
    """Records prepared claims; `error` makes later prepares fail."""

    error: AgentError | None = None
    release_error: AgentError | None = None
    prepared: dict[str, list[str]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    vendor_ids: tuple[str, ...] = ()
    """CDI ids of each device in the spec of its vendor."""

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> list[ClaimDevice]:
        uid = claim["metadata"]["uid"]
        self.calls.append(f"prepare {claim['metadata']['name']}")
        if self.error is not None:
            raise self.error
        results = claim["status"]["allocation"]["devices"]["results"]
        self.prepared[uid] = [result["device"] for result in results]
        return [
            ClaimDevice(
                result["pool"],
                result["device"],
                (result["request"],),
                cdi_device_ids=(*self.vendor_ids, f"x/claim={uid}-{result['device']}"),
            )
            for result in results
        ]

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        if self.release_error is not None:
            raise self.release_error
        self.prepared.pop(uid, None)


class Devices(ClusterAllocator):
    """An allocator of whole devices; the test may change `names` at any time."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def allocate(
        self, *, node: str, classes: list[Any], slices: list[Any], claims: list[Any], allocated: list[Any]
    ) -> dict[str, Any]:
        allocated_names = {
            result["device"] for claim_ in allocated for result in claim_["status"]["allocation"]["devices"]["results"]
        }
        free = [name for name in self.names if name not in allocated_names]
        (claim,) = claims
        request = claim["spec"]["devices"]["requests"][0]
        count = request["exactly"].get("count", 1)
        if request["exactly"]["deviceClassName"] not in {class_["metadata"]["name"] for class_ in classes}:
            return {"allocated": False, "results": [], "error": "no such class"}
        if len(free) < count:
            return {"allocated": False, "results": [], "error": None}
        results = [
            {"request": request["name"], "driver": "d", "pool": f"{node}/gpu", "device": name} for name in free[:count]
        ]
        return {"allocated": True, "results": [{"devices": {"results": results}}], "error": None}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend every deadline for a slow machine; a test of such a deadline sets it itself."""
    monkeypatch.setattr(requests_module, "FIRST_TRY_S", DEADLINE_S)
    monkeypatch.setattr(requests_module, "RESPOND_AFTER_S", DEADLINE_S)
    monkeypatch.setattr(service_module, "STOP_AFTER_S", DEADLINE_S / 2)
    monkeypatch.setattr(requests_module, "VALIDATION_TIMEOUT_S", 10 * DEADLINE_S)
    monkeypatch.setattr(client_module, "RESPONSE_TIMEOUT_S", 10 * DEADLINE_S)


@pytest.fixture
def preparer() -> Preparer:
    return Preparer()


@pytest.fixture
def devices() -> Devices:
    return Devices("gpu-0", "gpu-1")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(tmp_path: Path, preparer: Preparer, devices: Devices, clock: Clock) -> Iterator[ClaimQueue]:
    store = Store(tmp_path)
    queue = ClaimQueue(store, node="n", slices=list, allocator=devices, preparer=preparer, clock=clock)
    queue.apply([{"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}])
    yield queue
    store.close()


@pytest.fixture
def claim() -> Any:
    def make(name: str, count: int = 1, class_name: str = "gpu") -> dict[str, Any]:
        request = {"name": "r", "exactly": {"deviceClassName": class_name, "count": count}}
        return {"kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}

    return make

"""A node whose prepared claims are compared with a fake API server: its ledger, its clock, and one GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from dra_agent.deadline import Deadline
from dra_agent.host import Host
from dra_agent.inventory.model import Device, Inventory
from dra_agent.kube_client import ApiClient, connect
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from dra_agent.prepare.preparer import MayRelease
from dra_agent.status.events import EventRecorder
from dra_agent.status.orphaned_claims import OrphanedClaims
from eventually import eventually_async
from fake_apiserver.fake import FakeApi

POOL = "node-a/gpu"
CONFIRM_S = 180.0


class Clock:
    """A clock that advances only when the test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Node:
    """An in-memory ledger that also serves as preparer and event recorder."""

    def __init__(self) -> None:
        self.entries_by_uid: dict[str, LedgerEntry] = {}
        self.released: list[str] = []
        self.events: list[str] = []
        self.node = "node-a"
        self.pods: tuple[str, ...] = ("9f0e0d0c-0b0a-4908-8706-050403020109",)
        """Recorded in the ledger for each claim."""

    def entries(self) -> list[LedgerEntry]:
        return list(self.entries_by_uid.values())

    def hold(self, uid: str, name: str, device: str = "gpu-0", pool: str = POOL) -> None:
        devices = (HeldDevice(pool, device, "gpu"),)
        payload = {"pods": list(self.pods)}
        self.entries_by_uid[uid] = LedgerEntry(uid, "default", name, devices, "completed", payload)

    def release(self, uid: str, deadline: Deadline, may_release: MayRelease) -> None:
        if (entry := self.entries_by_uid.get(uid)) is not None and may_release(entry):
            del self.entries_by_uid[uid]
            self.released.append(uid)

    def record(self, reason: Any, subject: Any, note: str) -> None:
        self.events.append(f"{reason.name} {subject.name} {note}")


def host_with_a_gpu(tmp_path: Path) -> Host:
    function = tmp_path / "sys/bus/pci/devices/0000:3b:00.0/drm/renderD128"
    function.mkdir(parents=True)
    (function / "dev").write_text("226:128\n")
    (function / "uevent").write_text("DEVNAME=dri/renderD128\n")
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    (tmp_path / "proc").mkdir()
    return Host(sysfs=tmp_path / "sys", dev=tmp_path / "dev", proc=tmp_path / "proc")


class OneGpu:
    """The devices of a host with one GPU, and a network interface without device nodes."""

    inventory = Inventory()

    def lookup(self, pool: str, name: str) -> Device | None:
        if name == "nic-0":
            return Device("nic-0", "nic", "mellanox", "0000:5e:00.0", {})
        return Device("gpu-0", "gpu", "amd", "0000:3b:00.0", {}) if name == "gpu-0" else None


def run(
    fake_api: FakeApi,
    tmp_path: Path,
    host: Host,
    scenario: Callable[[OrphanedClaims, Node, Clock, ApiClient], Any],
    *,
    confirm_after_s: float = CONFIRM_S,
) -> Node:
    node, clock = Node(), Clock()

    async def main() -> None:
        async with connect(fake_api.kubeconfig(tmp_path / "kubeconfig")) as api:
            gone = OrphanedClaims(
                api,
                cast(JournalLedger, node),
                host,
                OneGpu(),
                cast(EventRecorder, node),
                driver="d",
                confirm_after_s=confirm_after_s,
                now=clock,
                spread=lambda low, high: low,
            )
            await scenario(gone, node, clock, api)
            await gone.stop()

    asyncio.run(main())
    return node


def put(fake_api: FakeApi, name: str, uid: str, *devices: str, pool: str = POOL, pods: tuple[str, ...] = ()) -> None:
    """Put a claim; without devices it is not allocated. `pods` are the UIDs of those that it is reserved for."""
    given = claim(name, uid, *devices, pool=pool, pods=pods)
    fake_api.put("resourceclaims", given)
    fake_api.set_status("resourceclaims", "default", name, given["status"])


def claim(name: str, uid: str, *devices: str, pool: str = POOL, pods: tuple[str, ...] = ()) -> dict[str, Any]:
    results = [{"driver": "d", "pool": pool, "device": device, "request": "gpu"} for device in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": uid},
        "status": {
            **({"allocation": {"devices": {"results": results}}} if results else {}),
            "reservedFor": [{"resource": "pods", "name": f"pod-{pod}", "uid": pod} for pod in pods],
        },
    }


def gets(fake_api: FakeApi, name: str) -> int:
    return len([request for request in fake_api.requests if request.path.endswith(f"/resourceclaims/{name}")])


async def wait_until(condition: Callable[[], bool]) -> None:
    await eventually_async(condition)


async def run_due_checks(gone: OrphanedClaims, clock: Clock, seconds: float = 0.0) -> None:
    """Advance the clock, and run every check that is due."""
    clock.now += seconds
    await gone.check_due()


def open_device_in_a_process(host: Host) -> None:
    (host.proc / "4711/fd").mkdir(parents=True)
    (host.proc / "4711/comm").write_text("train\n")
    (host.proc / "4711/fd/3").symlink_to(host.dev / "dri/renderD128")

"""Prepared claims whose ResourceClaim is gone are released after two checks, and for no other reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device, Inventory
from dra_agent.kube_client import ApiClient, connect
from dra_agent.prepare.ledger import DeviceHeldError, HeldDevice, JournalLedger, LedgerEntry
from dra_agent.status.events import EventRecorder
from dra_agent.status.orphaned_claims import HolderCheckingPreparer, OrphanedClaims
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

    def entries(self) -> list[LedgerEntry]:
        return list(self.entries_by_uid.values())

    def hold(self, uid: str, name: str, device: str = "gpu-0", pool: str = POOL) -> None:
        devices = (HeldDevice(pool, device, "gpu"),)
        self.entries_by_uid[uid] = LedgerEntry(uid, "default", name, devices, "completed")

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        del self.entries_by_uid[uid]
        self.released.append(uid)

    def record(self, reason: Any, subject: Any, note: str) -> None:
        self.events.append(f"{reason.name} {subject.name} {note}")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    function = tmp_path / "sys/bus/pci/devices/0000:3b:00.0/drm/renderD128"
    function.mkdir(parents=True)
    (function / "dev").write_text("226:128\n")
    (function / "uevent").write_text("DEVNAME=dri/renderD128\n")
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    (tmp_path / "proc").mkdir()
    return Host(sysfs=tmp_path / "sys", dev=tmp_path / "dev", proc=tmp_path / "proc")


class OneGpu:
    """The devices of a host with one GPU."""

    inventory = Inventory()

    def lookup(self, pool: str, name: str) -> Device | None:
        return Device("gpu-0", "gpu", "amd", "0000:3b:00.0", {}) if name == "gpu-0" else None


def run(
    fake_api: FakeApi, tmp_path: Path, host: Host, scenario: Callable[[OrphanedClaims, Node, Clock, ApiClient], Any]
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
                confirm_after_s=CONFIRM_S,
                now=clock,
                spread=lambda low, high: low,
            )
            await scenario(gone, node, clock, api)
            await gone.stop()

    asyncio.run(main())
    return node


def put(fake_api: FakeApi, name: str, uid: str) -> None:
    metadata = {"namespace": "default", "name": name, "uid": uid}
    fake_api.put("resourceclaims", {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata})


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


def test_a_deleted_claim_is_released_after_the_second_check(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "there", "t")
    put(fake_api, "anew", "second")

    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        node.hold("t", "there", "gpu-1")
        node.hold("first", "anew", "gpu-2")
        gone.start(node.unprepare)
        await wait_until(lambda: {"g", "first"} <= gone.deleted_since.keys() and gets(fake_api, "there") > 0)
        await run_due_checks(gone, clock, CONFIRM_S / 2)
        assert not node.released
        await run_due_checks(gone, clock, CONFIRM_S / 2)
        assert sorted(node.released) == ["first", "g"]

    node = run(fake_api, tmp_path, host, scenario)
    assert [entry.uid for entry in node.entries()] == ["t"]
    assert any("ClaimGone node-a" in event and "default/gone" in event and "gpu-0" in event for event in node.events)


@pytest.mark.parametrize("status", [401, 403, 404, 410, 429, 500, 503])
def test_no_other_response_releases_a_claim(fake_api: FakeApi, tmp_path: Path, host: Host, status: int) -> None:
    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        fake_api.fail(status, times=None)
        gone.start(node.unprepare)
        await wait_until(lambda: gets(fake_api, "gone") > 0)
        for _ in range(3):
            gone.suspect(["g"])
            await asyncio.sleep(0)
            await run_due_checks(gone, clock, CONFIRM_S)
        assert not node.released

    assert run(fake_api, tmp_path, host, scenario).entries()


def test_a_claim_found_between_the_checks_restarts_them(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        gone.start(node.unprepare)
        await wait_until(lambda: "g" in gone.deleted_since)
        put(fake_api, "gone", "g")
        await run_due_checks(gone, clock, CONFIRM_S)
        assert not node.released and not gone.deleted_since

    run(fake_api, tmp_path, host, scenario)


def test_a_claim_with_an_open_device_is_kept_until_it_is_closed(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        open_device_in_a_process(host)
        gone.start(node.unprepare)
        await wait_until(lambda: "g" in gone.deleted_since)
        await run_due_checks(gone, clock, CONFIRM_S)
        assert not node.released
        (host.proc / "4711/fd/3").unlink()
        await run_due_checks(gone, clock, 60)
        assert node.released == ["g"]

    run(fake_api, tmp_path, host, scenario)


@pytest.mark.parametrize("pool", [POOL, "former-name/gpu"])
def test_a_blocking_holder_is_checked_and_the_error_names_a_command(
    fake_api: FakeApi, tmp_path: Path, host: Host, pool: str
) -> None:
    class HeldDevicePreparer:
        def prepare(self, claim: dict[str, Any], deadline: Deadline) -> list[Any]:
            raise DeviceHeldError("device gpu-0 of pool node-a/gpu is held by claim default/gone")

        def unprepare(self, uid: str, deadline: Deadline) -> None:
            raise AssertionError

    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        put(fake_api, "gone", "g")
        gone.start(node.unprepare)
        node.hold("g", "gone", pool=pool)
        result = {"driver": "d", "pool": POOL, "device": "gpu-0", "request": "r"}
        claim = {"metadata": {"uid": "new"}, "status": {"allocation": {"devices": {"results": [result]}}}}
        fake_api.remove("resourceclaims", "gone", "default")
        with pytest.raises(DeviceHeldError, match="dra-agent claim release g"):
            await asyncio.to_thread(HolderCheckingPreparer(HeldDevicePreparer(), gone).prepare, claim, Deadline.of(60))
        await wait_until(lambda: "g" in gone.deleted_since)

    run(fake_api, tmp_path, host, scenario)


def test_the_release_command_needs_force_for_an_existing_claim(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        put(fake_api, "there", "t")
        node.hold("g", "gone")
        node.hold("t", "there", "gpu-1")
        gone.start(node.unprepare)
        with pytest.raises(PermanentError, match="no claim of this name"):
            await gone.release("nothing", force=True)
        with pytest.raises(PermanentError, match="still exists"):
            await gone.release("default/there", force=False)
        open_device_in_a_process(host)
        with pytest.raises(RetryableError, match="train .process 4711. has /dev/dri/renderD128 open"):
            await gone.release("g", force=False)
        assert not node.released
        done = await gone.release("default/gone", force=True)
        assert (done["uid"], done["devices"], done["exists"]) == ("g", ["gpu-0"], False)
        assert (await gone.release("t", force=True))["exists"] is True
        assert node.released == ["g", "t"]

    run(fake_api, tmp_path, host, scenario)

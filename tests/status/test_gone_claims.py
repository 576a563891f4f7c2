"""Prepared claims that no longer exist are released after two checks, and never for any other reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.kube_client import ApiClient, connect
from dra_agent.prepare.ledger import DeviceHeldError, HeldDevice, JournalLedger, LedgerEntry
from dra_agent.status.events import EventRecorder
from dra_agent.status.orphaned_claims import HolderCheckingPreparer, OrphanedClaims
from eventually import eventually_async
from fake_apiserver.fake import FakeApi

POOL = "node-a/gpu"
CONFIRM_S = 180.0


class Clock:
    """Jumps when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Node:
    """A ledger in memory, and what unprepares."""

    def __init__(self) -> None:
        self.entries_by_uid: dict[str, LedgerEntry] = {}
        self.released: list[str] = []
        self.events: list[str] = []
        self.node = "node-a"

    def entries(self) -> list[LedgerEntry]:
        return list(self.entries_by_uid.values())

    def hold(self, uid: str, name: str, device: str = "gpu-0", pool: str = POOL) -> None:
        held = (HeldDevice(pool, device, "gpu"),)
        self.entries_by_uid[uid] = LedgerEntry(uid, "default", name, held, "completed")

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


def device(pool: str, name: str) -> Device | None:
    return Device("gpu-0", "gpu", "amd", "0000:3b:00.0", {}) if name == "gpu-0" else None


def run(
    fake_api: FakeApi, tmp_path: Path, host: Host, story: Callable[[OrphanedClaims, Node, Clock, ApiClient], Any]
) -> Node:
    node, clock = Node(), Clock()

    async def main() -> None:
        async with connect(fake_api.kubeconfig(tmp_path / "kubeconfig")) as api:
            gone = OrphanedClaims(
                api,
                cast(JournalLedger, node),
                host,
                device,
                cast(EventRecorder, node),
                driver="d",
                confirm_after_s=CONFIRM_S,
                now=clock,
                spread=lambda low, high: low,
            )
            await story(gone, node, clock, api)
            await gone.stop()

    asyncio.run(main())
    return node


def put(fake_api: FakeApi, name: str, uid: str) -> None:
    metadata = {"namespace": "default", "name": name, "uid": uid}
    fake_api.put("resourceclaims", {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata})


def gets(fake_api: FakeApi, name: str) -> int:
    return len([seen for seen in fake_api.requests if seen.path.endswith(f"/resourceclaims/{name}")])


async def until(condition: Callable[[], bool]) -> None:
    await eventually_async(condition)


async def look(gone: OrphanedClaims, clock: Clock, seconds: float = 0.0) -> None:
    """Let time pass, and every check that is due then happen."""
    clock.now += seconds
    await gone._check_due()


def open_in_a_process(host: Host) -> None:
    (host.proc / "4711/fd").mkdir(parents=True)
    (host.proc / "4711/comm").write_text("train\n")
    (host.proc / "4711/fd/3").symlink_to(host.dev / "dri/renderD128")


def test_a_claim_that_is_gone_is_released_after_the_second_check(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "there", "t")
    put(fake_api, "anew", "second")

    async def story(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        node.hold("t", "there", "gpu-1")
        node.hold("first", "anew", "gpu-2")
        gone.start(node.unprepare)
        await until(lambda: {"g", "first"} <= gone._deleted_since.keys() and gets(fake_api, "there") > 0)
        await look(gone, clock, CONFIRM_S / 2)
        assert not node.released
        await look(gone, clock, CONFIRM_S / 2)
        assert sorted(node.released) == ["first", "g"]

    node = run(fake_api, tmp_path, host, story)
    assert [entry.uid for entry in node.entries()] == ["t"]
    assert any("ClaimGone node-a" in event and "default/gone" in event and "gpu-0" in event for event in node.events)


@pytest.mark.parametrize("status", [401, 403, 404, 410, 429, 500, 503])
def test_no_other_answer_releases_a_claim(fake_api: FakeApi, tmp_path: Path, host: Host, status: int) -> None:
    async def story(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        fake_api.fail(status, times=None)
        gone.start(node.unprepare)
        await until(lambda: gets(fake_api, "gone") > 0)
        for _ in range(3):
            gone.suspect(["g"])
            await asyncio.sleep(0)
            await look(gone, clock, CONFIRM_S)
        assert not node.released

    assert run(fake_api, tmp_path, host, story).entries()


def test_an_answer_between_the_checks_that_says_it_exists_begins_again(
    fake_api: FakeApi, tmp_path: Path, host: Host
) -> None:
    async def story(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        gone.start(node.unprepare)
        await until(lambda: "g" in gone._deleted_since)
        put(fake_api, "gone", "g")
        await look(gone, clock, CONFIRM_S)
        assert not node.released and not gone._deleted_since

    run(fake_api, tmp_path, host, story)


def test_a_claim_whose_device_is_open_is_kept_until_it_is_closed(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    async def story(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        open_in_a_process(host)
        gone.start(node.unprepare)
        await until(lambda: "g" in gone._deleted_since)
        await look(gone, clock, CONFIRM_S)
        assert not node.released
        (host.proc / "4711/fd/3").unlink()
        await look(gone, clock, 60)
        assert node.released == ["g"]

    run(fake_api, tmp_path, host, story)


@pytest.mark.parametrize("pool", [POOL, "former-name/gpu"])
def test_a_holder_in_the_way_is_checked_at_once_and_the_error_names_the_command(
    fake_api: FakeApi, tmp_path: Path, host: Host, pool: str
) -> None:
    class Refusing:
        def prepare(self, claim: dict[str, Any], deadline: Deadline) -> list[Any]:
            raise DeviceHeldError("device gpu-0 of pool node-a/gpu is held by claim default/gone")

        def unprepare(self, uid: str, deadline: Deadline) -> None:
            raise AssertionError

    async def story(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        put(fake_api, "gone", "g")
        gone.start(node.unprepare)
        node.hold("g", "gone", pool=pool)
        wanted = {"driver": "d", "pool": POOL, "device": "gpu-0", "request": "r"}
        claim = {"metadata": {"uid": "new"}, "status": {"allocation": {"devices": {"results": [wanted]}}}}
        fake_api.remove("resourceclaims", "gone", "default")
        with pytest.raises(DeviceHeldError, match="dra-agent claims release g"):
            await asyncio.to_thread(HolderCheckingPreparer(Refusing(), gone).prepare, claim, Deadline.of(60))
        await until(lambda: "g" in gone._deleted_since)

    run(fake_api, tmp_path, host, story)


def test_an_operator_releases_what_is_gone_and_forces_what_is_not(
    fake_api: FakeApi, tmp_path: Path, host: Host
) -> None:
    async def story(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        put(fake_api, "there", "t")
        node.hold("g", "gone")
        node.hold("t", "there", "gpu-1")
        gone.start(node.unprepare)
        with pytest.raises(PermanentError, match="no claim of this name"):
            await gone.release("nothing", force=True)
        with pytest.raises(PermanentError, match="still exists"):
            await gone.release("default/there", force=False)
        open_in_a_process(host)
        with pytest.raises(RetryableError, match="train .process 4711. has /dev/dri/renderD128 open"):
            await gone.release("g", force=False)
        assert not node.released
        done = await gone.release("default/gone", force=True)
        assert (done["uid"], done["devices"], done["exists"]) == ("g", ["gpu-0"], False)
        assert (await gone.release("t", force=True))["exists"] is True
        assert node.released == ["g", "t"]

    run(fake_api, tmp_path, host, story)

"""Prepared claims that have lost their devices: not allocated any more, moved, or allocated other devices here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.kube_client import ApiClient
from dra_agent.prepare.ledger import DeviceHeldError
from dra_agent.prepare.preparer import MayRelease, OtherDevicesError
from dra_agent.status.holder_checks import HolderCheckingPreparer
from dra_agent.status.orphaned_claims import OrphanedClaims, Release
from fake_apiserver.fake import FakeApi
from status.claim_node import (
    CONFIRM_S,
    POOL,
    Clock,
    Node,
    claim,
    gets,
    host_with_a_gpu,
    open_device_in_a_process,
    put,
    run,
    run_due_checks,
    wait_until,
)

POD = "0f0e0d0c-0b0a-4908-8706-050403020100"
LOST: dict[str, tuple[tuple[str, ...], str]] = {
    "deallocated": ((), POOL),
    "on another node": (("gpu-0",), "node-b/gpu"),
    "other devices": (("gpu-1",), POOL),
    "one device more": (("gpu-0", "gpu-1"), POOL),
}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return host_with_a_gpu(tmp_path)


class Prepares:
    """A preparer that prepares every claim, or raises `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> list[Any]:
        if self._error is not None:
            raise self._error
        return []

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        pass


async def prepare(orphaned: OrphanedClaims, claim_: dict[str, Any], error: Exception | None = None) -> None:
    await asyncio.to_thread(HolderCheckingPreparer(Prepares(error), orphaned).prepare, claim_, Deadline.of(60))


async def start(orphaned: OrphanedClaims, release: Release) -> None:
    """Start, without checks but those of the test."""
    orphaned.start(release)
    await orphaned.stop()


async def check(orphaned: OrphanedClaims, clock: Clock, uid: str) -> None:
    orphaned.suspect([uid])
    await asyncio.sleep(0)
    await run_due_checks(orphaned, clock)


async def check_twice(orphaned: OrphanedClaims, clock: Clock, uid: str) -> None:
    await check(orphaned, clock, uid)
    clock.now += CONFIRM_S
    await check(orphaned, clock, uid)


@pytest.mark.parametrize(("devices", "pool"), LOST.values(), ids=list(LOST))
def test_a_claim_without_its_devices_is_released_after_the_second_check(
    fake_api: FakeApi, tmp_path: Path, host: Host, devices: tuple[str, ...], pool: str
) -> None:
    put(fake_api, "lost", "l", *devices, pool=pool, pods=("elsewhere",) if devices else ())
    put(fake_api, "kept", "k", "gpu-2")

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("l", "lost")
        node.hold("k", "kept", "gpu-2")
        await start(orphaned, node.release)
        await check(orphaned, clock, "l")
        await run_due_checks(orphaned, clock, CONFIRM_S / 2)
        assert not node.released
        await run_due_checks(orphaned, clock, CONFIRM_S / 2)
        assert node.released == ["l"]

    node = run(fake_api, tmp_path, host, scenario)
    assert [entry.uid for entry in node.entries()] == ["k"]
    assert any("ClaimGone node-a" in event and "default/lost" in event and "gpu-0" in event for event in node.events)


def test_a_claim_that_was_lost_before_a_restart_is_released(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "lost", "l", "gpu-0", pods=(POD,))
    before = Node()

    async def first_run(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("l", "lost")
        before.entries_by_uid = node.entries_by_uid
        await start(orphaned, node.release)
        await prepare(orphaned, claim("lost", "l", "gpu-0", pods=(POD,)))

    async def second_run(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.entries_by_uid = before.entries_by_uid
        orphaned.start(node.release)
        await wait_until(lambda: "l" in orphaned.suspicions)
        await run_due_checks(orphaned, clock, CONFIRM_S)
        assert node.released == ["l"]

    run(fake_api, tmp_path, host, first_run)
    put(fake_api, "lost", "l")
    run(fake_api, tmp_path, host, second_run)


def test_nothing_is_remembered_of_a_released_claim(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    def remembered(orphaned: OrphanedClaims, uid: str) -> bool:
        return any(uid in value for value in vars(orphaned).values() if isinstance(value, dict))

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        await start(orphaned, node.release)
        await prepare(orphaned, claim("lost", "l", "gpu-0", pods=(POD,)))
        assert remembered(orphaned, "l")
        node.hold("l", "lost")
        open_device_in_a_process(host)
        await check_twice(orphaned, clock, "l")
        assert orphaned.suspicions
        await asyncio.to_thread(HolderCheckingPreparer(Prepares(), orphaned).unprepare, "l", Deadline.of(60))
        node.entries_by_uid.clear()
        await run_due_checks(orphaned, clock, 60)
        assert not remembered(orphaned, "l")

    run(fake_api, tmp_path, host, scenario)


def test_releases_are_retried_at_most_once_a_second(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "lost", "l")
    open_device_in_a_process(host)

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("l", "lost")
        await start(orphaned, node.release)
        await check_twice(orphaned, clock, "l")
        before = gets(fake_api, "lost")
        for _ in range(100):
            await run_due_checks(orphaned, clock, 0.01)
        assert gets(fake_api, "lost") - before <= 1

    run(fake_api, tmp_path, host, scenario, confirm_after_s=0.01)


def test_a_claim_is_kept_while_its_pod_reserves_it(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("l", "lost")
        await start(orphaned, node.release)
        await prepare(orphaned, claim("lost", "l", "gpu-0", pods=(POD,)))
        for devices, pool in LOST.values():
            put(fake_api, "lost", "l", *devices, pool=pool, pods=(POD,))
            await check_twice(orphaned, clock, "l")
            assert not node.released
        put(fake_api, "lost", "l", "gpu-0", pool="node-b/gpu", pods=("another",))
        await check_twice(orphaned, clock, "l")
        assert node.released == ["l"]

    run(fake_api, tmp_path, host, scenario)


def test_a_claim_is_kept_while_its_pod_runs(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    (host.proc / "4711").mkdir()
    (host.proc / "4711/fd").mkdir()
    cgroup = host.proc / "4711/cgroup"
    cgroup.write_text(f"0::/kubepods/burstable/pod{POD}/{'a' * 64}\n")

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("l", "lost")
        await start(orphaned, node.release)
        await prepare(orphaned, claim("lost", "l", "gpu-0", pods=(POD,)))
        put(fake_api, "lost", "l")
        await check_twice(orphaned, clock, "l")
        assert not node.released
        with pytest.raises(RetryableError, match=rf"its pod {POD} still runs .process 4711"):
            await orphaned.release("l", force=False)
        cgroup.write_text("0::/system.slice/sshd.service\n")
        await run_due_checks(orphaned, clock, 60)
        assert node.released == ["l"]

    run(fake_api, tmp_path, host, scenario)


IN_POD = {
    "own cgroup namespace": f"0::/../../kubepods-besteffort-pod{POD.replace('-', '_')}.slice/crio-{'a' * 64}.scope\n",
    "other root": f"0::/other/kubepods/pod{POD}/{'a' * 64}\n",
    "unreadable": None,
}


@pytest.mark.parametrize("cgroup", IN_POD.values(), ids=list(IN_POD))
def test_an_interface_is_kept_after_a_restart_while_its_pod_may_run(
    fake_api: FakeApi, tmp_path: Path, host: Host, cgroup: str | None
) -> None:
    put(fake_api, "lost", "l")
    file = host.proc / "4711/cgroup"
    file.parent.mkdir()
    if cgroup is None:
        file.mkdir()
    else:
        file.write_text(cgroup)

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.pods = (POD,)
        node.hold("l", "lost", "nic-0")
        await start(orphaned, node.release)
        await check_twice(orphaned, clock, "l")
        assert not node.released
        with pytest.raises(RetryableError, match="process 4711"):
            await orphaned.release("l", force=False)
        file.rmdir() if cgroup is None else file.unlink()
        # Of a static pod, whose UID is not a UUID.
        file.write_text(f"0::/kubepods/burstable/pod{'b' * 32}/{'a' * 64}\n")
        await run_due_checks(orphaned, clock, 60)
        assert node.released == ["l"]

    run(fake_api, tmp_path, host, scenario)


@pytest.mark.parametrize("device", ["nic-0", "gone-0"])
@pytest.mark.parametrize("hidden", [True, False], ids=["hidden processes", "earlier record"])
def test_a_device_is_kept_while_nothing_shows_its_use(
    fake_api: FakeApi, tmp_path: Path, host: Host, device: str, hidden: bool
) -> None:
    put(fake_api, "lost", "l")
    put(fake_api, "gpu", "g")

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        if hidden:
            (host.proc / "self/ns").mkdir(parents=True)
            (host.proc / "self/ns/pid").symlink_to("pid:[4026532201]")
        else:
            node.pods = ()
        node.hold("l", "lost", device)
        node.hold("g", "gpu")
        await start(orphaned, node.release)
        await check_twice(orphaned, clock, "l")
        await check_twice(orphaned, clock, "g")
        assert node.released == ([] if hidden else ["g"]), "open device nodes show the use of a GPU"
        with pytest.raises(RetryableError, match="cannot determine if its pods run: "):
            await orphaned.release("l", force=False)

    run(fake_api, tmp_path, host, scenario)


def test_a_lost_claim_with_an_open_device_is_kept(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "lost", "l")
    open_device_in_a_process(host)

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("l", "lost")
        await start(orphaned, node.release)
        await check_twice(orphaned, clock, "l")
        assert not node.released
        (host.proc / "4711/fd/3").unlink()
        await run_due_checks(orphaned, clock, 60)
        assert node.released == ["l"]

    run(fake_api, tmp_path, host, scenario)


@pytest.mark.parametrize("status", [403, 500, 503])
def test_a_lost_claim_is_kept_while_the_api_server_cannot_be_asked(
    fake_api: FakeApi, tmp_path: Path, host: Host, status: int
) -> None:
    put(fake_api, "lost", "l")

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("l", "lost")
        await start(orphaned, node.release)
        await check(orphaned, clock, "l")
        fake_api.fail(status, times=None)
        await run_due_checks(orphaned, clock, CONFIRM_S)
        with pytest.raises(RetryableError, match="cannot be compared with the API server"):
            await orphaned.release("l", force=False)
        assert not node.released
        fake_api.faults.clear()
        await run_due_checks(orphaned, clock, 60)
        assert node.released == ["l"]

    run(fake_api, tmp_path, host, scenario)


def test_a_claim_that_gets_its_devices_back_before_the_release_is_kept(
    fake_api: FakeApi, tmp_path: Path, host: Host
) -> None:
    put(fake_api, "lost", "l")

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        def release(uid: str, deadline: Deadline, may_release: MayRelease) -> None:
            put(fake_api, "lost", "l", "gpu-0", pods=(POD,))  # and the kubelet may have prepared it, with no change
            node.release(uid, deadline, may_release)

        node.hold("l", "lost")
        await start(orphaned, release)
        await check_twice(orphaned, clock, "l")
        await run_due_checks(orphaned, clock, CONFIRM_S)
        assert not node.released and not orphaned.suspicions

    run(fake_api, tmp_path, host, scenario)


def test_only_the_entry_that_was_checked_is_released(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "lost", "l", "gpu-2")

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        def release(uid: str, deadline: Deadline, may_release: MayRelease) -> None:
            node.hold("l", "lost", "gpu-1")
            node.release(uid, deadline, may_release)

        node.hold("l", "lost")
        await start(orphaned, release)
        await check_twice(orphaned, clock, "l")
        with pytest.raises(RetryableError, match="has changed since it was checked"):
            node.hold("l", "lost")
            await orphaned.release("l", force=True)
        assert not node.released
        assert node.entries_by_uid["l"].devices[0].device == "gpu-1"

    run(fake_api, tmp_path, host, scenario)


def test_a_prepare_between_the_checks_restarts_them(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "lost", "l")

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("l", "lost")
        await start(orphaned, node.release)
        await check(orphaned, clock, "l")
        await prepare(orphaned, claim("lost", "l", "gpu-0"))
        await run_due_checks(orphaned, clock, CONFIRM_S)
        assert not node.released
        await run_due_checks(orphaned, clock, CONFIRM_S)
        assert node.released == ["l"]

    run(fake_api, tmp_path, host, scenario)


def test_a_refused_prepare_has_the_holder_checked(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "holder", "h", "gpu-0")
    put(fake_api, "again", "a", "gpu-1")

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        await start(orphaned, node.release)
        node.hold("h", "holder")
        put(fake_api, "holder", "h", "gpu-0", pool="node-b/gpu")
        with pytest.raises(DeviceHeldError, match="dra-agent claim release h"):
            await prepare(orphaned, claim("next", "n", "gpu-0"), DeviceHeldError("device gpu-0 is held"))
        await run_due_checks(orphaned, clock)
        assert set(orphaned.suspicions) == {"h"}
        node.hold("a", "again", "gpu-3")
        with pytest.raises(OtherDevicesError, match="dra-agent claim release a"):
            await prepare(orphaned, claim("again", "a", "gpu-1"), OtherDevicesError("is prepared with gpu-3"))
        await run_due_checks(orphaned, clock)
        assert set(orphaned.suspicions) == {"h", "a"}

    run(fake_api, tmp_path, host, scenario)


def test_an_operator_releases_a_lost_claim_without_force(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "lost", "l", "gpu-0", pool="node-b/gpu")
    put(fake_api, "kept", "k", "gpu-1")

    async def scenario(orphaned: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("l", "lost")
        node.hold("k", "kept", "gpu-1")
        await start(orphaned, node.release)
        assert (await orphaned.release("default/lost", force=False))["exists"] is True
        with pytest.raises(PermanentError, match="still exists"):
            await orphaned.release("default/kept", force=False)
        assert node.released == ["l"]

    run(fake_api, tmp_path, host, scenario)

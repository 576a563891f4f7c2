"""Prepared claims whose ResourceClaim is gone are released after two checks, and for no other reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.kube_client import ApiClient
from dra_agent.prepare.ledger import DeviceHeldError
from dra_agent.status.holder_checks import HolderCheckingPreparer
from dra_agent.status.orphaned_claims import OrphanedClaims
from fake_apiserver.fake import FakeApi
from status.claim_node import (
    CONFIRM_S,
    POOL,
    Clock,
    Node,
    OneGpu,
    gets,
    host_with_a_gpu,
    open_device_in_a_process,
    put,
    run,
    run_due_checks,
    wait_until,
)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return host_with_a_gpu(tmp_path)


def test_a_deleted_claim_is_released_after_the_second_check(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    put(fake_api, "there", "t", "gpu-1")
    put(fake_api, "anew", "second")

    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        node.hold("t", "there", "gpu-1")
        node.hold("first", "anew", "gpu-2")
        gone.start(node.release)
        await wait_until(lambda: {"g", "first"} <= gone.suspicions.keys() and gets(fake_api, "there") > 0)
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
        gone.start(node.release)
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
        gone.start(node.release)
        await wait_until(lambda: "g" in gone.suspicions)
        put(fake_api, "gone", "g", "gpu-0")
        await run_due_checks(gone, clock, CONFIRM_S)
        assert not node.released and not gone.suspicions

    run(fake_api, tmp_path, host, scenario)


def test_a_claim_with_an_open_device_is_kept_until_it_is_closed(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        open_device_in_a_process(host)
        gone.start(node.release)
        await wait_until(lambda: "g" in gone.suspicions)
        await run_due_checks(gone, clock, CONFIRM_S)
        assert not node.released
        (host.proc / "4711/fd/3").unlink()
        await run_due_checks(gone, clock, 60)
        assert node.released == ["g"]

    run(fake_api, tmp_path, host, scenario)


def test_a_claim_is_released_after_processes_could_not_be_listed(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone")
        gone.start(node.release)
        await wait_until(lambda: "g" in gone.suspicions)
        hidden = host.proc.rename(tmp_path / "hidden")
        await run_due_checks(gone, clock, CONFIRM_S)
        with pytest.raises(RetryableError, match="cannot determine what uses devices: No such file"):
            await gone.release("g", force=False)
        assert not node.released
        hidden.rename(host.proc)
        await run_due_checks(gone, clock, 60)
        assert node.released == ["g"]

    run(fake_api, tmp_path, host, scenario)


def test_a_defect_for_one_claim_delays_only_its_release(
    fake_api: FakeApi, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [KeyError("defect")]

    def lookup(devices: OneGpu, pool: str, name: str) -> Device | None:
        if name == "gpu-1" and failures:
            raise failures.pop()
        return None

    monkeypatch.setattr(OneGpu, "lookup", lookup)

    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        node.hold("g", "gone", "gpu-1")
        node.hold("h", "gone-too", "gpu-2")
        gone.start(node.release)
        await wait_until(lambda: len(gone.suspicions) == 2)
        await run_due_checks(gone, clock, CONFIRM_S)
        assert node.released == ["h"]
        gone.suspect(["g"])
        await asyncio.sleep(0)
        await run_due_checks(gone, clock, 60)
        assert node.released == ["h", "g"]

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
        gone.start(node.release)
        node.hold("g", "gone", pool=pool)
        result = {"driver": "d", "pool": POOL, "device": "gpu-0", "request": "r"}
        claim = {"metadata": {"uid": "new"}, "status": {"allocation": {"devices": {"results": [result]}}}}
        fake_api.remove("resourceclaims", "gone", "default")
        with pytest.raises(DeviceHeldError, match="dra-agent claim release g"):
            await asyncio.to_thread(HolderCheckingPreparer(HeldDevicePreparer(), gone).prepare, claim, Deadline.of(60))
        await wait_until(lambda: "g" in gone.suspicions)

    run(fake_api, tmp_path, host, scenario)


def test_the_release_command_needs_force_for_an_existing_claim(fake_api: FakeApi, tmp_path: Path, host: Host) -> None:
    async def scenario(gone: OrphanedClaims, node: Node, clock: Clock, api: ApiClient) -> None:
        put(fake_api, "there", "t", "gpu-1")
        node.hold("g", "gone")
        node.hold("t", "there", "gpu-1")
        gone.start(node.release)
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

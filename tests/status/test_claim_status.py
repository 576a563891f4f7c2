"""`status.devices` of prepared claims: contents, times of writes, entries of other drivers, and failed writes."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any

import pytest

from dra_agent.inventory.model import Device
from dra_agent.kube_client import ApiClient
from dra_agent.status import ClaimStatusWriter, Condition, PreparedClaim
from dra_agent.status.device_status import DeviceKey
from dra_agent.supervisor import supervisor
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi
from status.conftest import DRIVER, POOL, Host, claim, result


def held(name: str, *devices: str, uid: str | None = None) -> PreparedClaim:
    return PreparedClaim(uid or f"uid-{name}", "team-a", name, tuple(DeviceKey(POOL, device) for device in devices))


@asynccontextmanager
async def status_writer(
    api: ApiClient, host: Host, *claims: PreparedClaim, **more: Any
) -> AsyncIterator[ClaimStatusWriter]:
    status = ClaimStatusWriter(api, DRIVER, host, debounce_s=0.0, **more)
    status.start(claims)
    try:
        yield status
    finally:
        await status.stop()


def entries(api: FakeApi, name: str) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = api.store.get("resourceclaims", "team-a", name)["status"].get("devices", [])
    return devices


def writes(api: FakeApi) -> list[Any]:
    return [request for request in api.requests if request.write]


def test_status_of_a_prepared_claim_describes_its_devices(fake_api: FakeApi, run_with_client: Any, host: Host) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0"), result("gpu-1", shareID="share-1")))

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host) as status:
            status.prepared(
                PreparedClaim("uid-a", "team-a", "a", (DeviceKey(POOL, "gpu-0"), DeviceKey(POOL, "gpu-1", "share-1")))
            )
            await eventually_async(lambda: entries(fake_api, "a"))

    run_with_client(scenario)
    first, second = entries(fake_api, "a")
    transition_time = first["conditions"][0].pop("lastTransitionTime")
    assert time.strptime(transition_time, "%Y-%m-%dT%H:%M:%SZ")
    assert first == {
        "driver": DRIVER,
        "pool": POOL,
        "device": "gpu-0",
        "conditions": [{"type": "Ready", "status": "True", "reason": "Healthy", "message": ""}],
        "data": {
            "pciAddress": "0000:00:00.0",
            "vendor": "nvidia",
            "uuid": "GPU-0",
            "productName": "NVIDIA H100 80GB HBM3",
            "numaNode": 1,
        },
    }
    assert second["device"] == "gpu-1" and second["shareID"] == "share-1"
    (write,) = writes(fake_api)
    assert write.method == "PATCH" and write.path.endswith("/namespaces/team-a/resourceclaims/a/status")
    assert write.query["fieldManager"] == DRIVER
    assert set(write.body["status"]) == {"devices"}, "the agent must not write allocation and reservedFor"


def test_status_of_a_nic_has_its_interface_and_addresses(fake_api: FakeApi, run_with_client: Any, host: Host) -> None:
    fake_api.put("resourceclaims", claim("a", result("nic-0", pool="node-1/nic")))
    requested = []

    def addresses(interface: str, hardware_address: str) -> list[str]:
        requested.append((interface, hardware_address))
        return ["192.0.2.5/24", "2001:db8::5/64", "192.0.2.5/24"]

    async def scenario(api: ApiClient) -> None:
        prepared_claim = PreparedClaim("uid-a", "team-a", "a", (DeviceKey("node-1/nic", "nic-0"),))
        async with status_writer(api, host, prepared_claim, addresses=addresses):
            await eventually_async(lambda: entries(fake_api, "a"))

    run_with_client(scenario)
    assert requested == [("eth2", "b8:ce:f6:00:00:01")]
    assert entries(fake_api, "a")[0]["networkData"] == {
        "interfaceName": "eth2",
        "hardwareAddress": "b8:ce:f6:00:00:01",
        "ips": ["192.0.2.5/24", "2001:db8::5/64"],
    }


def test_entries_of_other_drivers_are_never_changed(fake_api: FakeApi, run_with_client: Any, host: Host) -> None:
    claim_ = claim("a", result("gpu-0"), result("other-0", driver="other.example.com", pool="p"))
    foreign_entry = {
        "driver": "other.example.com",
        "pool": "p",
        "device": "other-0",
        "data": {"secret": 1},
        "conditions": [],
    }
    claim_["status"]["devices"] = [foreign_entry]
    fake_api.put("resourceclaims", claim_)

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host, held("a", "gpu-0")) as status:
            await eventually_async(lambda: len(entries(fake_api, "a")) == 2)
            host.change("gpu-0", health="unhealthy", health_reason="XID 79")
            status.changed()
            await eventually_async(lambda: entries(fake_api, "a")[1]["conditions"][0]["status"] == "False")

    run_with_client(scenario)
    assert entries(fake_api, "a")[0] == foreign_entry
    assert all(
        {device["driver"] for device in write.body["status"]["devices"]} == {DRIVER} for write in writes(fake_api)
    )


def test_an_unchanged_status_is_not_written_after_a_restart(
    fake_api: FakeApi, run_with_client: Any, host: Host
) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))

    def requests(name: str) -> list[bool]:
        """Return whether each request for a claim is a write."""
        return [request.write for request in fake_api.requests if f"/resourceclaims/{name}" in request.path]

    async def run_writer(api: ApiClient) -> None:
        before = len(requests("next"))
        async with status_writer(api, host, held("a", "gpu-0"), held("next", "gpu-0")) as status:
            # Claims are written in turn, and this one does not exist.
            await eventually_async(lambda: len(requests("next")) > before and not status.waiting)

    run_with_client(run_writer)
    before = fake_api.store.get("resourceclaims", "team-a", "a")
    assert requests("a") == [False, True] and entries(fake_api, "a")
    run_with_client(run_writer)
    assert fake_api.store.get("resourceclaims", "team-a", "a") == before
    assert requests("a") == [False, True, False], "one read, and no write"


class FakeDatetime:
    """A replacement for `datetime` whose time advances only when the test sets it."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, 20, tzinfo=UTC)

    def now(self, _: tzinfo) -> datetime:
        return self.time


def test_a_health_change_updates_the_condition_and_its_time(
    fake_api: FakeApi, run_with_client: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeDatetime()
    monkeypatch.setattr("dra_agent.status.claim_status.datetime", clock)
    fake_api.put("resourceclaims", claim("a", result("gpu-0"), result("gpu-1")))

    def is_ready(ready: str) -> bool:
        devices = entries(fake_api, "a")
        return bool(devices) and devices[0]["conditions"][0]["status"] == ready

    async def scenario(api: ApiClient) -> list[Any]:
        conditions = []
        async with status_writer(api, host, held("a", "gpu-0", "gpu-1")) as status:
            for health in ("healthy", "unhealthy", "healthy"):
                host.change("gpu-0", health=health, health_reason="XID 79" if health == "unhealthy" else None)
                status.changed()
                expected = "False" if health == "unhealthy" else "True"
                await eventually_async(partial(is_ready, expected))
                conditions.append([device["conditions"][0] for device in entries(fake_api, "a")])
                clock.time += timedelta(seconds=1)
            del host.devices["gpu-1"]
            status.changed()
            await eventually_async(lambda: entries(fake_api, "a")[1]["conditions"][0]["reason"] == "DeviceGone")
        return conditions

    before, during, after = run_with_client(scenario)
    assert (during[0]["reason"], during[0]["message"]) == ("Unhealthy", "XID 79")
    times = [conditions[0]["lastTransitionTime"] for conditions in (before, during, after)]
    assert times == sorted(set(times)), "each transition has its own time"
    assert before[1] == during[1] == after[1], "the condition of the other device and its time do not change"


@pytest.mark.parametrize("health", ["unhealthy", "healthy"])
def test_a_health_change_during_a_write_is_written_too(
    fake_api: FakeApi, run_with_client: Any, host: Host, health: str
) -> None:
    """Covers the first write of a claim, and a device that recovers while its failure is written."""
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host) as status:
            if health == "healthy":
                status.prepared(held("a", "gpu-0"))
                await eventually_async(lambda: status.written)
                host.change("gpu-0", health="unhealthy", health_reason="XID 79")
            may_answer, before = threading.Event(), len(writes(fake_api))
            fake_api.hang(DEADLINE_S, methods="PATCH", when=may_answer)
            status.prepared(held("a", "gpu-0"))
            status.changed()
            await eventually_async(lambda: len(writes(fake_api)) > before)
            host.change("gpu-0", health=health, health_reason="XID 79" if health == "unhealthy" else None)
            status.changed()
            await asyncio.sleep(0)
            may_answer.set()
            await eventually_async(
                lambda: (
                    len(writes(fake_api)) == before + 2
                    and entries(fake_api, "a")[0]["conditions"][0]["reason"] == health.capitalize()
                )
            )

    run_with_client(scenario)


@pytest.mark.parametrize("case", ["gone", "replaced", "deallocated", "given another device"])
def test_a_claim_that_is_no_longer_held_is_not_written(
    fake_api: FakeApi, run_with_client: Any, host: Host, case: str
) -> None:
    objects = {
        "replaced": claim("a", result("gpu-0"), uid="another"),
        "deallocated": claim("a"),
        "given another device": claim("a", result("gpu-1")),
    }
    if case in objects:
        fake_api.put("resourceclaims", objects[case])

    fake_api.put("resourceclaims", claim("next", result("gpu-0")))

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host, held("a", "gpu-0")) as status:
            await eventually_async(lambda: fake_api.requests)
            status.prepared(held("next", "gpu-0"))
            await eventually_async(lambda: entries(fake_api, "next"))
            assert status.waiting == 0, "no further request is due"

    run_with_client(scenario)
    assert [request.write for request in fake_api.requests if "/resourceclaims/a" in request.path] == [False]


def test_claims_released_before_their_turn_cause_no_requests(
    fake_api: FakeApi, run_with_client: Any, host: Host
) -> None:
    fake_api.put("resourceclaims", claim("last", result("gpu-0")))

    async def scenario(api: ApiClient) -> None:
        status = ClaimStatusWriter(api, DRIVER, host, debounce_s=0.2)
        status.start()
        for number in range(100):
            status.prepared(held(f"c{number}", "gpu-0"))
            status.released(f"uid-c{number}")
        status.prepared(held("last", "gpu-0"))
        await eventually_async(lambda: entries(fake_api, "last"))
        assert status.waiting == 0
        await status.stop()

    run_with_client(scenario)
    assert not [request for request in fake_api.requests if "/resourceclaims/last" not in request.path]


def test_failing_requests_are_retried(fake_api: FakeApi, run_with_client: Any, host: Host) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))
    fake_api.put("resourceclaims", claim("b", result("gpu-1")))
    fake_api.fail(503, methods="PATCH")
    fake_api.html(methods="GET")
    fake_api.reset(methods="PATCH")
    fake_api.fail(429, methods="PATCH", retry_after=1)

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host, held("a", "gpu-0"), held("b", "gpu-1")):
            await eventually_async(lambda: entries(fake_api, "a") and entries(fake_api, "b"))

    run_with_client(scenario)
    assert fake_api.faults.pending == 0


DRIVER_FORBIDDEN = (
    'ResourceClaim.resource.k8s.io "a" is invalid: status.driver: Forbidden: changing status.devices requires '
    'resource="resourceclaims/driver", verb="[associated-node:patch arbitrary-node:patch]" permission: no'
)


def refusal_body(message: str) -> str:
    causes = [{"reason": "FieldValueForbidden", "field": "status.driver"}] if message == DRIVER_FORBIDDEN else []
    return json.dumps({"kind": "Status", "message": message, "details": {"name": "a", "causes": causes}})


@pytest.mark.parametrize(("code", "message"), [(403, "no"), (422, DRIVER_FORBIDDEN)])
def test_a_missing_permission_is_logged_once_and_retried_slowly(
    fake_api: FakeApi, run_with_client: Any, host: Host, caplog: pytest.LogCaptureFixture, code: int, message: str
) -> None:
    for name in ("a", "b"):
        fake_api.put("resourceclaims", claim(name, result("gpu-0")))
    refusal = fake_api.fail(code, methods="PATCH", times=None, body=refusal_body(message))

    async def scenario(api: ApiClient) -> None:
        retry_after_s = 0.5
        start = time.monotonic()
        async with status_writer(
            api, host, held("a", "gpu-0"), held("b", "gpu-0"), retry_after_s=retry_after_s
        ) as status:
            await eventually_async(lambda: status.problem)
            await eventually_async(lambda: len(writes(fake_api)) >= 3)
            attempts = len(writes(fake_api))
            assert attempts <= 1 + (time.monotonic() - start) / (retry_after_s / 2), "half of the delay is random"
            await eventually_async(lambda: len(writes(fake_api)) > attempts)
            fake_api.faults.lift(refusal)
            await eventually_async(lambda: entries(fake_api, "a") and entries(fake_api, "b") and not status.problem)

    with caplog.at_level(logging.INFO, "dra_agent.status"):
        run_with_client(scenario)
    warnings = [record for record in caplog.records if record.message == "claim status is not written"]
    assert len(warnings) == 1
    grant = vars(warnings[0])["grant"]
    assert "resourceclaims/status" in grant and "associated-node:patch" in grant
    assert "a permission that was missing is granted" in caplog.text


@pytest.mark.parametrize(("code", "message"), [(403, "no"), (422, DRIVER_FORBIDDEN)])
def test_a_temporary_refusal_does_not_delay_claims(
    fake_api: FakeApi, run_with_client: Any, host: Host, code: int, message: str
) -> None:
    """A claim that is released between read and write is refused like a missing permission."""
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))
    fake_api.put("resourceclaims", claim("b", result("gpu-1")))
    fake_api.fail(code, methods="PATCH", times=1, body=refusal_body(message))

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host, held("a", "gpu-0"), held("b", "gpu-1")) as status:
            await eventually_async(lambda: entries(fake_api, "a") and entries(fake_api, "b"))
            await eventually_async(lambda: not status.problem)

    run_with_client(scenario)


GATE = "DRAResourceClaimDeviceStatus"


def test_an_api_server_that_drops_the_field_is_reported(
    fake_api: FakeApi, run_with_client: Any, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "next"):
        fake_api.put("resourceclaims", claim(name, result("gpu-0")))
    fake_api.drop_fields(lambda plural, written: written.get("status", {}).pop("devices", None))

    def reports() -> int:
        return sum(GATE in getattr(record, "reason", "") for record in caplog.records)

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host, held("a", "gpu-0")) as status:
            await eventually_async(lambda: reports() == 1)
            status.prepared(held("next", "gpu-0"))
            await eventually_async(lambda: reports() == 2)
            assert status.waiting == 0, "no further write is due"

    with caplog.at_level(logging.WARNING, "dra_agent.status"):
        run_with_client(scenario)
    assert len(writes(fake_api)) == 2, "one of each claim"


def test_an_error_with_one_claim_does_not_stop_the_writer(
    fake_api: FakeApi, run_with_client: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))
    fake_api.put("resourceclaims", claim("b", result("gpu-1")))

    def judge(device: Device | None) -> Condition:
        if device is not None and device.name == "gpu-0":
            raise KeyError(device.name)
        return Condition("True", "Healthy")

    monkeypatch.setattr("dra_agent.status.claim_status.device_condition", judge)

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host, held("a", "gpu-0"), held("b", "gpu-1")):
            await eventually_async(lambda: entries(fake_api, "b"))

    run_with_client(scenario)
    assert entries(fake_api, "a") == []


def test_the_queue_of_claims_is_bounded(
    fake_api: FakeApi, run_with_client: Any, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(api: ApiClient) -> int:
        status = ClaimStatusWriter(api, DRIVER, host, debounce_s=60.0)
        status.start(held(f"c{number}", "gpu-0") for number in range(3000))
        waiting = status.waiting
        await status.stop()
        return waiting

    assert run_with_client(scenario) == 1024
    assert caplog.text.count("claim status is not written for every claim") == 1


def test_the_event_loop_is_woken_only_for_claims_with_something_to_write(
    fake_api: FakeApi, run_with_client: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_api.put("resourceclaims", claim("nic", result("nic-0", pool="node-a/nic")))
    nic = PreparedClaim("uid-nic", "team-a", "nic", (DeviceKey("node-a/nic", "nic-0"),))

    async def scenario(api: ApiClient) -> None:
        loop, wakes = asyncio.get_running_loop(), list[str]()
        wake = loop.call_soon_threadsafe

        def counted(callback: Any, *arguments: Any, **context: Any) -> Any:
            wakes.append(callback.__name__)
            return wake(callback, *arguments, **context)

        async with status_writer(api, host, families=frozenset({"nic"})) as status:
            monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
            for _ in range(2):
                status.prepared(held("gpu-only", "gpu-0"))
            status.released("uid-gpu-only")
            assert wakes == []
            status.prepared(nic)
            assert len(wakes) == 1
            await eventually_async(lambda: status.written == 1 and not status.waiting)
            del wakes[:]
            status.prepared(nic)
            assert wakes == [], "it is written"
            status.released("uid-nic")
            status.released("uid-nic")
            assert len(wakes) == 1
            status.prepared(nic)
            status.released("uid-nic")
            assert len(wakes) == 3, "in the order of the calls, also before the loop runs"
            await asyncio.sleep(0)
            assert status.waiting == 0
            monkeypatch.undo()

    run_with_client(scenario)


def test_a_claim_replaced_between_read_and_write_is_not_written(
    fake_api: FakeApi, run_with_client: Any, host: Host
) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))
    replaced = threading.Event()
    fake_api.hang(60, methods="PATCH", when=replaced)
    replacement = claim("a", result("gpu-0"))
    replacement["metadata"]["uid"] = "another"

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host) as status:
            status.prepared(held("a", "gpu-0"))
            await eventually_async(lambda: any(request.method == "PATCH" for request in writes(fake_api)))
            fake_api.remove("resourceclaims", "a", "team-a")
            fake_api.put("resourceclaims", replacement)
            replaced.set()
            await eventually_async(lambda: status.failed or status.written)
            assert status.written == 0

    run_with_client(scenario)
    assert entries(fake_api, "a") == []


def test_only_claims_with_selected_families_cause_requests(fake_api: FakeApi, run_with_client: Any, host: Host) -> None:
    for name in ("gpu-only", "both"):
        fake_api.put("resourceclaims", claim(name, result("gpu-0"), result("nic-0", pool="node-a/nic")))
    fake_api.requests.clear()

    async def scenario(api: ApiClient) -> None:
        async with status_writer(api, host, families=frozenset({"nic"})) as status:
            status.prepared(held("gpu-only", "gpu-0"))
            keys = (DeviceKey(POOL, "gpu-0"), DeviceKey("node-a/nic", "nic-0"))
            status.prepared(PreparedClaim("uid-both", "team-a", "both", keys))
            await eventually_async(lambda: entries(fake_api, "both"))

    run_with_client(scenario)
    assert [entry["device"] for entry in entries(fake_api, "both")] == ["nic-0"]
    assert not [request for request in fake_api.requests if "gpu-only" in request.path]


def test_the_writer_survives_a_claim_that_is_released_before_it_runs(
    fake_api: FakeApi, run_with_client: Any, host: Host
) -> None:
    fake_api.put("resourceclaims", claim("last", result("gpu-0")))

    async def scenario(api: ApiClient) -> None:
        status = ClaimStatusWriter(api, DRIVER, host, debounce_s=0.0)
        status.start()
        await asyncio.sleep(0)  # it waits for a claim
        status.prepared(held("gone", "gpu-0"))
        status.released("uid-gone")
        await asyncio.sleep(0)
        failures = supervisor().failures["claim status"]
        status.prepared(held("last", "gpu-0"))
        await eventually_async(lambda: entries(fake_api, "last"))
        assert supervisor().failures["claim status"] == failures
        await status.stop()

    run_with_client(scenario)

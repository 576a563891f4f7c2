"""`status.devices` of held claims: what is written, when, what is left alone, and what happens when it cannot be."""

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

from dra_agent.kube_client import ApiClient
from dra_agent.status import ClaimStatusWriter, Condition, PreparedClaim
from dra_agent.status.device_status import DeviceKey
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi
from status.conftest import DRIVER, POOL, Host, claim, result


def held(name: str, *devices: str, uid: str | None = None) -> PreparedClaim:
    return PreparedClaim(uid or f"uid-{name}", "team-a", name, tuple(DeviceKey(POOL, device) for device in devices))


@asynccontextmanager
async def telling(api: ApiClient, host: Host, *claims: PreparedClaim, **more: Any) -> AsyncIterator[ClaimStatusWriter]:
    status = ClaimStatusWriter(api, DRIVER, host.lookup, debounce_s=0.0, **more)
    status.start(claims)
    try:
        yield status
    finally:
        await status.stop()


def entries(api: FakeApi, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.store.get("resourceclaims", "team-a", name)["status"].get("devices", [])
    return found


def writes(api: FakeApi) -> list[Any]:
    return [seen for seen in api.requests if seen.write]


def test_a_prepared_claim_says_what_its_devices_are(fake_api: FakeApi, ask: Any, host: Host) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0"), result("gpu-1", shareID="share-1")))

    async def story(api: ApiClient) -> None:
        async with telling(api, host) as status:
            status.prepared(
                PreparedClaim("uid-a", "team-a", "a", (DeviceKey(POOL, "gpu-0"), DeviceKey(POOL, "gpu-1", "share-1")))
            )
            await eventually_async(lambda: entries(fake_api, "a"))

    ask(story)
    first, second = entries(fake_api, "a")
    changed = first["conditions"][0].pop("lastTransitionTime")
    assert time.strptime(changed, "%Y-%m-%dT%H:%M:%SZ")
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
    assert set(write.body["status"]) == {"devices"}, "allocation and reservedFor are not the agent's to write"


def test_a_nic_says_its_interface_and_addresses(fake_api: FakeApi, ask: Any, host: Host) -> None:
    fake_api.put("resourceclaims", claim("a", result("nic-0", pool="node-1/nic")))
    asked = []

    def addresses(interface: str, hardware_address: str) -> list[str]:
        asked.append((interface, hardware_address))
        return ["192.0.2.5/24", "2001:db8::5/64", "192.0.2.5/24"]

    async def story(api: ApiClient) -> None:
        one = PreparedClaim("uid-a", "team-a", "a", (DeviceKey("node-1/nic", "nic-0"),))
        async with telling(api, host, one, addresses=addresses):
            await eventually_async(lambda: entries(fake_api, "a"))

    ask(story)
    assert asked == [("eth2", "b8:ce:f6:00:00:01")]
    assert entries(fake_api, "a")[0]["networkData"] == {
        "interfaceName": "eth2",
        "hardwareAddress": "b8:ce:f6:00:00:01",
        "ips": ["192.0.2.5/24", "2001:db8::5/64"],
    }


def test_entries_of_others_are_never_touched(fake_api: FakeApi, ask: Any, host: Host) -> None:
    made = claim("a", result("gpu-0"), result("other-0", driver="other.example.com", pool="p"))
    theirs = {"driver": "other.example.com", "pool": "p", "device": "other-0", "data": {"secret": 1}, "conditions": []}
    made["status"]["devices"] = [theirs]
    fake_api.put("resourceclaims", made)

    async def story(api: ApiClient) -> None:
        async with telling(api, host, held("a", "gpu-0")) as status:
            await eventually_async(lambda: len(entries(fake_api, "a")) == 2)
            host.change("gpu-0", health="unhealthy", health_reason="XID 79")
            status.changed()
            await eventually_async(lambda: entries(fake_api, "a")[1]["conditions"][0]["status"] == "False")

    ask(story)
    assert entries(fake_api, "a")[0] == theirs
    assert all(
        {device["driver"] for device in write.body["status"]["devices"]} == {DRIVER} for write in writes(fake_api)
    )


def test_what_is_said_already_is_not_written_again_after_a_restart(fake_api: FakeApi, ask: Any, host: Host) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))

    async def told(api: ApiClient) -> None:
        before = len(fake_api.requests)
        async with telling(api, host, held("a", "gpu-0")) as status:
            await eventually_async(
                lambda: entries(fake_api, "a") and not status.waiting and len(fake_api.requests) > before
            )
            await asyncio.sleep(0.05)

    ask(told)
    before = fake_api.store.get("resourceclaims", "team-a", "a")
    asked = len(fake_api.requests)
    ask(told)
    assert fake_api.store.get("resourceclaims", "team-a", "a") == before
    assert len(writes(fake_api)) == 1 and len(fake_api.requests) == asked + 1, "it is read, and that is all"


class Wall:
    """The wall clock, in place of `datetime`; it stands still until it is told to go on."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, 20, tzinfo=UTC)

    def now(self, _: tzinfo) -> datetime:
        return self.time


def test_health_changes_the_condition_and_its_time(
    fake_api: FakeApi, ask: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Wall()
    monkeypatch.setattr("dra_agent.status.claim_status.datetime", wall)
    fake_api.put("resourceclaims", claim("a", result("gpu-0"), result("gpu-1")))

    def is_told(ready: str) -> bool:
        found = entries(fake_api, "a")
        return bool(found) and found[0]["conditions"][0]["status"] == ready

    async def story(api: ApiClient) -> list[Any]:
        seen = []
        async with telling(api, host, held("a", "gpu-0", "gpu-1")) as status:
            for health in ("healthy", "unhealthy", "healthy"):
                host.change("gpu-0", health=health, health_reason="XID 79" if health == "unhealthy" else None)
                status.changed()
                wanted = "False" if health == "unhealthy" else "True"
                await eventually_async(partial(is_told, wanted))
                seen.append([one["conditions"][0] for one in entries(fake_api, "a")])
                wall.time += timedelta(seconds=1)
            del host.devices["gpu-1"]
            status.changed()
            await eventually_async(lambda: entries(fake_api, "a")[1]["conditions"][0]["reason"] == "DeviceGone")
        return seen

    before, during, after = ask(story)
    assert (during[0]["reason"], during[0]["message"]) == ("Unhealthy", "XID 79")
    times = [round_[0]["lastTransitionTime"] for round_ in (before, during, after)]
    assert times == sorted(set(times)), "each transition has a time of its own"
    assert before[1] == during[1] == after[1], "the other device did not change, nor its time"


@pytest.mark.parametrize("health", ["unhealthy", "healthy"])
def test_health_that_changes_while_it_is_written_is_written_too(
    fake_api: FakeApi, ask: Any, host: Host, health: str
) -> None:
    """The first time that a claim is told of, and when a device recovers while its failure is written."""
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))

    async def story(api: ApiClient) -> None:
        async with telling(api, host) as status:
            if health == "healthy":
                status.prepared(held("a", "gpu-0"))
                await eventually_async(lambda: status.written)
                host.change("gpu-0", health="unhealthy", health_reason="XID 79")
            answers, before = threading.Event(), len(writes(fake_api))
            fake_api.hang(DEADLINE_S, methods="PATCH", when=answers)
            status.prepared(held("a", "gpu-0"))
            status.changed()
            await eventually_async(lambda: len(writes(fake_api)) > before)
            host.change("gpu-0", health=health, health_reason="XID 79" if health == "unhealthy" else None)
            status.changed()
            await asyncio.sleep(0)
            answers.set()
            await eventually_async(
                lambda: (
                    len(writes(fake_api)) == before + 2
                    and entries(fake_api, "a")[0]["conditions"][0]["reason"] == health.capitalize()
                )
            )

    ask(story)


def test_a_judge_can_say_more_than_the_inventory(fake_api: FakeApi, ask: Any, host: Host) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))

    async def story(api: ApiClient) -> None:
        def judge(pool: str, name: str, device: Any) -> Condition:
            return Condition("Unknown", "VendorLibraryHangs", f"{pool}/{name}")

        async with telling(api, host, held("a", "gpu-0"), condition_of=judge):
            await eventually_async(lambda: entries(fake_api, "a"))

    ask(story)
    assert entries(fake_api, "a")[0]["conditions"][0]["reason"] == "VendorLibraryHangs"


@pytest.mark.parametrize("case", ["gone", "replaced", "deallocated", "given another device"])
def test_a_claim_that_is_not_held_any_more_is_let_be(fake_api: FakeApi, ask: Any, host: Host, case: str) -> None:
    others = {
        "replaced": claim("a", result("gpu-0"), uid="another"),
        "deallocated": claim("a"),
        "given another device": claim("a", result("gpu-1")),
    }
    if case in others:
        fake_api.put("resourceclaims", others[case])

    async def story(api: ApiClient) -> int:
        async with telling(api, host, held("a", "gpu-0")) as status:
            await eventually_async(lambda: fake_api.requests)
            await eventually_async(lambda: not status.waiting)
            await asyncio.sleep(0.2)
            return len(fake_api.requests)

    assert ask(story) == 1 and writes(fake_api) == []


def test_what_is_released_before_its_turn_costs_nothing(fake_api: FakeApi, ask: Any, host: Host) -> None:
    async def story(api: ApiClient) -> None:
        status = ClaimStatusWriter(api, DRIVER, host.lookup, debounce_s=0.2)
        status.start()
        for number in range(100):
            status.prepared(held(f"c{number}", "gpu-0"))
            status.released(f"uid-c{number}")
        await asyncio.sleep(0.4)
        assert status.waiting == 0
        await status.stop()

    ask(story)
    assert fake_api.requests == []


def test_a_server_that_fails_is_asked_again_later(fake_api: FakeApi, ask: Any, host: Host) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))
    fake_api.put("resourceclaims", claim("b", result("gpu-1")))
    fake_api.fail(503, methods="PATCH")
    fake_api.html(methods="GET")
    fake_api.reset(methods="PATCH")
    fake_api.fail(429, methods="PATCH", retry_after=1)

    async def story(api: ApiClient) -> None:
        async with telling(api, host, held("a", "gpu-0"), held("b", "gpu-1")):
            await eventually_async(lambda: entries(fake_api, "a") and entries(fake_api, "b"))

    ask(story)
    assert fake_api.faults.pending == 0


PART_REFUSED = (
    'ResourceClaim.resource.k8s.io "a" is invalid: status.driver: Forbidden: changing status.devices requires '
    'resource="resourceclaims/driver", verb="[associated-node:patch arbitrary-node:patch]" permission: no'
)


@pytest.mark.parametrize(("code", "message"), [(403, "no"), (422, PART_REFUSED)])
def test_a_missing_right_is_said_once_and_not_asked_for_in_a_loop(
    fake_api: FakeApi, ask: Any, host: Host, caplog: pytest.LogCaptureFixture, code: int, message: str
) -> None:
    for name in ("a", "b"):
        fake_api.put("resourceclaims", claim(name, result("gpu-0")))
    body = json.dumps({"kind": "Status", "message": message})
    refusal = fake_api.fail(code, methods="PATCH", times=None, body=body)

    async def story(api: ApiClient) -> None:
        again = 0.5
        began = time.monotonic()
        async with telling(api, host, held("a", "gpu-0"), held("b", "gpu-0"), retry_after_s=again) as status:
            await eventually_async(lambda: status.problem)
            await asyncio.sleep(0.2)
            tried = len(writes(fake_api))
            assert tried <= 1 + (time.monotonic() - began) / (again / 2), "half of a pause is random"
            await eventually_async(lambda: len(writes(fake_api)) > tried)
            fake_api.faults.lift(refusal)
            await eventually_async(lambda: entries(fake_api, "a") and entries(fake_api, "b") and not status.problem)

    with caplog.at_level(logging.INFO, "dra_agent.status"):
        ask(story)
    said = [record for record in caplog.records if record.message == "claim status is not written"]
    assert len(said) == 1
    grant = vars(said[0])["grant"]
    assert "resourceclaims/status" in grant and "associated-node:patch" in grant
    assert "a right that was missing is there now" in caplog.text


@pytest.mark.parametrize(("code", "message"), [(403, "no"), (422, PART_REFUSED)])
def test_a_refusal_that_passes_holds_up_no_claim_for_long(
    fake_api: FakeApi, ask: Any, host: Host, code: int, message: str
) -> None:
    """A claim that is freed between reading and writing is refused as if a right were missing."""
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))
    fake_api.put("resourceclaims", claim("b", result("gpu-1")))
    fake_api.fail(code, methods="PATCH", times=1, body=json.dumps({"kind": "Status", "message": message}))

    async def story(api: ApiClient) -> None:
        async with telling(api, host, held("a", "gpu-0"), held("b", "gpu-1")) as status:
            await eventually_async(lambda: entries(fake_api, "a") and entries(fake_api, "b"))
            await eventually_async(lambda: not status.problem)

    ask(story)


GATE = "DRAResourceClaimDeviceStatus"


def test_an_old_api_server_that_drops_the_field_is_named(
    fake_api: FakeApi, ask: Any, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))
    fake_api.drop_fields(lambda plural, written: written.get("status", {}).pop("devices", None))

    async def story(api: ApiClient) -> None:
        async with telling(api, host, held("a", "gpu-0")):
            await eventually_async(lambda: any(GATE in getattr(one, "reason", "") for one in caplog.records))
            await asyncio.sleep(0.3)

    with caplog.at_level(logging.WARNING, "dra_agent.status"):
        ask(story)
    assert len(writes(fake_api)) == 1


def test_a_bug_with_one_claim_does_not_end_telling(fake_api: FakeApi, ask: Any, host: Host) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))
    fake_api.put("resourceclaims", claim("b", result("gpu-1")))

    def judge(pool: str, name: str, device: Any) -> Condition:
        if name == "gpu-0":
            raise KeyError(name)
        return Condition("True", "Healthy")

    async def story(api: ApiClient) -> None:
        async with telling(api, host, held("a", "gpu-0"), held("b", "gpu-1"), condition_of=judge):
            await eventually_async(lambda: entries(fake_api, "b"))

    ask(story)
    assert entries(fake_api, "a") == []


def test_claims_without_end_do_not_grow_the_queue_without_end(
    fake_api: FakeApi, ask: Any, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(api: ApiClient) -> int:
        status = ClaimStatusWriter(api, DRIVER, host.lookup, debounce_s=60.0)
        status.start(held(f"c{number}", "gpu-0") for number in range(3000))
        waiting = status.waiting
        await status.stop()
        return waiting

    assert ask(story) == 1024
    assert caplog.text.count("claim status is not written for every claim") == 1


def test_a_claim_that_is_replaced_between_reading_and_writing_is_not_written(
    fake_api: FakeApi, ask: Any, host: Host
) -> None:
    fake_api.put("resourceclaims", claim("a", result("gpu-0")))
    replaced = threading.Event()
    fake_api.hang(60, methods="PATCH", when=replaced)
    other = claim("a", result("gpu-0"))
    other["metadata"]["uid"] = "another"

    async def story(api: ApiClient) -> None:
        async with telling(api, host) as status:
            status.prepared(held("a", "gpu-0"))
            await eventually_async(lambda: any(seen.method == "PATCH" for seen in writes(fake_api)))
            fake_api.remove("resourceclaims", "a", "team-a")
            fake_api.put("resourceclaims", other)
            replaced.set()
            await eventually_async(lambda: status.failed or status.written)
            assert status.written == 0

    ask(story)
    assert entries(fake_api, "a") == []


def test_only_claims_with_a_device_of_a_chosen_family_cost_requests(fake_api: FakeApi, ask: Any, host: Host) -> None:
    for name in ("gpu-only", "both"):
        fake_api.put("resourceclaims", claim(name, result("gpu-0"), result("nic-0", pool="node-a/nic")))
    fake_api.requests.clear()

    async def story(api: ApiClient) -> None:
        async with telling(api, host, families=frozenset({"nic"})) as status:
            status.prepared(held("gpu-only", "gpu-0"))
            keys = (DeviceKey(POOL, "gpu-0"), DeviceKey("node-a/nic", "nic-0"))
            status.prepared(PreparedClaim("uid-both", "team-a", "both", keys))
            await eventually_async(lambda: entries(fake_api, "both"))

    ask(story)
    assert [entry["device"] for entry in entries(fake_api, "both")] == ["nic-0"]
    assert not [seen for seen in fake_api.requests if "gpu-only" in seen.path]

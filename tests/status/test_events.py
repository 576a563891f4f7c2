"""Events: their contents, the count of repeats, and that recording never blocks."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra_agent.kube_client import RESOURCE_CLAIMS, ApiClient, NotFoundError
from dra_agent.status import EventRecorder, ObjectReference, events
from dra_agent.status.events import DEVICE_HELD, MAX_TRIES, PREPARE_FAILED, SECOND_MANAGER
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi
from logged import logged_by
from status.conftest import DRIVER

CLAIM = ObjectReference.claim("team-a", "training", "uid-1")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "events.md"


@asynccontextmanager
async def event_recorder(api: ApiClient, **more: Any) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(api, DRIVER, "node-1", **more)
    recorder.start()
    try:
        yield recorder
    finally:
        await recorder.stop()


def stored_events(api: FakeApi) -> list[dict[str, Any]]:
    return sorted(api.objects("events"), key=lambda event: str(event["eventTime"]))


def test_an_event_has_the_fields_that_the_api_requires(fake_api: FakeApi, run_with_client: Any) -> None:
    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "config[0]: unknown kind")
            recorder.record(SECOND_MANAGER, ObjectReference.node("node-1"), "nvidia.com/gpu is there too")
            await eventually_async(lambda: len(stored_events(fake_api)) == 2)

    run_with_client(scenario)
    events_by_reason = {event["reason"]: event for event in stored_events(fake_api)}
    claim, node = events_by_reason["PrepareFailed"], events_by_reason["SecondManager"]
    assert re.fullmatch(r"training\.[0-9a-f]+", claim["metadata"]["name"])
    assert claim["metadata"]["namespace"] == "team-a"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", claim["eventTime"])
    rest = {key: value for key, value in claim.items() if key not in {"metadata", "eventTime"}}
    assert rest == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "reportingController": DRIVER,
        "reportingInstance": "node-1",
        "action": "Preparing",
        "reason": "PrepareFailed",
        "type": "Warning",
        "note": "config[0]: unknown kind",
        "regarding": {
            "kind": "ResourceClaim",
            "apiVersion": "resource.k8s.io/v1",
            "namespace": "team-a",
            "name": "training",
            "uid": "uid-1",
        },
    }
    assert node["metadata"]["namespace"] == "default"
    assert node["regarding"] == {"kind": "Node", "apiVersion": "v1", "name": "node-1", "uid": "node-1"}


def test_repeated_events_are_counted_in_one_series(fake_api: FakeApi, run_with_client: Any) -> None:
    repeat = 0.3
    start = time.monotonic()

    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api, repeat=repeat) as recorder:
            for _ in range(50):
                recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
                await asyncio.sleep(0)
            await eventually_async(lambda: stored_events(fake_api))
            for _ in range(50):
                recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
                await asyncio.sleep(0)
            await eventually_async(lambda: stored_events(fake_api)[0].get("series", {}).get("count") == 100)
            recorder.record(DEVICE_HELD, CLAIM, "gpu-1 is held")
            await eventually_async(lambda: len(stored_events(fake_api)) == 2)

    run_with_client(scenario)
    first, second = stored_events(fake_api)
    assert first["series"]["lastObservedTime"] > first["eventTime"]
    assert first["note"] == "gpu-0 is held", "the API server never accepts a changed note"
    assert second["note"] == "gpu-1 is held"
    # An event that repeats during a write causes one more write at once.
    max_writes = 3 + (fake_api.requests[-1].time - start) / repeat
    assert len([request for request in fake_api.requests if request.write]) <= max_writes, (
        "each Event once, then one write per interval"
    )


def test_an_event_deleted_by_the_server_is_created_again(fake_api: FakeApi, run_with_client: Any) -> None:
    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api, repeat=0.0) as recorder:
            recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
            await eventually_async(lambda: stored_events(fake_api))
            fake_api.wipe("events")
            recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
            await eventually_async(lambda: stored_events(fake_api))

    run_with_client(scenario)
    (event,) = stored_events(fake_api)
    assert event["reason"] == "DeviceHeld" and event["series"]["count"] == 2 and event["note"] == "gpu-0 is held"


def test_only_the_series_changes_between_writes(fake_api: FakeApi, run_with_client: Any) -> None:
    """The API server refuses changes of other fields (ValidateEventUpdate)."""

    def has_writes(count: int) -> bool:
        return len([request for request in fake_api.requests if request.write]) == count

    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api, repeat=0.0) as recorder:
            for count in range(1, 4):
                recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
                await eventually_async(partial(has_writes, count))

    run_with_client(scenario)
    bodies = [dict(request.body) for request in fake_api.requests]
    assert [body.pop("series", {}).get("count") for body in bodies] == [None, 2, 3]
    assert bodies[0] == bodies[1] == bodies[2]


def test_a_burst_of_events_is_limited_and_losses_are_logged(
    fake_api: FakeApi, run_with_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api, burst=5, interval_s=60.0) as recorder:
            for number in range(1000):
                recorder.record(PREPARE_FAILED, ObjectReference.claim("team-a", f"c{number}", f"uid-{number}"), "no")
            await eventually_async(lambda: recorder.written >= 5)
            for _ in range(3):  # another Event would be on its way before these requests
                with suppress(NotFoundError):
                    await api.get(RESOURCE_CLAIMS, "none", "team-a")

    with caplog.at_level(logging.WARNING, "dra_agent.status"):
        run_with_client(scenario)
    assert len(stored_events(fake_api)) == 5
    lost = [record for record in caplog.records if record.message == "Events are lost"]
    assert lost and vars(lost[-1])["since_start"] == 995


def test_recording_does_not_wait_for_a_hanging_server(fake_api: FakeApi, run_with_client: Any) -> None:
    may_answer = threading.Event()
    fake_api.hang(10 * DEADLINE_S, times=None, when=may_answer)

    async def scenario(api: ApiClient) -> int:
        async with event_recorder(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "first")
            await eventually_async(lambda: fake_api.requests)
            threads = [
                threading.Thread(target=recorder.record, args=(PREPARE_FAILED, CLAIM, f"{number}"))
                for number in range(20)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE_S)
            return sum(thread.is_alive() for thread in threads)

    try:
        assert run_with_client(scenario) == 0, "no thread waits for the server or the event loop"
        assert stored_events(fake_api) == []
    finally:
        may_answer.set()


def test_a_retry_after_a_lost_response_creates_no_second_event(fake_api: FakeApi, run_with_client: Any) -> None:
    fake_api.fail(503, methods="PATCH", retry_after=0)
    fake_api.reset(methods="PATCH", done=True)

    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "x")
            await eventually_async(lambda: len([request for request in fake_api.requests if request.write]) == 3)
            recorder.record(PREPARE_FAILED, CLAIM, "next")
            await eventually_async(lambda: "next" in [event["note"] for event in stored_events(fake_api)])

    run_with_client(scenario)
    assert [event["note"] for event in stored_events(fake_api)] == ["x", "next"]


def test_an_event_that_cannot_be_written_is_logged(
    fake_api: FakeApi, run_with_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fake_api.fail(422, methods="PATCH")

    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "the note")
            await eventually_async(lambda: "Event not written" in caplog.text)

    with caplog.at_level(logging.WARNING, "dra_agent.status"):
        run_with_client(scenario)
    assert vars(logged_by(caplog, "dra_agent.status")[-1])["note"] == "the note"


def test_a_missing_permission_is_logged_once(
    fake_api: FakeApi, run_with_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = fake_api.fail(403, methods="PATCH", times=None)

    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api, retry_after_s=0.2) as recorder:
            for number in range(10):
                recorder.record(PREPARE_FAILED, CLAIM, f"{number}")
            await eventually_async(lambda: recorder.lost == 10)
            assert len(fake_api.requests) == MAX_TRIES, "the first event was retried, queued events were not sent"
            fake_api.faults.lift(refusal)
            recorder.record(PREPARE_FAILED, CLAIM, "later")
            await eventually_async(lambda: stored_events(fake_api))

    with caplog.at_level(logging.WARNING, "dra_agent.status"):
        run_with_client(scenario)
    assert [event["note"] for event in stored_events(fake_api)] == ["later"]
    assert caplog.text.count("Events are not written") == 1


def test_a_permission_that_takes_effect_late_loses_no_event(fake_api: FakeApi, run_with_client: Any) -> None:
    fake_api.fail(403, methods="PATCH", times=1)

    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "early")
            await eventually_async(lambda: stored_events(fake_api))

    run_with_client(scenario)
    assert [event["note"] for event in stored_events(fake_api)] == ["early"]


def test_a_terminating_namespace_is_not_a_missing_permission(
    fake_api: FakeApi, run_with_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    message = "unable to create new content in namespace team-a because it is being terminated"
    cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace", "message": "namespace team-a is ..."}
    status = {"kind": "Status", "code": 403, "message": message, "details": {"name": "x", "causes": [cause]}}
    fake_api.fail(403, methods="PATCH", body=json.dumps(status))

    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "x")
            recorder.record(SECOND_MANAGER, ObjectReference.node("node-1"), "y")
            await eventually_async(lambda: stored_events(fake_api))

    run_with_client(scenario)
    assert "Events are not written" not in caplog.text


def test_long_notes_and_names_are_truncated_to_api_limits(fake_api: FakeApi, run_with_client: Any) -> None:
    async def scenario(api: ApiClient) -> None:
        async with event_recorder(api) as recorder:
            recorder.record(PREPARE_FAILED, ObjectReference.claim("team-a", "c" * 253, "u"), "ü" * 2000)
            await eventually_async(lambda: stored_events(fake_api))

    run_with_client(scenario)
    (event,) = stored_events(fake_api)
    assert len(event["note"].encode()) <= 1024 and event["note"].endswith("…")
    assert len(event["metadata"]["name"]) <= 253


def test_every_reason_is_documented() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \| (\w+) ", PAGE.read_text(), re.MULTILINE))
    assert rows == {(reason.name, reason.type) for reason in events.REASONS}

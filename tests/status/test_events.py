"""Events: what they say, that repeats are counted, and that nothing ever waits for them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra_agent.kube_client import ApiClient
from dra_agent.status import EventRecorder, ObjectReference, events
from dra_agent.status.events import DEVICE_HELD, MAX_TRIES, PREPARE_FAILED, SECOND_MANAGER
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi
from logged import logged_by
from status.conftest import DRIVER

CLAIM = ObjectReference.claim("team-a", "training", "uid-1")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "events.md"


@asynccontextmanager
async def recording(api: ApiClient, **more: Any) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(api, DRIVER, "node-1", **more)
    recorder.start()
    try:
        yield recorder
    finally:
        await recorder.stop()


def written(api: FakeApi) -> list[dict[str, Any]]:
    return sorted(api.objects("events"), key=lambda event: str(event["eventTime"]))


def test_an_event_has_what_the_api_demands(fake_api: FakeApi, ask: Any) -> None:
    async def story(api: ApiClient) -> None:
        async with recording(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "config[0]: unknown kind")
            recorder.record(SECOND_MANAGER, ObjectReference.node("node-1"), "nvidia.com/gpu is there too")
            await eventually_async(lambda: len(written(fake_api)) == 2)

    ask(story)
    told = {event["reason"]: event for event in written(fake_api)}
    claim, node = told["PrepareFailed"], told["SecondManager"]
    assert re.fullmatch(r"training\.[0-9a-f]+", claim["metadata"]["name"])
    assert claim["metadata"]["namespace"] == "team-a"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", claim["eventTime"])
    kept = {key: value for key, value in claim.items() if key not in {"metadata", "eventTime"}}
    assert kept == {
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


def test_the_same_again_is_counted_and_not_written_each_time(fake_api: FakeApi, ask: Any) -> None:
    repeat = 0.3
    began = time.monotonic()

    async def story(api: ApiClient) -> None:
        async with recording(api, repeat=repeat) as recorder:
            for _ in range(50):
                recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
                await asyncio.sleep(0)
            await eventually_async(lambda: written(fake_api))
            for _ in range(50):
                recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
                await asyncio.sleep(0)
            await eventually_async(lambda: written(fake_api)[0].get("series", {}).get("count") == 100)
            recorder.record(DEVICE_HELD, CLAIM, "gpu-1 is held")
            await eventually_async(lambda: len(written(fake_api)) == 2)

    ask(story)
    first, second = written(fake_api)
    assert first["series"]["lastObservedTime"] > first["eventTime"]
    assert first["note"] == "gpu-0 is held", "the API never lets a note change"
    assert second["note"] == "gpu-1 is held"
    # What happens again while it is written is written once more at once.
    most = 3 + (fake_api.requests[-1].time - began) / repeat
    assert len([seen for seen in fake_api.requests if seen.write]) <= most, "each Event once, and then once in a while"


def test_an_event_that_the_server_forgot_is_made_anew(fake_api: FakeApi, ask: Any) -> None:
    async def story(api: ApiClient) -> None:
        async with recording(api, repeat=0.0) as recorder:
            recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
            await eventually_async(lambda: written(fake_api))
            fake_api.wipe("events")
            recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
            await eventually_async(lambda: written(fake_api))

    ask(story)
    (event,) = written(fake_api)
    assert event["reason"] == "DeviceHeld" and event["series"]["count"] == 2 and event["note"] == "gpu-0 is held"


def test_only_the_series_changes_from_write_to_write(fake_api: FakeApi, ask: Any) -> None:
    """The API server refuses a change of anything else (ValidateEventUpdate)."""

    def have_been_written(count: int) -> bool:
        return len([seen for seen in fake_api.requests if seen.write]) == count

    async def story(api: ApiClient) -> None:
        async with recording(api, repeat=0.0) as recorder:
            for count in range(1, 4):
                recorder.record(DEVICE_HELD, CLAIM, "gpu-0 is held")
                await eventually_async(partial(have_been_written, count))

    ask(story)
    bodies = [dict(seen.body) for seen in fake_api.requests]
    assert [body.pop("series", {}).get("count") for body in bodies] == [None, 2, 3]
    assert bodies[0] == bodies[1] == bodies[2]


def test_a_storm_is_slowed_down_and_what_is_too_much_is_lost_with_a_word(
    fake_api: FakeApi, ask: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(api: ApiClient) -> None:
        async with recording(api, burst=5, every=60.0) as recorder:
            for number in range(1000):
                recorder.record(PREPARE_FAILED, ObjectReference.claim("team-a", f"c{number}", f"uid-{number}"), "no")
            await eventually_async(lambda: len(written(fake_api)) == 5)
            await asyncio.sleep(0.3)

    with caplog.at_level(logging.WARNING, "dra_agent.status"):
        ask(story)
    assert len(written(fake_api)) == 5
    lost = [record for record in caplog.records if record.message == "Events are lost"]
    assert lost and vars(lost[-1])["since_start"] == 995


def test_recording_never_waits_for_a_server_that_hangs(fake_api: FakeApi, ask: Any) -> None:
    goes_on = threading.Event()
    fake_api.hang(10 * DEADLINE_S, times=None, when=goes_on)

    async def story(api: ApiClient) -> int:
        async with recording(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "first")
            await eventually_async(lambda: fake_api.requests)
            threads = [
                threading.Thread(target=recorder.record, args=(PREPARE_FAILED, CLAIM, f"{n}")) for n in range(20)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE_S)
            return sum(thread.is_alive() for thread in threads)

    try:
        assert ask(story) == 0, "none of them waits for the server, nor for the event loop"
        assert written(fake_api) == []
    finally:
        goes_on.set()


def test_a_server_that_fails_is_asked_again_and_a_lost_answer_makes_no_second_event(
    fake_api: FakeApi, ask: Any
) -> None:
    fake_api.fail(503, methods="PATCH", retry_after=0)
    fake_api.reset(methods="PATCH", done=True)

    async def story(api: ApiClient) -> None:
        async with recording(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "x")
            await eventually_async(lambda: len([seen for seen in fake_api.requests if seen.write]) == 3)
            await asyncio.sleep(0.1)

    ask(story)
    assert len(written(fake_api)) == 1


def test_what_cannot_be_written_is_in_the_log(fake_api: FakeApi, ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    fake_api.fail(422, methods="PATCH")

    async def story(api: ApiClient) -> None:
        async with recording(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "the note")
            await eventually_async(lambda: "Event not written" in caplog.text)

    with caplog.at_level(logging.WARNING, "dra_agent.status"):
        ask(story)
    assert vars(logged_by(caplog, "dra_agent.status")[-1])["note"] == "the note"


def test_a_missing_right_is_said_once(fake_api: FakeApi, ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    refusal = fake_api.fail(403, methods="PATCH", times=None)

    async def story(api: ApiClient) -> None:
        async with recording(api, retry_after_s=0.2) as recorder:
            for number in range(10):
                recorder.record(PREPARE_FAILED, CLAIM, f"{number}")
            await eventually_async(lambda: recorder.lost == 10)
            assert len(fake_api.requests) == MAX_TRIES, "the first was tried again, and what waited was not tried"
            fake_api.faults.lift(refusal)
            recorder.record(PREPARE_FAILED, CLAIM, "later")
            await eventually_async(lambda: written(fake_api))

    with caplog.at_level(logging.WARNING, "dra_agent.status"):
        ask(story)
    assert [event["note"] for event in written(fake_api)] == ["later"]
    assert caplog.text.count("Events are not written") == 1


def test_a_right_that_is_known_a_moment_late_loses_no_event(fake_api: FakeApi, ask: Any) -> None:
    fake_api.fail(403, methods="PATCH", times=1)

    async def story(api: ApiClient) -> None:
        async with recording(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "early")
            await eventually_async(lambda: written(fake_api))

    ask(story)
    assert [event["note"] for event in written(fake_api)] == ["early"]


def test_a_namespace_that_is_being_deleted_is_no_missing_right(
    fake_api: FakeApi, ask: Any, caplog: pytest.LogCaptureFixture
) -> None:
    message = "unable to create new content in namespace team-a because it is being terminated"
    status = {"kind": "Status", "code": 403, "message": message}
    fake_api.fail(403, methods="PATCH", body=json.dumps(status))

    async def story(api: ApiClient) -> None:
        async with recording(api) as recorder:
            recorder.record(PREPARE_FAILED, CLAIM, "x")
            recorder.record(SECOND_MANAGER, ObjectReference.node("node-1"), "y")
            await eventually_async(lambda: written(fake_api))

    ask(story)
    assert "Events are not written" not in caplog.text


def test_long_notes_and_names_fit_the_api(fake_api: FakeApi, ask: Any) -> None:
    async def story(api: ApiClient) -> None:
        async with recording(api) as recorder:
            recorder.record(PREPARE_FAILED, ObjectReference.claim("team-a", "c" * 253, "u"), "ü" * 2000)
            await eventually_async(lambda: written(fake_api))

    ask(story)
    (event,) = written(fake_api)
    assert len(event["note"].encode()) <= 1024 and event["note"].endswith("…")
    assert len(event["metadata"]["name"]) <= 253


def test_every_reason_is_documented() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \| (\w+) ", PAGE.read_text(), re.MULTILINE))
    assert rows == {(reason.name, reason.type) for reason in events.REASONS}

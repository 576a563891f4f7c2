"""Properties: after any sequence of events the desired slices are published, and then nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_agent.inventory.model import Device
from dra_agent.publish import Publisher
from dra_agent.publish import pool as pool_module
from dra_agent.retry import Backoff
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from publish.node import NODE, Node, Slice, device, tainted, wait_until_published

Drawn = tuple[int, str, str]

METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", ""])
REFUSALS = st.sampled_from([401, 403, 404, 409, 410, 422, 429, 500, 503])

# Plain tuples, from which the test builds devices: hypothesis prints them readably when an example fails.
device_strategy = st.tuples(st.integers(0, 200), st.sampled_from(["gpu", "nic"]), st.sampled_from(["sick", "well"]))
devices_strategy = st.lists(device_strategy, max_size=140, unique_by=lambda drawn: drawn[:2])
event_strategy = st.one_of(
    st.tuples(st.just("devices"), devices_strategy),
    st.tuples(st.just("fail"), REFUSALS, METHODS, st.integers(1, 3)),
    st.tuples(st.just("html"), METHODS),
    st.tuples(st.just("reset"), METHODS, st.booleans()),
    st.tuples(st.just("hang"), METHODS),
    st.tuples(st.just("wipe"), st.integers(0, 2)),
    st.tuples(st.just("away"), st.sampled_from([0.0, 0.1])),
    st.tuples(st.just("compact")),
    st.tuples(st.just("end watches")),
    st.tuples(st.just("meddle"), st.integers(0, 5)),
    st.tuples(st.just("registered")),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.02, 0.1])),
)


def build_devices(drawn: list[Drawn]) -> list[Device]:
    return [
        tainted(device(number, family), "sick") if state == "sick" else device(number, family)
        for number, family, state in drawn
    ]


async def apply_event(node: Node, publisher: Publisher, event: tuple[Any, ...]) -> None:
    api = node.api
    match event:
        case ("devices", drawn):
            node.set_devices(*build_devices(drawn))
            publisher.devices_changed()
        case ("fail", status, methods, times):
            api.fail(status, methods=methods, times=times, retry_after=0 if status == 429 else None)
        case ("html", methods):
            api.html(methods=methods)
        case ("reset", methods, done):
            api.reset(methods=methods, done=done)
        case ("hang", methods):
            api.hang(0.6, methods=methods)
        case ("wipe", which):
            api.wipe(chosen=lambda slice_: which == 0 or hash(slice_["metadata"]["name"]) % 2 == which - 1)
        case ("away", seconds):
            await asyncio.to_thread(api.stop)
            await asyncio.sleep(seconds)
            api.start()
        case ("compact",):
            api.compact()
        case ("end watches",):
            api.end_watches()
        case ("meddle", at):
            slices = node.slices()
            if slices:
                chosen = slices[at % len(slices)]
                chosen["spec"]["devices"] = chosen["spec"].get("devices", [])[1:]
                chosen["spec"]["pool"]["generation"] += at
                api.put("resourceslices", chosen)
        case ("registered",):
            publisher.kubelet_registered()
        case ("wait", seconds):
            await asyncio.sleep(seconds)


def allocatable(node: Node, family: str) -> set[tuple[str, bool]]:
    slices = node.slices(f"{NODE}/{family}")
    assert len({slice_["spec"]["pool"]["generation"] for slice_ in slices}) <= 1
    assert all(slice_["spec"]["pool"]["resourceSliceCount"] == len(slices) for slice_ in slices)
    entries = [entry for slice_ in slices for entry in slice_["spec"].get("devices", ())]
    assert len(entries) == len({entry["name"] for entry in entries}), "a device twice makes the pool invalid"
    return {(entry["name"], "taints" in entry) for entry in entries}


def expected_devices(devices: list[Device], family: str) -> set[tuple[str, bool]]:
    return {(device.name, bool(device.taints)) for device in devices if device.family == family}


def is_caught_up(node: Node, publisher: Publisher) -> bool:
    """Return whether the publisher has observed every change, and no request is in flight."""

    def versions(slices: list[Slice]) -> set[tuple[str, str]]:
        return {(slice_["metadata"]["name"], slice_["metadata"]["resourceVersion"]) for slice_ in slices}

    return node.api.serving == 0 and versions(publisher.slices()) == versions(node.slices())


async def assert_converged(node: Node, publisher: Publisher, after: list[Device], scenario: str) -> None:
    """Wait until the desired devices are published; the failure lists the differences first, before the long log."""

    def differences() -> list[str]:
        reading = publisher.reading()
        published = {entry["name"] for slice_ in node.slices() for entry in slice_["spec"].get("devices", ())}
        expected = {device.name for device in after}
        return [
            *(f"{pool} is not settled" for pool in reading.pending),
            *([] if is_caught_up(node, publisher) else ["what is published is not known yet"]),
            *([f"the watch is {reading.lag_s:.1f} s behind"] if reading.lag_s else []),
            *([f"{node.api.faults.pending} faults are still to come"] if node.api.faults.pending else []),
            *([f"not published: {' '.join(sorted(expected - published))}"] if expected - published else []),
            *([f"should not be published: {' '.join(sorted(published - expected))}"] if published - expected else []),
        ]

    with contextlib.suppress(AssertionError):
        await eventually_async(lambda: not differences())
    if remaining := differences():
        pytest.fail("\n".join([*remaining, *publisher.reading().problems, scenario]), pytrace=False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=devices_strategy, scenario=st.lists(event_strategy, max_size=12), after=devices_strategy)
def test_any_sequence_of_events_ends_with_the_desired_slices(
    monkeypatch: pytest.MonkeyPatch, before: list[Drawn], scenario: list[tuple[Any, ...]], after: list[Drawn]
) -> None:
    monkeypatch.setattr(Backoff, "delay", lambda self, error=None: 0.02)
    monkeypatch.setattr(pool_module, "MAX_ROUNDS", 50)
    expected = build_devices(after)
    api = FakeApi()
    api.start()
    with tempfile.TemporaryDirectory() as folder:
        node = Node(api, Path(folder) / "kubeconfig")
        node.set_devices(*build_devices(before))

        async def run(publisher: Publisher) -> None:
            monkeypatch.setattr("dra_agent.kube_client.http.TIMEOUT_S", 0.3)  # A hanging request takes twice as long.
            for event in scenario:
                await apply_event(node, publisher, event)
            node.set_devices(*expected)
            publisher.devices_changed()
            api.faults.clear()
            monkeypatch.setattr(
                "dra_agent.kube_client.http.TIMEOUT_S", 10.0
            )  # Requests no longer hang, but the machine may be slow.
            await assert_converged(node, publisher, expected, f"{before=}\n{scenario=}\n{after=}")
            for family in ("gpu", "nic"):
                assert allocatable(node, family) == expected_devices(expected, family)
            node.clear_requests()
            publisher.devices_changed()
            publisher.kubelet_registered()
            await wait_until_published(publisher)
            assert node.writes() == []
            assert publisher.reading().problems == ()

        try:
            node.run(run)
        finally:
            api.stop()

"""Properties: whatever happens in whatever order, the end is what should be, and then it is quiet."""

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
from dra_agent.kube_client import Backoff
from dra_agent.publish import Publisher
from dra_agent.publish import pool as pool_module
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from publish.node import NODE, Node, Slice, device, tainted

Drawn = tuple[int, str, str]

METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", ""])
REFUSALS = st.sampled_from([401, 403, 404, 409, 410, 422, 429, 500, 503])

# Drawn as numbers, and made of them in the story: what hypothesis prints of a story that fails is to be read.
a_device = st.tuples(st.integers(0, 200), st.sampled_from(["gpu", "nic"]), st.sampled_from(["sick", "well"]))
some_devices = st.lists(a_device, max_size=140, unique_by=lambda drawn: drawn[:2])
step = st.one_of(
    st.tuples(st.just("devices"), some_devices),
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


def made(drawn: list[Drawn]) -> list[Device]:
    return [tainted(device(n, family), "sick") if how == "sick" else device(n, family) for n, family, how in drawn]


async def happen(node: Node, publisher: Publisher, what: tuple[Any, ...]) -> None:
    api = node.api
    match what:
        case ("devices", drawn):
            node.has(*made(drawn))
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
            api.wipe(chosen=lambda o: which == 0 or hash(o["metadata"]["name"]) % 2 == which - 1)
        case ("away", seconds):
            await asyncio.to_thread(api.stop)
            await asyncio.sleep(seconds)
            api.start()
        case ("compact",):
            api.compact()
        case ("end watches",):
            api.end_watches()
        case ("meddle", at):
            found = node.slices()
            if found:
                chosen = found[at % len(found)]
                chosen["spec"]["devices"] = chosen["spec"].get("devices", [])[1:]
                chosen["spec"]["pool"]["generation"] += at
                api.put("resourceslices", chosen)
        case ("registered",):
            publisher.kubelet_registered()
        case ("wait", seconds):
            await asyncio.sleep(seconds)


def allocatable(node: Node, family: str) -> set[tuple[str, bool]]:
    found = node.slices(f"{NODE}/{family}")
    assert len({o["spec"]["pool"]["generation"] for o in found}) <= 1
    assert all(o["spec"]["pool"]["resourceSliceCount"] == len(found) for o in found)
    entries = [entry for o in found for entry in o["spec"].get("devices", ())]
    assert len(entries) == len({entry["name"] for entry in entries}), "a device twice makes the pool invalid"
    return {(entry["name"], "taints" in entry) for entry in entries}


def wanted(found: list[Device], family: str) -> set[tuple[str, bool]]:
    return {(entry.name, bool(entry.taints)) for entry in found if entry.family == family}


def is_told(node: Node, publisher: Publisher) -> bool:
    """Whether the publisher knows all that has happened, and nothing that it has asked for is still to happen."""

    def versions(found: list[Slice]) -> set[tuple[str, str]]:
        return {(o["metadata"]["name"], o["metadata"]["resourceVersion"]) for o in found}

    return node.api.serving == 0 and versions(publisher.slices()) == versions(node.slices())


async def at_the_end(node: Node, publisher: Publisher, after: list[Device], story: str) -> None:
    """Wait until what is published is what should be; says in short what is not, before anything else: logs are cut."""

    def missing() -> list[str]:
        reading = publisher.reading()
        published = {entry["name"] for o in node.slices() for entry in o["spec"].get("devices", ())}
        should = {found.name for found in after}
        return [
            *(f"{pool} is not settled" for pool in reading.pending),
            *([] if is_told(node, publisher) else ["what is published is not known yet"]),
            *([f"the watch is {reading.lag_s:.1f} s behind"] if reading.lag_s else []),
            *([f"{node.api.faults.pending} faults are still to come"] if node.api.faults.pending else []),
            *([f"not published: {' '.join(sorted(should - published))}"] if should - published else []),
            *([f"should not be published: {' '.join(sorted(published - should))}"] if published - should else []),
        ]

    with contextlib.suppress(AssertionError):
        await eventually_async(lambda: not missing())
    if still := missing():
        pytest.fail("\n".join([*still, *publisher.reading().problems, story]), pytrace=False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=some_devices, story=st.lists(step, max_size=12), after=some_devices)
def test_the_end_is_what_should_be_and_then_it_is_quiet(
    monkeypatch: pytest.MonkeyPatch, before: list[Drawn], story: list[tuple[Any, ...]], after: list[Drawn]
) -> None:
    monkeypatch.setattr(Backoff, "delay", lambda self, error=None: 0.02)
    monkeypatch.setattr(pool_module, "MAX_ROUNDS", 50)
    should = made(after)
    api = FakeApi()
    api.start()
    with tempfile.TemporaryDirectory() as folder:
        node = Node(api, Path(folder) / "kubeconfig")
        node.has(*made(before))

        async def run(publisher: Publisher) -> None:
            monkeypatch.setattr(
                "dra_agent.kube_client.http.TIMEOUT_S", 0.3
            )  # seconds, of which "hang" takes twice as many
            for what in story:
                await happen(node, publisher, what)
            node.has(*should)
            publisher.devices_changed()
            api.faults.clear()
            monkeypatch.setattr(
                "dra_agent.kube_client.http.TIMEOUT_S", 10.0
            )  # nothing hangs now, but the machine is busy
            await at_the_end(node, publisher, should, f"{before=}\n{story=}\n{after=}")
            for family in ("gpu", "nic"):
                assert allocatable(node, family) == wanted(should, family)
            node.forget()
            publisher.devices_changed()
            publisher.kubelet_registered()
            await asyncio.sleep(0.1)
            assert node.writes() == []
            assert publisher.reading().problems == ()

        try:
            node.run(run)
        finally:
            api.stop()

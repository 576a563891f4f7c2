"""Watches: every change is delivered once, and a failed server is detected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dra_agent.kube_client import RESOURCE_SLICES, ApiClient, GoneError, UnavailableError, WatchCursor, connect
from eventually import eventually_async
from fake_apiserver.fake import FakeApi

FIELDS = {"spec.nodeName": "n1"}


def node_slice(name: str, node: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "driver": "d", "pool": {"name": "p"}}}


async def collect(api: ApiClient, version: str, count: int, meanwhile: Callable[[int], None]) -> list[tuple[str, str]]:
    """Return the next `count` events; `meanwhile` is called before each with the number of events so far."""
    events: list[tuple[str, str]] = []
    meanwhile(0)
    async with asyncio.timeout(60):
        async for event in api.watch(RESOURCE_SLICES, fields=FIELDS, resource_version=version):
            events.append((event.type, event.object["metadata"]["name"]))
            if len(events) == count:
                return events
            meanwhile(len(events))
    raise AssertionError("the watch ended")


@pytest.fixture
def kubeconfig(fake_api: FakeApi, tmp_path: Path) -> Path:
    return fake_api.kubeconfig(tmp_path / "kubeconfig")


def test_selected_changes_are_delivered_in_order(fake_api: FakeApi, kubeconfig: Path) -> None:
    fake_api.put("resourceslices", node_slice("a"))

    def meanwhile(_: int) -> None:
        if _ == 0:
            fake_api.put("resourceslices", node_slice("other", "n2"))
            fake_api.put("resourceslices", node_slice("b"))
            fake_api.put("resourceslices", {**node_slice("a"), "novelty": 1})
            fake_api.remove("resourceslices", "a")

    async def main() -> None:
        async with connect(kubeconfig) as api:
            listed = await api.list(RESOURCE_SLICES, fields=FIELDS)
            events = await collect(api, listed.resource_version, 3, meanwhile)
            assert events == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]

    asyncio.run(main())


def test_a_watch_ended_by_the_server_resumes_without_a_gap(fake_api: FakeApi, kubeconfig: Path) -> None:
    fake_api.longest_watch = 0.05

    def meanwhile(count: int) -> None:
        fake_api.put("resourceslices", node_slice(f"s{count}"))
        fake_api.end_watches()

    async def main() -> None:
        async with connect(kubeconfig) as api:
            events = await collect(api, str(fake_api.store.version), 20, meanwhile)
            assert events == [("ADDED", f"s{number}") for number in range(20)]

    asyncio.run(main())
    assert sum(events.watch for events in fake_api.requests) > 1


def test_bookmarks_keep_an_idle_watch_current(fake_api: FakeApi, kubeconfig: Path) -> None:
    fake_api.bookmark_every = 0.02

    async def main() -> None:
        async with connect(kubeconfig) as api:
            cursor = WatchCursor(str(fake_api.store.version))
            watch = api.watch(RESOURCE_SLICES, fields=FIELDS, resource_version=cursor)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.to_thread(fake_api.wait, lambda: any(events.watch for events in fake_api.requests))
            fake_api.put("resourceslices", node_slice("other", "n2"))
            await eventually_async(lambda: cursor.resource_version == str(fake_api.store.version))
            fake_api.compact()
            fake_api.end_watches()
            await asyncio.to_thread(fake_api.wait, lambda: sum(events.watch for events in fake_api.requests) == 2)
            fake_api.put("resourceslices", node_slice("mine"))
            event = await asyncio.wait_for(waiting, 60)
            assert event.object["metadata"]["name"] == "mine"
            await watch.aclose()

    asyncio.run(main())


def test_an_expired_version_is_gone(fake_api: FakeApi, kubeconfig: Path) -> None:
    fake_api.put("resourceslices", node_slice("a"))
    fake_api.compact()

    async def main() -> None:
        async with connect(kubeconfig) as api:
            with pytest.raises(GoneError, match="too old"):
                await collect(api, "1", 1, lambda _: None)

    asyncio.run(main())


def test_a_stopped_server_breaks_the_watch(fake_api: FakeApi, kubeconfig: Path) -> None:
    async def main() -> None:
        async with connect(kubeconfig) as api:
            watch = api.watch(RESOURCE_SLICES, fields=FIELDS, resource_version=str(fake_api.store.version))
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.to_thread(fake_api.wait, lambda: any(events.watch for events in fake_api.requests))
            await asyncio.to_thread(fake_api.stop)
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(waiting, 60)

    asyncio.run(main())


def test_a_silent_server_is_abandoned_after_the_deadline(
    fake_api: FakeApi, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.kube_client.client.WATCH_TIMEOUT_S", (1, 1))
    monkeypatch.setattr("dra_agent.kube_client.client.WATCH_GRACE_S", -0.7)

    async def main() -> None:
        async with connect(kubeconfig) as api:
            with pytest.raises(UnavailableError, match="no data"):
                await collect(api, str(fake_api.store.version), 1, lambda _: None)

    asyncio.run(main())


def test_invalid_watch_data_is_unavailable(fake_api: FakeApi, kubeconfig: Path) -> None:
    fake_api.fail(200, body="<html>\n", path="watch=true")

    async def main() -> None:
        async with connect(kubeconfig) as api:
            with pytest.raises(UnavailableError, match="unknown message"):
                await collect(api, "1", 1, lambda _: None)

    asyncio.run(main())


def test_an_event_of_several_megabytes_is_complete(fake_api: FakeApi, kubeconfig: Path) -> None:
    async def main() -> None:
        async with connect(kubeconfig) as api:
            watch = api.watch(RESOURCE_SLICES, fields=FIELDS, resource_version=str(fake_api.store.version))
            fake_api.put("resourceslices", {**node_slice("big"), "novelty": "x" * 3_000_000})
            event = await asyncio.wait_for(anext(watch), 60)
            assert len(event.object["novelty"]) == 3_000_000
            await watch.aclose()

    asyncio.run(main())


def test_watches_that_end_at_once_are_limited(
    fake_api: FakeApi, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock is stopped, so that the duration of requests does not matter.
    monkeypatch.setattr("dra_agent.kube_client.client.time", SimpleNamespace(monotonic=lambda: 0.0))
    fake_api.fail(200, body="", path="watch=true", times=None)

    async def main() -> None:
        async with connect(kubeconfig) as api:
            with pytest.raises(UnavailableError, match="end as soon as they start"):
                await collect(api, "1", 1, lambda _: None)

    asyncio.run(main())
    assert len(fake_api.requests) == 3

"""The API server's face, against real HTTP that fails in every way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import AgentError
from dra_agent.kube_client import (
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiClient,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidObjectError,
    NotFoundError,
    ThrottledError,
    UnauthorizedError,
    UnavailableError,
    connect,
)
from dra_agent.kube_client.slots import MAX_REQUESTS, MAX_REQUESTS_OF_A_RESOURCE, RequestSlots
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi

Story = Callable[[ApiClient], Awaitable[Any]]


@pytest.fixture
def ask(fake_api: FakeApi, tmp_path: Path) -> Callable[[Story], Any]:
    """Run a story with a client of the fake API server."""
    path = fake_api.kubeconfig(tmp_path / "kubeconfig", token="abc")

    def run(story: Story) -> Any:
        async def main() -> Any:
            async with connect(path) as api:
                return await story(api)

        return asyncio.run(main())

    return run


def a_slice(name: str = "", node: str = "n1", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name} if name else {"generateName": "00000-d-n1-"}
    return {
        "metadata": metadata,
        "spec": {
            "driver": "d",
            "nodeName": node,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            **spec,
        },
    }


def test_objects_go_there_and_back_with_fields_that_nobody_knows(fake_api: FakeApi, ask: Any) -> None:
    async def story(api: ApiClient) -> None:
        made = await api.create(RESOURCE_SLICES, a_slice(novelty={"a": [1, None]}))
        assert made["metadata"]["name"].startswith("00000-d-n1-") and made["spec"]["novelty"] == {"a": [1, None]}
        assert (made["apiVersion"], made["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
        made["spec"]["pool"]["generation"] = 2
        changed = await api.replace(RESOURCE_SLICES, made)
        assert changed["metadata"]["generation"] == 2
        read = await api.get(RESOURCE_SLICES, made["metadata"]["name"])
        assert read == changed
        with pytest.raises(ConflictError):
            await api.replace(RESOURCE_SLICES, made)
        await api.delete(RESOURCE_SLICES, made["metadata"]["name"])
        with pytest.raises(NotFoundError, match="not found"):
            await api.get(RESOURCE_SLICES, made["metadata"]["name"])

    ask(story)
    assert fake_api.requests[0].headers["authorization"] == "Bearer abc"


def test_a_deletion_is_of_this_very_object(fake_api: FakeApi, ask: Any) -> None:
    kept = fake_api.put("resourceslices", a_slice("s"))["metadata"]

    async def story(api: ApiClient) -> None:
        with pytest.raises(ConflictError):
            await api.delete(RESOURCE_SLICES, "s", uid="another", resource_version=kept["resourceVersion"])
        with pytest.raises(ConflictError):
            await api.delete(RESOURCE_SLICES, "s", uid=kept["uid"], resource_version="1")
        assert fake_api.objects("resourceslices")
        await api.delete(RESOURCE_SLICES, "s", uid=kept["uid"], resource_version=kept["resourceVersion"])

    ask(story)
    assert not fake_api.objects("resourceslices")


def test_a_list_is_what_the_fields_and_labels_choose_page_by_page(
    fake_api: FakeApi, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.kube_client.client.PAGE_ITEMS", 2)
    for number in range(5):
        fake_api.put("resourceslices", a_slice(f"mine-{number}"))
    fake_api.put("resourceslices", a_slice("theirs", node="n2"))
    labelled = {"metadata": {"name": "x", "labels": {"a": "b"}}}
    fake_api.put("nodes", labelled)
    fake_api.put("nodes", {"metadata": {"name": "y"}})

    async def story(api: ApiClient) -> None:
        found = await api.list(RESOURCE_SLICES, fields={"spec.driver": "d", "spec.nodeName": "n1"})
        assert [item["metadata"]["name"] for item in found.items] == [f"mine-{number}" for number in range(5)]
        assert found.resource_version == str(fake_api.store.version)
        assert {(item["apiVersion"], item["kind"]) for item in found.items} == {("resource.k8s.io/v1", "ResourceSlice")}
        chosen = await api.list(NODES, labels={"a": "b"})
        assert [item["metadata"]["name"] for item in chosen.items] == ["x"]

    ask(story)


def test_pages_that_are_too_old_are_read_again_in_one_piece(
    fake_api: FakeApi, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.kube_client.client.PAGE_ITEMS", 1)
    for number in range(3):
        fake_api.put("resourceslices", a_slice(f"s{number}"))
    fake_api.fail(410, path="continue=1")

    async def story(api: ApiClient) -> None:
        found = await api.list(RESOURCE_SLICES)
        assert [item["metadata"]["name"] for item in found.items] == ["s0", "s1", "s2"]

    ask(story)


def test_namespaced_objects_and_their_status_are_applied(fake_api: FakeApi, ask: Any) -> None:
    claim = {"metadata": {"name": "c", "namespace": "ns"}, "spec": {"devices": {}}}
    fake_api.put("resourceclaims", {**claim, "status": {"allocation": {"devices": {"results": []}}}})

    async def story(api: ApiClient) -> None:
        row = {"driver": "d", "pool": "p", "device": "gpu-0", "conditions": [{"type": "Ready", "status": "True"}]}
        body = {"metadata": {"name": "c", "namespace": "ns"}, "status": {"devices": [row]}}
        applied = await api.apply(RESOURCE_CLAIMS, "c", body, "ns", field_manager="agent", subresource="status")
        assert applied["status"]["devices"] == [row] and "allocation" in applied["status"]
        body["status"] = {}
        cleared = await api.apply(RESOURCE_CLAIMS, "c", body, "ns", field_manager="agent", subresource="status")
        assert not cleared["status"].get("devices") and "allocation" in cleared["status"]

    ask(story)
    (first, _) = fake_api.writes()
    assert first.path.endswith("/namespaces/ns/resourceclaims/c/status") and first.query["force"] == "true"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidObjectError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, GoneError),
        (422, InvalidObjectError),
        (429, ThrottledError),
        (500, UnavailableError),
        (503, UnavailableError),
    ],
)
def test_every_refusal_is_an_error_of_its_own(fake_api: FakeApi, ask: Any, status: int, kind: type[AgentError]) -> None:
    fake_api.fail(status)

    async def story(api: ApiClient) -> None:
        with pytest.raises(kind) as caught:
            await api.get(NODES, "n1")
        assert type(caught.value) is kind
        assert f"a fault of status {status}" in str(caught.value) and "GET /api/v1/nodes/n1" in str(caught.value)

    ask(story)


@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None)])
def test_the_server_may_say_when_to_come_back(fake_api: FakeApi, ask: Any, value: str, seconds: float | None) -> None:
    fake_api.fail(429, retry_after=value)

    async def story(api: ApiClient) -> None:
        with pytest.raises(ThrottledError) as caught:
            await api.get(NODES, "n1")
        assert caught.value.retry_after == seconds

    ask(story)


@pytest.mark.parametrize("status", [200, 403, 502])
def test_a_page_instead_of_an_answer_says_so(fake_api: FakeApi, ask: Any, status: int) -> None:
    fake_api.html(status)

    async def story(api: ApiClient) -> None:
        with pytest.raises(AgentError, match="Please log in"):
            await api.get(NODES, "n1")
        fake_api.put("nodes", {"metadata": {"name": "n1"}})
        assert (await api.get(NODES, "n1"))["metadata"]["name"] == "n1"

    ask(story)


def test_json_that_is_torn_or_no_object_is_unavailable(fake_api: FakeApi, ask: Any) -> None:
    fake_api.fail(200, body='{"metadata":')
    fake_api.fail(200, body='{"metadata":' * 10_000)
    fake_api.fail(200, body="[1]")

    async def story(api: ApiClient) -> None:
        for what in ("not JSON", "not JSON", "not an object"):
            with pytest.raises(UnavailableError, match=what):
                await api.get(NODES, "n1")

    ask(story)


def test_a_redirect_is_no_api_server(fake_api: FakeApi, ask: Any) -> None:
    fake_api.fail(302, body="")

    async def story(api: ApiClient) -> None:
        with pytest.raises(UnavailableError, match="redirects"):
            await api.get(NODES, "n1")

    ask(story)


def test_silence_ends_at_the_deadline(fake_api: FakeApi, ask: Any) -> None:
    fake_api.hang(600)

    async def story(api: ApiClient) -> None:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(UnavailableError, match=r"no response within 0\.2 s"):
                await api.get(NODES, "n1", timeout=0.2)

    ask(story)


def test_a_server_that_is_not_there_is_unavailable(fake_api: FakeApi, ask: Any) -> None:
    fake_api.stop()

    async def story(api: ApiClient) -> None:
        with pytest.raises(UnavailableError, match="no connection"):
            await api.get(NODES, "n1")

    ask(story)


def test_a_kept_connection_that_was_closed_meanwhile_costs_nothing(fake_api: FakeApi, ask: Any) -> None:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})

    async def story(api: ApiClient) -> None:
        await api.get(NODES, "n1")
        fake_api.stop()
        fake_api.start()
        await api.get(NODES, "n1")
        fake_api.reset(methods="GET")
        await api.get(NODES, "n1")

    ask(story)


def test_a_creation_whose_fate_is_unknown_is_not_repeated(fake_api: FakeApi, ask: Any) -> None:
    async def story(api: ApiClient) -> None:
        await api.list(RESOURCE_SLICES)
        fake_api.reset(methods="POST", done=True)
        with pytest.raises(UnavailableError):
            await api.create(RESOURCE_SLICES, a_slice())

    ask(story)
    assert len(fake_api.objects("resourceslices")) == 1


def test_requests_run_side_by_side_and_connections_are_kept(fake_api: FakeApi, ask: Any) -> None:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})
    answer = threading.Event()
    fake_api.hang(600, times=4, when=answer)

    async def story(api: ApiClient) -> None:
        asked = [asyncio.create_task(api.get(NODES, "n1", timeout=DEADLINE_S)) for _ in range(4)]
        await eventually_async(lambda: len(fake_api.requests) == 4)  # and none is answered
        answer.set()
        await asyncio.gather(*asked)
        for _ in range(20):
            await api.get(NODES, "n1")
        assert api.requests == {"GET": 24}

    ask(story)


def test_nothing_is_sent_after_close(fake_api: FakeApi, ask: Any) -> None:
    async def story(api: ApiClient) -> None:
        await api.close()
        with pytest.raises(UnavailableError, match="stopping"):
            await api.get(NODES, "n1")

    ask(story)
    assert not fake_api.requests


@pytest.mark.parametrize("name", ["../nodes", "a/b", "a?b#c"])
def test_a_name_cannot_leave_its_path(fake_api: FakeApi, ask: Any, name: str) -> None:
    async def story(api: ApiClient) -> None:
        with pytest.raises(NotFoundError):
            await api.get(RESOURCE_CLAIMS, name, "ns")

    ask(story)
    (seen,) = fake_api.requests
    assert seen.path.startswith("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/")
    assert seen.path.count("/") == 7 and not seen.query


@pytest.mark.parametrize(
    "body", ['{"items": [null]}', '{"items": 7}', '{"metadata": 7}', '{"metadata": {"continue": 1}}']
)
def test_a_list_that_is_none_is_unavailable(fake_api: FakeApi, ask: Any, body: str) -> None:
    fake_api.fail(200, body=body)

    async def story(api: ApiClient) -> None:
        with pytest.raises(UnavailableError, match="not a list"):
            await api.list(NODES)
        assert (await api.list(NODES)).items == []

    ask(story)


def test_a_request_that_runs_fails_when_the_client_is_closed(fake_api: FakeApi, ask: Any) -> None:
    fake_api.hang(10)

    async def story(api: ApiClient) -> None:
        waiting = asyncio.ensure_future(api.get(NODES, "n1"))
        await asyncio.to_thread(fake_api.wait, lambda: bool(fake_api.requests))
        await api.close()
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(waiting, 60)

    ask(story)


def test_a_burst_opens_few_connections_and_reuses_them(fake_api: FakeApi, ask: Any) -> None:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})

    async def story(api: ApiClient) -> None:
        for _ in range(2):
            await asyncio.gather(*(api.get(NODES, "n1", timeout=60) for _ in range(100)))

    ask(story)
    assert len(fake_api.requests) == 200
    assert fake_api.connections <= MAX_REQUESTS


def test_waiting_for_a_connection_counts_against_the_deadline_and_is_said(fake_api: FakeApi, ask: Any) -> None:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})
    answer = threading.Event()
    fake_api.hang(60, times=None, when=answer)

    async def story(api: ApiClient) -> None:
        busy = [asyncio.create_task(api.get(NODES, "n1", timeout=60)) for _ in range(MAX_REQUESTS_OF_A_RESOURCE)]
        await eventually_async(lambda: len(fake_api.requests) >= MAX_REQUESTS_OF_A_RESOURCE)
        with pytest.raises(
            UnavailableError,
            match=r"no response within 0\.1 s: waited for a free connection; pending requests: 6 of nodes",
        ):
            await api.get(NODES, "n1", timeout=0.1)
        answer.set()
        await asyncio.gather(*busy)
        await asyncio.gather(*(api.get(NODES, "n1", timeout=60) for _ in range(20)))

    ask(story)


def test_reads_that_hang_keep_no_write_of_another_resource_waiting(fake_api: FakeApi, ask: Any) -> None:
    answer = threading.Event()
    fake_api.hang(60, times=None, path="/resourceclaims/", when=answer)
    made = {"metadata": {"name": "s"}, "spec": {"nodeName": "n1", "driver": "d", "pool": {"name": "p"}}}

    async def story(api: ApiClient) -> None:
        reads = [asyncio.create_task(api.get(RESOURCE_CLAIMS, "c", "default", timeout=60)) for _ in range(50)]
        await eventually_async(lambda: len(fake_api.requests) >= MAX_REQUESTS_OF_A_RESOURCE)
        await api.create(RESOURCE_SLICES, made)
        answer.set()
        assert {type(error) for error in await asyncio.gather(*reads, return_exceptions=True)} == {NotFoundError}

    ask(story)


def test_slots_are_given_in_the_order_of_asking_and_none_is_lost() -> None:
    order: list[int] = []

    async def main() -> None:
        slots = RequestSlots(total=2, of_a_resource=1)

        async def one(number: int, resource: str) -> None:
            await slots.acquire(resource)
            try:
                order.append(number)
                await asyncio.sleep(0)
            finally:
                slots.release(resource)

        tasks = [asyncio.create_task(one(n, "a" if n % 3 else "b")) for n in range(30)]
        await asyncio.sleep(0)
        for number in range(6, 30, 5):
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert slots.waiting == 0
        for resource in ("a", "b"):
            await slots.acquire(resource)

    asyncio.run(main())
    for resource in (0, 1):
        taken = [number for number in order if bool(number % 3) == bool(resource)]
        assert taken == sorted(taken) and len(taken) > 5

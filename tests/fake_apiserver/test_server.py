"""The API client with real HTTP and every kind of failure."""

from __future__ import annotations

import asyncio
import json
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

Scenario = Callable[[ApiClient], Awaitable[Any]]


@pytest.fixture
def run_scenario(fake_api: FakeApi, tmp_path: Path) -> Callable[[Scenario], Any]:
    """Run a scenario with a client of the fake API server."""
    path = fake_api.kubeconfig(tmp_path / "kubeconfig", token="abc")

    def run(scenario: Scenario) -> Any:
        async def main() -> Any:
            async with connect(path) as api:
                return await scenario(api)

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


def test_objects_keep_unknown_fields(fake_api: FakeApi, run_scenario: Any) -> None:
    async def scenario(api: ApiClient) -> None:
        created = await api.create(RESOURCE_SLICES, a_slice(novelty={"a": [1, None]}))
        assert created["metadata"]["name"].startswith("00000-d-n1-") and created["spec"]["novelty"] == {"a": [1, None]}
        assert (created["apiVersion"], created["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
        created["spec"]["pool"]["generation"] = 2
        changed = await api.replace(RESOURCE_SLICES, created)
        assert changed["metadata"]["generation"] == 2
        read = await api.get(RESOURCE_SLICES, created["metadata"]["name"])
        assert read == changed
        with pytest.raises(ConflictError):
            await api.replace(RESOURCE_SLICES, created)
        await api.delete(RESOURCE_SLICES, created["metadata"]["name"])
        with pytest.raises(NotFoundError, match="not found"):
            await api.get(RESOURCE_SLICES, created["metadata"]["name"])

    run_scenario(scenario)
    assert fake_api.requests[0].headers["authorization"] == "Bearer abc"


def test_a_deletion_checks_uid_and_version(fake_api: FakeApi, run_scenario: Any) -> None:
    metadata = fake_api.put("resourceslices", a_slice("s"))["metadata"]

    async def scenario(api: ApiClient) -> None:
        with pytest.raises(ConflictError):
            await api.delete(RESOURCE_SLICES, "s", uid="another", resource_version=metadata["resourceVersion"])
        with pytest.raises(ConflictError):
            await api.delete(RESOURCE_SLICES, "s", uid=metadata["uid"], resource_version="1")
        assert fake_api.objects("resourceslices")
        await api.delete(RESOURCE_SLICES, "s", uid=metadata["uid"], resource_version=metadata["resourceVersion"])

    run_scenario(scenario)
    assert not fake_api.objects("resourceslices")


def test_lists_are_paged_and_filtered_by_fields_and_labels(
    fake_api: FakeApi, run_scenario: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.kube_client.client.PAGE_ITEMS", 2)
    for number in range(5):
        fake_api.put("resourceslices", a_slice(f"mine-{number}"))
    fake_api.put("resourceslices", a_slice("theirs", node="n2"))
    labelled = {"metadata": {"name": "x", "labels": {"a": "b"}}}
    fake_api.put("nodes", labelled)
    fake_api.put("nodes", {"metadata": {"name": "y"}})

    async def scenario(api: ApiClient) -> None:
        found = await api.list(RESOURCE_SLICES, fields={"spec.driver": "d", "spec.nodeName": "n1"})
        assert [item["metadata"]["name"] for item in found.items] == [f"mine-{number}" for number in range(5)]
        assert found.resource_version == str(fake_api.store.version)
        assert {(item["apiVersion"], item["kind"]) for item in found.items} == {("resource.k8s.io/v1", "ResourceSlice")}
        chosen = await api.list(NODES, labels={"a": "b"})
        assert [item["metadata"]["name"] for item in chosen.items] == ["x"]

    run_scenario(scenario)


def test_an_expired_continue_token_restarts_the_list_unpaged(
    fake_api: FakeApi, run_scenario: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.kube_client.client.PAGE_ITEMS", 1)
    for number in range(3):
        fake_api.put("resourceslices", a_slice(f"s{number}"))
    fake_api.fail(410, path="continue=1")

    async def scenario(api: ApiClient) -> None:
        found = await api.list(RESOURCE_SLICES)
        assert [item["metadata"]["name"] for item in found.items] == ["s0", "s1", "s2"]

    run_scenario(scenario)


def test_status_of_a_namespaced_object_is_applied(fake_api: FakeApi, run_scenario: Any) -> None:
    claim = {"metadata": {"name": "c", "namespace": "ns"}, "spec": {"devices": {}}}
    fake_api.put("resourceclaims", {**claim, "status": {"allocation": {"devices": {"results": []}}}})

    async def scenario(api: ApiClient) -> None:
        row = {"driver": "d", "pool": "p", "device": "gpu-0", "conditions": [{"type": "Ready", "status": "True"}]}
        body = {"metadata": {"name": "c", "namespace": "ns"}, "status": {"devices": [row]}}
        applied = await api.apply(RESOURCE_CLAIMS, "c", body, "ns", field_manager="agent", subresource="status")
        assert applied["status"]["devices"] == [row] and "allocation" in applied["status"]
        body["status"] = {}
        cleared = await api.apply(RESOURCE_CLAIMS, "c", body, "ns", field_manager="agent", subresource="status")
        assert not cleared["status"].get("devices") and "allocation" in cleared["status"]

    run_scenario(scenario)
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
def test_every_status_has_its_own_error(
    fake_api: FakeApi, run_scenario: Any, status: int, kind: type[AgentError]
) -> None:
    fake_api.fail(status)

    async def scenario(api: ApiClient) -> None:
        with pytest.raises(kind) as error:
            await api.get(NODES, "n1")
        assert type(error.value) is kind
        assert f"a fault of status {status}" in str(error.value) and "GET /api/v1/nodes/n1" in str(error.value)

    run_scenario(scenario)


CAUSE = {"reason": "FieldValueForbidden", "message": "Forbidden: no", "field": "status.devices"}


@pytest.mark.parametrize(
    ("details", "known"),
    [
        ({"name": "n1", "causes": [CAUSE, {"reason": "X"}]}, (("FieldValueForbidden", "status.devices"), ("X", ""))),
        ({"name": "n1", "causes": [7, {"reason": 7, "field": None}]}, (("", ""),)),
        ({"name": "n1", "causes": {}}, ()),
    ],
)
def test_errors_have_the_name_and_the_causes_of_the_response(
    fake_api: FakeApi, run_scenario: Any, details: Any, known: tuple[tuple[str, str], ...]
) -> None:
    fake_api.fail(404, body=json.dumps({"kind": "Status", "message": "no", "details": details}))

    async def scenario(api: ApiClient) -> None:
        with pytest.raises(NotFoundError) as error:
            await api.get(NODES, "n1")
        assert error.value.is_of("n1") and not error.value.is_of("n2")
        assert error.value.details.causes == known

    run_scenario(scenario)


@pytest.mark.parametrize("details", [{}, {"name": ""}, {"name": 7}, [], "n1", None])
def test_a_missing_kind_is_not_a_missing_object(fake_api: FakeApi, run_scenario: Any, details: Any) -> None:
    message = 'nodes "n1" not found'
    fake_api.fail(404, body=json.dumps({"kind": "Status", "message": message, "details": details}))

    async def scenario(api: ApiClient) -> None:
        with pytest.raises(NotFoundError) as error:
            await api.get(NODES, "n1")
        assert not error.value.is_of("n1")

    run_scenario(scenario)


@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None)])
def test_retry_after_of_the_server_is_kept(
    fake_api: FakeApi, run_scenario: Any, value: str, seconds: float | None
) -> None:
    fake_api.fail(429, retry_after=value)

    async def scenario(api: ApiClient) -> None:
        with pytest.raises(ThrottledError) as error:
            await api.get(NODES, "n1")
        assert error.value.retry_after == seconds

    run_scenario(scenario)


@pytest.mark.parametrize("status", [200, 403, 502])
def test_an_html_page_is_reported(fake_api: FakeApi, run_scenario: Any, status: int) -> None:
    fake_api.html(status)

    async def scenario(api: ApiClient) -> None:
        with pytest.raises(AgentError, match="Please log in"):
            await api.get(NODES, "n1")
        fake_api.put("nodes", {"metadata": {"name": "n1"}})
        assert (await api.get(NODES, "n1"))["metadata"]["name"] == "n1"

    run_scenario(scenario)


def test_invalid_json_is_unavailable(fake_api: FakeApi, run_scenario: Any) -> None:
    fake_api.fail(200, body='{"metadata":')
    fake_api.fail(200, body='{"metadata":' * 10_000)
    fake_api.fail(200, body="[1]")

    async def scenario(api: ApiClient) -> None:
        for message in ("not JSON", "not JSON", "not an object"):
            with pytest.raises(UnavailableError, match=message):
                await api.get(NODES, "n1")

    run_scenario(scenario)


def test_a_redirect_is_unavailable(fake_api: FakeApi, run_scenario: Any) -> None:
    fake_api.fail(302, body="")

    async def scenario(api: ApiClient) -> None:
        with pytest.raises(UnavailableError, match="redirects"):
            await api.get(NODES, "n1")

    run_scenario(scenario)


def test_a_hanging_request_ends_at_the_deadline(fake_api: FakeApi, run_scenario: Any) -> None:
    fake_api.hang(600)

    async def scenario(api: ApiClient) -> None:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(UnavailableError, match=r"no response within 0\.2 s"):
                await api.get(NODES, "n1", timeout=0.2)

    run_scenario(scenario)


def test_a_stopped_server_is_unavailable(fake_api: FakeApi, run_scenario: Any) -> None:
    fake_api.stop()

    async def scenario(api: ApiClient) -> None:
        with pytest.raises(UnavailableError, match="no connection"):
            await api.get(NODES, "n1")

    run_scenario(scenario)


def test_a_request_on_a_closed_connection_is_repeated(fake_api: FakeApi, run_scenario: Any) -> None:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})

    async def scenario(api: ApiClient) -> None:
        await api.get(NODES, "n1")
        fake_api.stop()
        fake_api.start()
        await api.get(NODES, "n1")
        fake_api.reset(methods="GET")
        await api.get(NODES, "n1")

    run_scenario(scenario)


def test_a_create_with_unknown_outcome_is_not_repeated(fake_api: FakeApi, run_scenario: Any) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.list(RESOURCE_SLICES)
        fake_api.reset(methods="POST", done=True)
        with pytest.raises(UnavailableError):
            await api.create(RESOURCE_SLICES, a_slice())

    run_scenario(scenario)
    assert len(fake_api.objects("resourceslices")) == 1


def test_requests_run_in_parallel_and_connections_are_reused(fake_api: FakeApi, run_scenario: Any) -> None:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})
    respond = threading.Event()
    fake_api.hang(600, times=4, when=respond)

    async def scenario(api: ApiClient) -> None:
        tasks = [asyncio.create_task(api.get(NODES, "n1", timeout=DEADLINE_S)) for _ in range(4)]
        await eventually_async(lambda: len(fake_api.requests) == 4)  # and no response is sent
        respond.set()
        await asyncio.gather(*tasks)
        for _ in range(20):
            await api.get(NODES, "n1")
        assert api.requests == {"GET": 24}

    run_scenario(scenario)


def test_no_request_is_sent_after_close(fake_api: FakeApi, run_scenario: Any) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.close()
        with pytest.raises(UnavailableError, match="stopping"):
            await api.get(NODES, "n1")

    run_scenario(scenario)
    assert not fake_api.requests


@pytest.mark.parametrize("name", ["../nodes", "a/b", "a?b#c"])
def test_a_name_cannot_change_the_request_path(fake_api: FakeApi, run_scenario: Any, name: str) -> None:
    async def scenario(api: ApiClient) -> None:
        with pytest.raises(NotFoundError):
            await api.get(RESOURCE_CLAIMS, name, "ns")

    run_scenario(scenario)
    (request,) = fake_api.requests
    assert request.path.startswith("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/")
    assert request.path.count("/") == 7 and not request.query


@pytest.mark.parametrize("body", ['{"items": 7}', '{"metadata": 7}', '{"metadata": {"continue": 1}}'])
def test_an_invalid_list_is_unavailable(fake_api: FakeApi, run_scenario: Any, body: str) -> None:
    fake_api.fail(200, body=body)

    async def scenario(api: ApiClient) -> None:
        with pytest.raises(UnavailableError, match="not a list"):
            await api.list(NODES)
        assert (await api.list(NODES)).items == []

    run_scenario(scenario)


def test_a_running_request_fails_when_the_client_is_closed(fake_api: FakeApi, run_scenario: Any) -> None:
    fake_api.hang(10)

    async def scenario(api: ApiClient) -> None:
        waiting = asyncio.ensure_future(api.get(NODES, "n1"))
        await asyncio.to_thread(fake_api.wait, lambda: bool(fake_api.requests))
        await api.close()
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(waiting, 60)

    run_scenario(scenario)


def test_a_burst_opens_few_connections_and_reuses_them(fake_api: FakeApi, run_scenario: Any) -> None:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})

    async def scenario(api: ApiClient) -> None:
        for _ in range(2):
            await asyncio.gather(*(api.get(NODES, "n1", timeout=60) for _ in range(100)))

    run_scenario(scenario)
    assert len(fake_api.requests) == 200
    assert fake_api.connections <= MAX_REQUESTS


def test_the_deadline_includes_the_wait_for_a_connection(fake_api: FakeApi, run_scenario: Any) -> None:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})
    respond = threading.Event()
    fake_api.hang(60, times=None, when=respond)

    async def scenario(api: ApiClient) -> None:
        busy = [asyncio.create_task(api.get(NODES, "n1", timeout=60)) for _ in range(MAX_REQUESTS_OF_A_RESOURCE)]
        await eventually_async(lambda: len(fake_api.requests) >= MAX_REQUESTS_OF_A_RESOURCE)
        with pytest.raises(
            UnavailableError,
            match=r"no response within 0\.1 s: waited for a free connection; pending requests: 6 of nodes",
        ):
            await api.get(NODES, "n1", timeout=0.1)
        respond.set()
        await asyncio.gather(*busy)
        await asyncio.gather(*(api.get(NODES, "n1", timeout=60) for _ in range(20)))

    run_scenario(scenario)


def test_hanging_reads_do_not_delay_writes_of_other_resources(fake_api: FakeApi, run_scenario: Any) -> None:
    respond = threading.Event()
    fake_api.hang(60, times=None, path="/resourceclaims/", when=respond)
    created = {"metadata": {"name": "s"}, "spec": {"nodeName": "n1", "driver": "d", "pool": {"name": "p"}}}

    async def scenario(api: ApiClient) -> None:
        reads = [asyncio.create_task(api.get(RESOURCE_CLAIMS, "c", "default", timeout=60)) for _ in range(50)]
        await eventually_async(lambda: len(fake_api.requests) >= MAX_REQUESTS_OF_A_RESOURCE)
        await api.create(RESOURCE_SLICES, created)
        respond.set()
        assert {type(error) for error in await asyncio.gather(*reads, return_exceptions=True)} == {NotFoundError}

    run_scenario(scenario)


def test_request_slots_are_fair_and_never_lost() -> None:
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
        granted = [number for number in order if bool(number % 3) == bool(resource)]
        assert granted == sorted(granted) and len(granted) > 5

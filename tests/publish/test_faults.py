"""After every fault of the API server the desired slices are published, and then nothing is written."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial
from typing import Any

import pytest

import tiers
from dra_agent.kube_client import NODES, connect
from dra_agent.publish import Publisher
from dra_agent.retry import Backoff
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from logged import logged_by
from publish.node import NODE, Node, device, devices, tainted, wait_until_published, wait_until_watched


@pytest.mark.parametrize("status", [409, 410, 422, 429, 500, 503, 401, 403])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_refused_request_is_retried(node: Node, monkeypatch: pytest.MonkeyPatch, status: int, method: str) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.set_devices(device(1), device(2, "nic"))

    async def scenario(publisher: Publisher) -> None:
        if method in ("GET", "POST"):
            node.api.fail(status, methods=method, times=2)
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)
        if method in ("PUT", "DELETE"):
            node.api.fail(status, methods=method, times=2)
            node.set_devices(*((device(1), device(3), device(2, "nic")) if method == "PUT" else (device(1),)))
            publisher.devices_changed()
            await eventually_async(lambda: node.writes().count(method) == 3)
        await wait_until_published(publisher)
        assert node.api.faults.pending == 0 and sum(publisher.reading().errors.values()) >= (method != "GET")

    node.run(scenario)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The duration in seconds of every backoff delay, in order."""
    delays: list[float] = []
    delay = Backoff.delay

    def record_delay(backoff: Backoff, error: BaseException | None = None) -> float:
        delays.append(delay(backoff, error))
        return delays[-1]

    monkeypatch.setattr(Backoff, "delay", record_delay)
    return delays


def test_retry_after_is_honored_when_devices_change(node: Node, pauses: list[float]) -> None:
    node.set_devices(device(1))
    node.api.fail(429, methods="POST", retry_after=1)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: publisher.reading().errors == {"throttled": 1})
        node.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: bool(node.slices()))

    node.run(scenario)
    first, second = node.api.writes()
    assert second.time - first.time >= 1.0
    assert len(pauses) == 1 and pauses[0] <= 1.1, "the requested delay and up to 10 % of jitter"


@pytest.mark.parametrize("status", [503, 422])
def test_a_change_during_a_failing_write_is_published_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The write failed for the previous devices: the taint of a reclaim does not wait for the end of that delay."""
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 600.0)
    node.set_devices(device(1))
    may_answer = threading.Event()
    node.api.fail(status, methods="POST", when=may_answer)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.writes()) == 1)
        node.set_devices(tainted(device(1), "leaving"))
        publisher.devices_changed()
        may_answer.set()
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        assert publisher.reading().problems == ()

    node.run(scenario)
    assert node.slices()[0]["spec"]["devices"][0]["taints"][0]["key"] == "x/leaving"


def test_publishing_unchanged_devices_does_not_shorten_a_delay(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 600.0)
    node.set_devices(device(1))
    may_answer = threading.Event()
    node.api.fail(503, methods="POST", when=may_answer)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.writes()) == 1)
        node.set_devices(device(1))
        publisher.devices_changed()
        may_answer.set()
        await eventually_async(lambda: publisher.reading().errors != {})
        async with connect(node.kubeconfig) as api:
            for _ in range(3):  # a retry would be on its way before these requests
                await api.get(NODES, NODE)
        assert len(node.writes()) == 1 and node.slices() == []

    node.run(scenario)


def test_retry_after_is_honored_when_devices_change_before_it(node: Node, pauses: list[float]) -> None:
    node.set_devices(device(1))
    may_answer = threading.Event()
    node.api.fail(429, methods="POST", retry_after=1, when=may_answer)
    changed_at: list[float] = []

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.writes()) == 1)
        node.set_devices(tainted(device(1), "leaving"))
        publisher.devices_changed()
        changed_at.append(time.monotonic())
        may_answer.set()
        await eventually_async(lambda: bool(node.slices()))

    node.run(scenario)
    assert node.api.writes()[1].time - changed_at[0] >= 1.0
    assert len(pauses) == 1 and pauses[0] <= 1.1, "the requested delay and up to 10 % of jitter"


@pytest.mark.parametrize("notice", ["after the response", "before the response"])
def test_a_notice_does_not_wait_for_retry_after(node: Node, notice: str) -> None:
    node.set_devices(device(1))
    node.api.fail(503, methods="POST", retry_after=300)
    node.is_urgent = notice == "before the response"

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: publisher.reading().errors != {})
        node.is_urgent = True
        node.set_devices(tainted(device(1), "leaving"))
        publisher.devices_changed()
        await eventually_async(lambda: bool(node.slices()))

    node.run(scenario)
    assert node.slices()[0]["spec"]["devices"][0]["taints"][0]["key"] == "x/leaving"


def test_a_notice_ends_the_pause_of_a_list(node: Node) -> None:
    node.set_devices(device(1))
    node.api.fail(503, methods="GET", path="/resourceslices", retry_after=300, times=2)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: node.api.faults.pending == 1)
        await eventually_async(lambda: publisher.reading().problems != ())
        node.is_urgent = True
        publisher.devices_changed()
        await eventually_async(lambda: bool(node.slices()))

    node.run(scenario)


def test_a_change_resets_the_backoff_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may accept the new devices although it refused the previous ones for an hour."""
    failures: list[int] = []

    def delay(backoff: Backoff, error: BaseException | None = None) -> float:
        failures.append(backoff.failures)
        backoff.failures += 1
        return 0.02

    monkeypatch.setattr("dra_agent.retry.Backoff.delay", delay)
    node.set_devices(device(1))
    node.api.fail(503, methods="POST", times=None)

    def failed_again(before: int) -> bool:
        return len(failures) > before

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(failures) > 4)
        node.set_devices(tainted(device(1), "leaving"))
        publisher.devices_changed()
        await eventually_async(lambda: failures.count(0) == 2)
        for _ in range(20):
            publisher.devices_changed()
            failed = len(failures)
            await eventually_async(partial(failed_again, failed))
        assert failures.count(0) == 2

    node.run(scenario)


def test_a_create_with_a_lost_response_is_not_repeated(node: Node) -> None:
    node.set_devices(device(1))
    node.api.reset(methods="POST", done=True)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_watched(node, publisher)

    node.run(scenario)
    assert node.writes() == ["POST"] and len(node.slices()) == 1


def test_a_create_that_the_watch_reports_late_is_not_repeated(node: Node) -> None:
    node.set_devices(*devices(70))
    node.api.hang(1.0, path="watch=true")

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)
        node.set_devices(*devices(71))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 71)
        await wait_until_watched(node, publisher)

    node.run(scenario)
    assert node.writes() == ["POST", "POST", "PUT"]


def test_a_hanging_create_that_succeeds_late_leaves_one_slice(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    completes = threading.Event()
    node.api.hang(600.0, methods="POST", when=completes)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: publisher.reading().lag_s == 0.0)
        with monkeypatch.context() as patch:
            patch.setattr("dra_agent.kube_client.http.TIMEOUT_S", 0.3)
            node.set_devices(device(1))
            publisher.devices_changed()
            await eventually_async(lambda: len(node.writes()) == 1)
        await eventually_async(lambda: len(node.slices()) == 1)  # created by the retry
        completes.set()
        await eventually_async(lambda: len(node.slices()) == 2 or "DELETE" in node.writes())
        await eventually_async(lambda: len(node.slices()) == 1)
        await wait_until_published(publisher)

    node.run(scenario)
    assert node.names() == ["gpu-0000-01-00-0"]


def test_a_failing_pool_does_not_affect_another(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 600.0)
    node.set_devices(device(1), device(2, "nic"))
    node.api.store.drop = refuse_gpus

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices(f"{NODE}/nic")))
        await eventually_async(lambda: any("no gpus here" in problem for problem in publisher.reading().problems))
        await eventually_async(lambda: publisher.reading().pending == (f"{NODE}/gpu",))
        node.set_devices(device(1), tainted(device(2, "nic"), "sick"))
        publisher.devices_changed()
        await eventually_async(lambda: "taints" in node.slices(f"{NODE}/nic")[0]["spec"]["devices"][0])
        assert any("no gpus here" in problem for problem in publisher.reading().problems)

    node.run(scenario)


def refuse_gpus(_: str, document: dict[str, Any]) -> None:
    from fake_apiserver.store import RefusedError

    if document.get("spec", {}).get("pool", {}).get("name", "").endswith("/gpu"):
        raise RefusedError(422, "Invalid", "no gpus here")


def test_a_hanging_pool_does_not_delay_another(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.kube_client.http.TIMEOUT_S", 600.0)
    node.set_devices(device(1), device(2, "nic"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)
        gpu_slice = node.slices(f"{NODE}/gpu")[0]["metadata"]["name"]
        node.api.hang(600.0, methods="PUT", path=gpu_slice)
        node.set_devices(tainted(device(1), "sick"), tainted(device(2, "nic"), "sick"))
        publisher.devices_changed()
        await eventually_async(lambda: "taints" in node.slices(f"{NODE}/nic")[0]["spec"]["devices"][0])

    node.run(scenario)


@tiers.PATIENCE
def test_changes_are_published_after_a_server_outage(node: Node) -> None:
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        await eventually_async(lambda: publisher.reading().lag_s == 0.0)
        await asyncio.to_thread(node.api.stop)
        node.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: publisher.reading().lag_s > 0.5)
        assert publisher.reading().pending == (f"{NODE}/gpu",)
        await eventually_async(lambda: any("no connection" in problem for problem in publisher.reading().problems))
        node.api.start()
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"])
        await wait_until_published(publisher)
        await eventually_async(lambda: publisher.reading().lag_s == 0.0)
        assert publisher.reading().problems == ()

    node.run(scenario)


def test_slices_deleted_during_an_outage_are_recreated(node: Node) -> None:
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        await asyncio.to_thread(node.api.stop)
        node.api.wipe()
        node.api.compact()
        await eventually_async(lambda: publisher.reading().lag_s > 0)
        node.api.start()
        await eventually_async(lambda: bool(node.slices()))

    node.run(scenario)


def test_an_expired_watch_is_followed_by_a_list(node: Node) -> None:
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        await eventually_async(lambda: any(request.watch for request in node.api.requests))
        node.api.put("nodes", {"metadata": {"name": "another"}})
        node.api.compact()
        node.clear_requests()
        node.api.end_watches()
        await eventually_async(
            lambda: any(not request.watch and not request.write for request in tuple(node.api.requests))
        )
        node.api.wipe()
        await eventually_async(lambda: bool(node.slices()))

    node.run(scenario)


def test_nothing_is_written_before_the_slices_are_listed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.set_devices(device(1))

    async def published(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)

    node.run(published)
    node.clear_requests()
    node.api.fail(500, methods="GET", path="resourceslices", times=3)

    async def adopted(publisher: Publisher) -> None:
        await eventually_async(lambda: publisher.reading().lag_s == 0.0)
        await wait_until_published(publisher)

    node.run(adopted)
    assert node.writes() == []


@tiers.PATIENCE
@pytest.mark.parametrize(
    ("inject", "message"),
    [
        (lambda api: api.html(times=None), "text/html instead of JSON"),
        (lambda api: api.fail(401, times=None), "has not expired"),
        (lambda api: api.fail(403, times=None), "grant this identity the permission"),
        (lambda api: api.fail(404, times=None), "Kubernetes 1.34"),
    ],
)
def test_an_unusable_server_is_logged_in_one_line(
    node: Node, caplog: pytest.LogCaptureFixture, inject: Any, message: str
) -> None:
    node.set_devices(device(1))
    inject(node.api)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(publisher.reading().problems))
        assert message in publisher.reading().problems[0]
        await eventually_async(lambda: len(node.api.requests) >= 2)
        node.api.faults.clear()
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        assert publisher.reading().problems == ()

    node.run(scenario)
    warnings = logged_by(caplog, "dra_agent", least=logging.WARNING)
    assert len(warnings) == 1, "logged once, not at every retry"
    assert not any(record.exc_info for record in caplog.records)


def test_responses_that_are_not_slices_are_rejected(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.set_devices(device(1))
    node.api.fail(201, body="{}", methods="POST")

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)

    node.run(scenario)


def test_no_request_is_sent_after_stop(node: Node, fake_api: FakeApi) -> None:
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await wait_until_published(publisher)  # no request is in flight
        await publisher.stop()
        node.clear_requests()
        node.set_devices(device(2))
        publisher.devices_changed()
        fake_api.wipe()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("publish")], "nothing can write"
        assert node.api.requests == []

    node.run(scenario)


def test_an_unexpected_error_stops_neither_its_pool_nor_another(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from dra_agent.publish.plan import Planner

    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    plan, fails = Planner.plan, [True]

    async def raise_once(self: Planner) -> Any:
        if fails[0] and self._pool.endswith("/gpu"):
            raise KeyError("unexpected")
        return await plan(self)

    monkeypatch.setattr(Planner, "plan", raise_once)
    node.set_devices(device(1), device(2, "nic"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices(f"{NODE}/nic")))
        await eventually_async(lambda: any("defect" in problem for problem in publisher.reading().problems))
        fails[0] = False
        await eventually_async(lambda: bool(node.slices(f"{NODE}/gpu")))
        await wait_until_published(publisher)

    node.run(scenario)


@pytest.mark.parametrize("body", ["{}", '{"metadata": null}', '{"metadata": {"uid": 7}}'])
def test_a_malformed_node_object_is_fetched_again(node: Node, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.api.fail(200, body=body, path="/nodes/")
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)

    node.run(scenario)


@pytest.mark.parametrize(
    "items",
    ["null", "[]", "[null]", "[7]", '[{"metadata": {}}]', '[{"metadata": {"name": "x", "uid": "u"}, "spec": {}}]'],
)
def test_a_malformed_list_is_harmless(node: Node, monkeypatch: pytest.MonkeyPatch, items: str) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.api.fail(200, body=f'{{"metadata": {{"resourceVersion": "1"}}, "items": {items}}}', path="limit=")
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)

    node.run(scenario)


@pytest.mark.parametrize(("status", "method"), [(401, ""), (403, "GET"), (403, "POST"), (500, ""), (422, "POST")])
def test_missing_permissions_are_distinguished_from_server_errors(
    node: Node, monkeypatch: pytest.MonkeyPatch, status: int, method: str
) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.set_devices(device(1))
    node.api.fail(status, methods=method, times=None)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(publisher.reading().problems))
        assert (publisher.refused is not None) == (status in (401, 403))
        node.api.faults.clear()
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        assert publisher.refused is None

    node.run(scenario)

"""Whatever the API server does, what is published becomes what should be, and then nothing is written."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from dra_agent.kube_client import Backoff
from dra_agent.publish import Publisher
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from logged import logged_by
from publish.node import DRIVER, NODE, Node, device, devices, settled, tainted


@pytest.mark.parametrize("status", [409, 410, 422, 429, 500, 503, 401, 403])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_refusal_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch, status: int, method: str) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.has(device(1), device(2, "nic"))

    async def story(publisher: Publisher) -> None:
        if method in ("GET", "POST"):
            node.api.fail(status, methods=method, times=2)
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)
        if method in ("PUT", "DELETE"):
            node.api.fail(status, methods=method, times=2)
            node.has(*((device(1), device(3), device(2, "nic")) if method == "PUT" else (device(1),)))
            publisher.devices_changed()
            await eventually_async(lambda: node.writes().count(method) == 3)
        await settled(publisher)
        assert node.api.faults.pending == 0 and sum(publisher.reading().errors.values()) >= (method != "GET")

    node.run(story)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every pause that the publisher makes, as it makes them."""
    made: list[float] = []
    delay = Backoff.delay

    def noted(backoff: Backoff, error: BaseException | None = None) -> float:
        made.append(delay(backoff, error))
        return made[-1]

    monkeypatch.setattr(Backoff, "delay", noted)
    return made


def test_retry_after_is_honoured_even_when_devices_change(node: Node, pauses: list[float]) -> None:
    node.has(device(1))
    node.api.fail(429, methods="POST", retry_after=1)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: publisher.reading().errors == {"throttled": 1})
        node.has(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: bool(node.slices()))

    node.run(story)
    first, second = node.api.writes()
    assert second.time - first.time >= 1.0
    assert len(pauses) == 1 and pauses[0] <= 1.1, "what was asked for, and a tenth"


@pytest.mark.parametrize("status", [503, 422])
def test_devices_that_change_during_a_write_that_fails_are_published_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """What failed is what was wanted before: the taint of a notice does not wait until its pause is over."""
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 600.0)
    node.has(device(1))
    answered = threading.Event()
    node.api.fail(status, methods="POST", when=answered)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.writes()) == 1)
        node.has(tainted(device(1), "leaving"))
        publisher.devices_changed()
        answered.set()
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        assert publisher.reading().problems == ()

    node.run(story)
    assert node.slices()[0]["spec"]["devices"][0]["taints"][0]["key"] == "x/leaving"


def test_a_call_to_publish_the_same_again_does_not_shorten_a_pause(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 600.0)
    node.has(device(1))
    answered = threading.Event()
    node.api.fail(503, methods="POST", when=answered)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.writes()) == 1)
        node.has(device(1))
        publisher.devices_changed()
        answered.set()
        await eventually_async(lambda: publisher.reading().errors != {})
        await asyncio.sleep(0.3)
        assert len(node.writes()) == 1 and node.slices() == []

    node.run(story)


def test_retry_after_is_honoured_even_when_devices_change_before_it_is_asked_for(
    node: Node, pauses: list[float]
) -> None:
    node.has(device(1))
    answered = threading.Event()
    node.api.fail(429, methods="POST", retry_after=1, when=answered)
    asked: list[float] = []

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.writes()) == 1)
        node.has(tainted(device(1), "leaving"))
        publisher.devices_changed()
        asked.append(time.monotonic())
        answered.set()
        await eventually_async(lambda: bool(node.slices()))

    node.run(story)
    assert node.api.writes()[1].time - asked[0] >= 1.0
    assert len(pauses) == 1 and pauses[0] <= 1.1, "what was asked for, and a tenth"


def test_a_change_begins_with_short_pauses_and_once_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that refused the last state for an hour may be back before that pause is over."""
    failures: list[int] = []

    def delay(backoff: Backoff, error: BaseException | None = None) -> float:
        failures.append(backoff.failures)
        backoff.failures += 1
        return 0.02

    monkeypatch.setattr("dra_agent.retry.Backoff.delay", delay)
    node.has(device(1))
    node.api.fail(503, methods="POST", times=None)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(failures) > 4)
        node.has(tainted(device(1), "leaving"))
        publisher.devices_changed()
        await eventually_async(lambda: failures.count(0) == 2)
        begun = len(failures)
        for _ in range(20):
            publisher.devices_changed()
            await asyncio.sleep(0.02)
        await eventually_async(lambda: len(failures) > begun + 4)
        assert failures.count(0) == 2

    node.run(story)


def test_a_creation_whose_answer_was_lost_is_not_done_twice(node: Node) -> None:
    node.has(device(1))
    node.api.reset(methods="POST", done=True)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        await asyncio.sleep(0.3)

    node.run(story)
    assert node.writes() == ["POST"] and len(node.slices()) == 1


def test_a_creation_that_the_watch_tells_late_is_not_done_twice(node: Node) -> None:
    node.has(*devices(70))
    node.api.hang(1.0, path="watch=true")

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)
        node.has(*devices(71))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 71)
        await asyncio.sleep(1.2)

    node.run(story)
    assert node.writes() == ["POST", "POST", "PUT"]


def test_a_creation_that_hangs_and_happens_after_all_ends_with_one_slice(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    happens = threading.Event()
    node.api.hang(600.0, methods="POST", when=happens)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: publisher.reading().lag_s == 0.0)
        with monkeypatch.context() as short:
            short.setattr("dra_agent.kube_client.http.TIMEOUT_S", 0.3)
            node.has(device(1))
            publisher.devices_changed()
            await eventually_async(lambda: len(node.writes()) == 1)
        await eventually_async(lambda: len(node.slices()) == 1)  # by the second try
        happens.set()
        await eventually_async(lambda: len(node.slices()) == 2 or "DELETE" in node.writes())
        await eventually_async(lambda: len(node.slices()) == 1)
        await settled(publisher)

    node.run(story)
    assert node.names() == ["gpu-0000-01-00-0"]


def test_trouble_in_one_pool_does_not_touch_another(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 600.0)
    node.has(device(1), device(2, "nic"))
    node.api.store.drop = refuse_gpus

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices(f"{NODE}/nic")))
        await eventually_async(lambda: any("no gpus here" in problem for problem in publisher.reading().problems))
        await eventually_async(lambda: publisher.reading().pending == (f"{NODE}/gpu",))
        node.has(device(1), tainted(device(2, "nic"), "sick"))
        publisher.devices_changed()
        await eventually_async(lambda: "taints" in node.slices(f"{NODE}/nic")[0]["spec"]["devices"][0])
        assert any("no gpus here" in problem for problem in publisher.reading().problems)

    node.run(story)


def refuse_gpus(_: str, document: dict[str, Any]) -> None:
    from fake_apiserver.store import RefusedError

    if document.get("spec", {}).get("pool", {}).get("name", "").endswith("/gpu"):
        raise RefusedError(422, "Invalid", "no gpus here")


def test_a_pool_that_hangs_does_not_hold_up_another(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.kube_client.http.TIMEOUT_S", 600.0)
    node.has(device(1), device(2, "nic"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)
        gpu = node.slices(f"{NODE}/gpu")[0]["metadata"]["name"]
        node.api.hang(600.0, methods="PUT", path=gpu)
        node.has(tainted(device(1), "sick"), tainted(device(2, "nic"), "sick"))
        publisher.devices_changed()
        await eventually_async(lambda: "taints" in node.slices(f"{NODE}/nic")[0]["spec"]["devices"][0])

    node.run(story)


def test_a_server_that_is_away_is_caught_up_with(node: Node) -> None:
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        await eventually_async(lambda: publisher.reading().lag_s == 0.0)
        await asyncio.to_thread(node.api.stop)
        node.has(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: publisher.reading().lag_s > 0.5)
        assert publisher.reading().pending == (f"{NODE}/gpu",)
        await eventually_async(lambda: any("no connection" in problem for problem in publisher.reading().problems))
        node.api.start()
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"])
        await settled(publisher)
        await eventually_async(lambda: publisher.reading().lag_s == 0.0)
        assert publisher.reading().problems == ()

    node.run(story)


def test_slices_that_vanish_while_the_server_is_away_are_back(node: Node) -> None:
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        await asyncio.to_thread(node.api.stop)
        node.api.wipe()
        node.api.compact()
        await asyncio.sleep(0.3)
        node.api.start()
        await eventually_async(lambda: bool(node.slices()))

    node.run(story)


def test_a_history_that_is_too_short_means_a_new_list(node: Node) -> None:
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        await eventually_async(lambda: any(seen.watch for seen in node.api.requests))
        node.api.put("nodes", {"metadata": {"name": "somebody"}})
        node.api.compact()
        node.api.end_watches()
        await asyncio.sleep(0.2)
        node.api.wipe()
        await eventually_async(lambda: bool(node.slices()))

    node.run(story)


def test_nothing_is_written_before_what_is_published_is_known(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.has(device(1))

    async def published(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)

    node.run(published)
    node.forget()
    node.api.fail(500, methods="GET", path="resourceslices", times=3)

    async def adopted(publisher: Publisher) -> None:
        await eventually_async(lambda: publisher.reading().lag_s == 0.0)
        await settled(publisher)

    node.run(adopted)
    assert node.writes() == []


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lambda api: api.html(times=None), "text/html instead of JSON"),
        (lambda api: api.fail(401, times=None), "has not expired"),
        (lambda api: api.fail(403, times=None), "grant this identity the right"),
        (lambda api: api.fail(404, times=None), "Kubernetes 1.34"),
    ],
)
def test_a_server_that_cannot_be_used_is_told_in_one_line(
    node: Node, caplog: pytest.LogCaptureFixture, wrong: Any, complaint: str
) -> None:
    node.has(device(1))
    wrong(node.api)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(publisher.reading().problems))
        assert complaint in publisher.reading().problems[0]
        await eventually_async(lambda: len(node.api.requests) >= 2)
        node.api.faults.clear()
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        assert publisher.reading().problems == ()

    node.run(story)
    warnings = logged_by(caplog, "dra_agent", least=logging.WARNING)
    assert len(warnings) == 1, "said once, not at each try"
    assert not any(record.exc_info for record in caplog.records)


def test_answers_that_are_no_slices_are_not_believed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.has(device(1))
    node.api.fail(201, body="{}", methods="POST")

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)

    node.run(story)


def test_the_server_is_asked_for_nothing_after_stop(node: Node, fake_api: FakeApi) -> None:
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        await settled(publisher)  # no request is on its way
        await publisher.stop()
        node.forget()
        node.has(device(2))
        publisher.devices_changed()
        fake_api.wipe()
        await asyncio.sleep(0.5)
        assert node.api.requests == [] and DRIVER

    node.run(story)


def test_a_defect_in_one_pool_ends_neither_it_nor_another(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from dra_agent.publish.plan import Planner

    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    plan, broken = Planner.plan, [True]

    async def defective(self: Planner) -> Any:
        if broken[0] and self._pool.endswith("/gpu"):
            raise KeyError("nobody thought of this")
        return await plan(self)

    monkeypatch.setattr(Planner, "plan", defective)
    node.has(device(1), device(2, "nic"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices(f"{NODE}/nic")))
        await eventually_async(lambda: any("defect" in problem for problem in publisher.reading().problems))
        broken[0] = False
        await eventually_async(lambda: bool(node.slices(f"{NODE}/gpu")))
        await settled(publisher)

    node.run(story)


@pytest.mark.parametrize("body", ["{}", '{"metadata": null}', '{"metadata": {"uid": 7}}'])
def test_a_node_that_is_none_is_asked_for_again(node: Node, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.api.fail(200, body=body, path="/nodes/")
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)

    node.run(story)


@pytest.mark.parametrize(
    "items",
    ["null", "[]", "[null]", "[7]", '[{"metadata": {}}]', '[{"metadata": {"name": "x", "uid": "u"}, "spec": {}}]'],
)
def test_a_list_of_nonsense_harms_nothing(node: Node, monkeypatch: pytest.MonkeyPatch, items: str) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.api.fail(200, body=f'{{"metadata": {{"resourceVersion": "1"}}, "items": {items}}}', path="limit=")
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)

    node.run(story)


@pytest.mark.parametrize(("status", "method"), [(401, ""), (403, "GET"), (403, "POST"), (500, ""), (422, "POST")])
def test_what_an_identity_lacks_is_told_apart_from_a_server_in_trouble(
    node: Node, monkeypatch: pytest.MonkeyPatch, status: int, method: str
) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.05)
    node.has(device(1))
    node.api.fail(status, methods=method, times=None)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(publisher.reading().problems))
        assert (publisher.refused is not None) == (status in (401, 403))
        node.api.faults.clear()
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        assert publisher.refused is None

    node.run(story)

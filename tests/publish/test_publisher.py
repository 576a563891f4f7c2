"""Slices are published with the fewest writes, and stay published."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any

import msgspec
import pytest

from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import Backoff
from dra_agent.publish import Publisher
from dra_agent.slices import EncodedSlices, SliceRequest
from eventually import eventually_async
from publish.node import DRIVER, NODE, Node, device, devices, settled, tainted


def test_slices_are_owned_by_the_node_and_named_by_index(node: Node) -> None:
    uid = node.register()
    node.has(device(2), device(1), device(3, "nic"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)
        assert publisher.reading().writes == {"create": 2, "update": 0, "delete": 0}
        assert publisher.reading().slices == 2 and publisher.reading().last_write is not None

    node.run(story)
    gpus, nics = (node.slices(f"{NODE}/{family}")[0] for family in ("gpu", "nic"))
    assert gpus["metadata"]["name"].startswith(f"00000-{DRIVER}-{NODE}-")
    assert gpus["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": True}
    ]
    assert (gpus["spec"]["driver"], gpus["spec"]["nodeName"]) == (DRIVER, NODE)
    assert gpus["spec"]["pool"] == {"name": f"{NODE}/gpu", "generation": 1, "resourceSliceCount": 1}
    assert node.names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"]
    assert nics["spec"]["devices"][0]["name"] == "nic-0000-03-00-0"
    listed = next(seen for seen in node.api.requests if seen.path.endswith("resourceslices") and not seen.write)
    assert listed.query["fieldSelector"] == f"spec.driver={DRIVER},spec.nodeName={NODE}"


def test_nothing_is_written_while_nothing_changes(node: Node) -> None:
    node.has(*devices(3))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        await eventually_async(lambda: any(seen.watch for seen in node.api.requests))
        await asyncio.sleep(0.2)
        node.forget()
        for _ in range(5):
            publisher.devices_changed()
            publisher.kubelet_registered()
            await asyncio.sleep(0.05)
        assert node.api.requests == []

    node.run(story)


def test_a_successor_adopts_the_slices_unchanged(node: Node) -> None:
    node.has(*devices(70), tainted(device(80), "sick"))

    async def published(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)

    node.run(published)
    before = copy.deepcopy(node.slices())
    node.forget()

    async def adopted(publisher: Publisher) -> None:
        await settled(publisher)
        await asyncio.sleep(0.3)

    node.run(adopted)
    assert node.slices() == before and node.writes() == []


def test_one_changed_device_is_one_write_in_place(node: Node) -> None:
    node.has(*devices(208))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 4)
        await settled(publisher)
        node.forget()
        node.has(*devices(100), tainted(device(100), "sick"), *(device(n) for n in range(101, 208)))
        publisher.devices_changed()
        await settled(publisher)

    node.run(story)
    assert node.writes() == ["PUT"]
    assert {o["spec"]["pool"]["generation"] for o in node.slices()} == {1}
    (taint,) = (taint for o in node.slices() for entry in o["spec"]["devices"] for taint in entry.get("taints", ()))
    assert taint["timeAdded"], "the server's time is kept"


def test_more_than_one_changed_slice_is_a_new_generation(node: Node) -> None:
    node.has(*devices(128))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)
        node.has(*(tainted(found, "sick") for found in devices(128)))
        publisher.devices_changed()
        await eventually_async(lambda: {o["spec"]["pool"]["generation"] for o in node.slices()} == {2})

    node.run(story)
    assert len(node.names()) == 128


def test_a_pool_that_has_lost_its_last_device_is_removed(node: Node) -> None:
    node.has(device(1), device(2, "nic"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)
        node.forget()
        node.has(device(1))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.slices()) == 1)
        node.has(device(1), device(2, "nic"))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.slices()) == 2)

    node.run(story)
    assert node.writes() == ["DELETE", "POST"]
    assert node.api.writes()[0].body["preconditions"].keys() == {"uid", "resourceVersion"}


def test_slices_of_a_pool_that_nobody_knows_are_removed_and_those_of_others_kept(node: Node) -> None:
    def other(name: str, **spec: Any) -> dict[str, Any]:
        pool = {"name": "left-behind", "generation": 1, "resourceSliceCount": 1}
        return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, **spec}}

    node.api.put("resourceslices", other("a"))
    node.api.put("resourceslices", other("b", nodeName="n2"))
    node.api.put("resourceslices", other("c", driver="other.example.com"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)

    node.run(story)
    assert [o["metadata"]["name"] for o in node.slices()] == ["b", "c"]


def test_slices_that_a_kubelet_wipes_are_back_when_it_has_registered(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the pause after yet another disturbance would be."""
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 600.0)
    node.has(*devices(130), device(200, "nic"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 4)
        await settled(publisher)
        for _ in range(3):
            node.forget()
            assert node.api.wipe() == 4
            await eventually_async(lambda: publisher.slices() == [])
            assert len(publisher.reading().pending) == 2
            publisher.kubelet_registered()
            await eventually_async(lambda: len(node.slices()) == 4 and len(node.names()) == 130)
            await settled(publisher)
            assert sorted(node.writes()) == ["POST"] * 4, "nothing is created twice"

    node.run(story)


def test_slices_that_a_kubelet_wipes_after_it_has_registered_are_back(node: Node) -> None:
    node.has(*devices(130), device(200, "nic"))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 4)
        await settled(publisher)
        for _ in range(3):
            node.forget()
            publisher.kubelet_registered()
            assert node.api.wipe() == 4
            await eventually_async(lambda: len(node.slices()) == 4 and len(node.names()) == 130)
            await settled(publisher)
            assert node.writes().count("POST") == 4, "nothing is created twice"

    node.run(story)


def test_who_deletes_again_and_again_is_answered_ever_more_slowly(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def delay(backoff: Backoff, error: BaseException | None = None) -> float:
        steps.append(backoff.failures)
        backoff.failures += 1
        return 0.01

    monkeypatch.setattr(Backoff, "delay", delay)
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        for _ in range(7):
            await eventually_async(lambda: bool(node.slices()))
            await settled(publisher)
            node.api.wipe()
            await eventually_async(lambda: publisher.slices() == [])
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        assert steps == list(range(7)), "each pause is a step longer"
        publisher.kubelet_registered()
        node.api.wipe()
        await eventually_async(lambda: len(steps) == 8 and bool(node.slices()))
        assert steps[-1] == 0

    node.run(story)
    assert sum("repeatedly changes" in record.message for record in caplog.records) == 1


def test_what_somebody_else_changes_is_put_back(node: Node) -> None:
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        await asyncio.sleep(0.2)
        (found,) = node.slices()
        node.forget()
        changed = copy.deepcopy(found)
        changed["spec"]["devices"] = []
        changed["metadata"]["labels"] = {"theirs": "stays"}
        del changed["metadata"]["ownerReferences"]
        node.api.put("resourceslices", changed)
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        assert node.writes() == ["PUT"]
        (mended,) = node.slices()
        assert mended["metadata"]["labels"] == {"theirs": "stays"}
        assert mended["metadata"]["ownerReferences"] == found["metadata"]["ownerReferences"]

    node.run(story)


def test_a_node_that_is_made_anew_owns_the_slices_anew(node: Node) -> None:
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        node.api.remove("nodes", NODE)
        uid = node.register()
        node.api.wipe()
        await eventually_async(lambda: bool(node.slices()))
        assert node.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == uid

    node.run(story)


def test_slices_of_another_node_object_get_the_right_owner(node: Node) -> None:
    node.has(*devices(70))

    async def published(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)

    node.run(published)
    node.api.remove("nodes", NODE)
    uid = node.register()
    node.forget()

    async def mended(publisher: Publisher) -> None:
        await eventually_async(lambda: all(o["metadata"]["ownerReferences"][0]["uid"] == uid for o in node.slices()))
        await settled(publisher)

    node.run(mended)
    assert node.writes() == ["PUT", "PUT"]
    assert {o["spec"]["pool"]["generation"] for o in node.slices()} == {1}


def test_without_a_node_object_nothing_is_written_until_it_is_there(node: Node) -> None:
    node.has(device(1))
    node.api.remove("nodes", NODE)

    async def story(publisher: Publisher) -> None:
        await eventually_async(
            lambda: any("there is no Node 'n1'" in problem for problem in publisher.reading().problems)
        )
        assert node.writes() == [] and publisher.reading().pending == (f"{NODE}/gpu",)
        uid = node.register()
        await eventually_async(lambda: bool(node.slices()))
        assert node.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == uid
        await settled(publisher)
        assert publisher.reading().problems == ()

    node.run(story)


def test_only_the_instance_that_may_write_does(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.publish.pool.STANDBY_INTERVAL_S", 0.05)
    node.has(device(1))
    node.is_leader = False

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: any(seen.watch for seen in node.api.requests))
        publisher.devices_changed()
        await asyncio.sleep(0.3)
        assert node.writes() == [] and publisher.reading().pending == (f"{NODE}/gpu",)
        node.is_leader = True
        await eventually_async(lambda: bool(node.slices()))

    node.run(story)


def test_a_device_that_the_api_would_refuse_is_left_out_and_counted(node: Node) -> None:
    from dra_agent.inventory.api import Attribute

    bad = device(2)
    bad.attributes.update({f"attribute{n}": Attribute.of(n) for n in range(40)})
    node.inventory = Inventory(devices=(device(1), bad))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await settled(publisher)
        assert publisher.reading().unpublishable == 1

    node.run(story)


def test_devices_that_change_all_the_time_are_no_trouble(node: Node) -> None:
    async def story(publisher: Publisher) -> None:
        for number in range(300):
            node.has(*devices(3 + number % 2))
            publisher.devices_changed()
            while sum(publisher.reading().writes.values()) <= number:
                await asyncio.sleep(0)
        await settled(publisher)
        assert publisher.reading().errors == {}

    node.run(story)


def test_devices_that_change_at_the_very_moment_of_a_retry_are_settled(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.2)
    node.has(device(1))
    node.api.fail(500, methods="POST")

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: publisher.reading().errors != {})
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # a loop this busy finds the retry due and the change in one turn
        asyncio.get_running_loop().call_soon(publisher.devices_changed)
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)

    node.run(story)


def test_a_change_of_nothing_that_is_published_draws_no_slices(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[int] = []
    draw = SliceRequest.slices

    def counted(drawing: SliceRequest) -> EncodedSlices:
        draws.append(1)
        return draw(drawing)

    monkeypatch.setattr(SliceRequest, "slices", counted)
    node.has(*devices(70))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await settled(publisher)
        node.forget()
        before = len(draws)
        for health in ("unmonitored", "healthy"):
            node.has(*(msgspec.structs.replace(found, health=health) for found in devices(70)))
            publisher.devices_changed()
            await asyncio.sleep(0.2)
        assert len(draws) == before
        node.has(*devices(69))
        publisher.devices_changed()
        await eventually_async(lambda: bool(node.writes()))
        assert len(draws) > before

    node.run(story)


def test_the_watch_may_tell_of_a_write_before_it_is_answered(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """That is no disturbance by somebody else: what comes after it is neither late nor called a quarrel."""
    node.api.late(0.1, times=None, methods="POST PUT DELETE")

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: any(seen.watch for seen in node.api.requests))
        for number in range(6):
            node.has(*devices(1 + number % 2))
            publisher.devices_changed()
            await eventually_async(lambda: sum(publisher.reading().writes.values()) > number)  # noqa: B023
            await settled(publisher)
            assert len(node.names()) == 1 + number % 2
        node.api.wipe()
        await eventually_async(lambda: bool(node.slices()))

    node.run(story)
    assert "repeatedly changes" not in caplog.text


def test_somebody_elses_change_during_a_write_is_put_back(node: Node) -> None:
    node.has(device(1))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await settled(publisher)
        node.api.late(0.3, methods="PUT")
        node.has(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 2)
        (found,) = node.slices()
        del found["spec"]["devices"][0]
        node.api.put("resourceslices", found)
        await eventually_async(lambda: len(node.names()) == 2)
        await settled(publisher)

    node.run(story)

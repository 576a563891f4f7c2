"""Slices are published with few writes, and are restored after changes by others."""

from __future__ import annotations

import asyncio
import copy
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent import retry
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import connect
from dra_agent.publish import Publisher
from dra_agent.retry import Backoff
from dra_agent.slices import EncodedSlices, SliceRequest
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from logged import logged_by
from publish.node import DRIVER, NODE, Node, device, devices, tainted, wait_until_published, wait_until_watched


def test_slices_are_owned_by_the_node_and_named_by_index(node: Node) -> None:
    uid = node.register()
    node.set_devices(device(2), device(1), device(3, "nic"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)
        assert publisher.reading().writes == {"create": 2, "update": 0, "delete": 0}
        assert publisher.reading().slices == 2 and publisher.reading().last_write is not None

    node.run(scenario)
    gpus, nics = (node.slices(f"{NODE}/{family}")[0] for family in ("gpu", "nic"))
    assert gpus["metadata"]["name"].startswith(f"00000-{DRIVER}-{NODE}-")
    assert gpus["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": True}
    ]
    assert (gpus["spec"]["driver"], gpus["spec"]["nodeName"]) == (DRIVER, NODE)
    assert gpus["spec"]["pool"] == {"name": f"{NODE}/gpu", "generation": 1, "resourceSliceCount": 1}
    assert node.names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"]
    assert nics["spec"]["devices"][0]["name"] == "nic-0000-03-00-0"
    reads = [request for request in node.api.requests if request.path.endswith("resourceslices") and not request.write]
    (listed,) = [request for request in reads if not request.watch]
    assert listed.query["fieldSelector"] == f"spec.nodeName={NODE}"


def test_nothing_is_written_while_nothing_changes(node: Node) -> None:
    node.set_devices(*devices(3))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        await wait_until_watched(node, publisher)
        node.clear_requests()
        for _ in range(5):
            publisher.devices_changed()
            publisher.kubelet_registered()
            await wait_until_published(publisher)
        assert node.api.requests == []

    node.run(scenario)


def test_a_restarted_agent_adopts_the_slices_unchanged(node: Node) -> None:
    node.set_devices(*devices(70), tainted(device(80), "sick"))

    async def published(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)

    node.run(published)
    before = copy.deepcopy(node.slices())
    node.clear_requests()

    async def adopted(publisher: Publisher) -> None:
        await wait_until_published(publisher)
        assert node.slices() == before
        await wait_until_watched(node, publisher)

    node.run(adopted)
    assert node.writes() == []


def test_one_changed_device_is_updated_in_place(node: Node) -> None:
    node.set_devices(*devices(208))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 4)
        await wait_until_published(publisher)
        node.clear_requests()
        node.set_devices(*devices(100), tainted(device(100), "sick"), *(device(number) for number in range(101, 208)))
        publisher.devices_changed()
        await wait_until_published(publisher)

    node.run(scenario)
    assert node.writes() == ["PUT"]
    assert {slice_["spec"]["pool"]["generation"] for slice_ in node.slices()} == {1}
    (taint,) = (
        taint for slice_ in node.slices() for entry in slice_["spec"]["devices"] for taint in entry.get("taints", ())
    )
    assert taint["timeAdded"], "the time set by the server is kept"


def test_two_changed_slices_start_a_new_generation(node: Node) -> None:
    node.set_devices(*devices(128))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)
        node.set_devices(*(tainted(device_, "sick") for device_ in devices(128)))
        publisher.devices_changed()
        await eventually_async(lambda: {slice_["spec"]["pool"]["generation"] for slice_ in node.slices()} == {2})

    node.run(scenario)
    assert len(node.names()) == 128


def test_a_pool_without_devices_is_deleted(node: Node) -> None:
    node.set_devices(device(1), device(2, "nic"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)
        node.clear_requests()
        node.set_devices(device(1))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.slices()) == 1)
        node.set_devices(device(1), device(2, "nic"))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.slices()) == 2)

    node.run(scenario)
    assert node.writes() == ["DELETE", "POST"]
    assert node.api.writes()[0].body["preconditions"].keys() == {"uid", "resourceVersion"}


def test_devices_move_to_the_pool_of_their_group(node: Node) -> None:
    node.set_devices(device(1), device(2))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await wait_until_published(publisher)
        node.set_devices(device(1, pool_group="l40s"), device(2, pool_group="h100"))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.slices()) == 2 and not node.slices(f"{NODE}/gpu"))
        await wait_until_published(publisher)

    node.run(scenario)
    assert node.names(f"{NODE}/l40s/gpu") == [device(1).name]
    assert node.names(f"{NODE}/h100/gpu") == [device(2).name]


def test_unknown_pools_of_this_driver_and_node_are_deleted(node: Node) -> None:
    def foreign_slice(name: str, **spec: Any) -> dict[str, Any]:
        pool = {"name": "left-behind", "generation": 1, "resourceSliceCount": 1}
        return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, **spec}}

    node.api.put("resourceslices", foreign_slice("a"))
    node.api.put("resourceslices", foreign_slice("b", nodeName="n2"))
    node.api.put("resourceslices", foreign_slice("c", driver="other.example.com"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)

    node.run(scenario)
    assert [slice_["metadata"]["name"] for slice_ in node.slices()] == ["b", "c"]


def test_wiped_slices_are_recreated_when_the_kubelet_registers(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any backoff delay after an earlier change."""
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 600.0)
    node.set_devices(*devices(130), device(200, "nic"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 4)
        await wait_until_published(publisher)
        for _ in range(3):
            node.clear_requests()
            assert node.api.wipe() == 4
            await eventually_async(lambda: publisher.slices() == [])
            assert len(publisher.reading().pending) == 2
            publisher.kubelet_registered()
            await eventually_async(lambda: len(node.slices()) == 4 and len(node.names()) == 130)
            await wait_until_published(publisher)
            assert sorted(node.writes()) == ["POST"] * 4, "nothing is created twice"

    node.run(scenario)


def test_slices_wiped_after_registration_are_recreated(node: Node) -> None:
    node.set_devices(*devices(130), device(200, "nic"))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 4)
        await wait_until_published(publisher)
        for _ in range(3):
            node.clear_requests()
            publisher.kubelet_registered()
            assert node.api.wipe() == 4
            await eventually_async(lambda: len(node.slices()) == 4 and len(node.names()) == 130)
            await wait_until_published(publisher)
            assert node.writes().count("POST") == 4, "nothing is created twice"

    node.run(scenario)


def test_repeated_deletions_are_answered_with_growing_delays(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def delay(backoff: Backoff, error: BaseException | None = None) -> float:
        steps.append(backoff.failures)
        backoff.failures += 1
        return 0.01

    monkeypatch.setattr(Backoff, "delay", delay)
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        for _ in range(7):
            await eventually_async(lambda: bool(node.slices()))
            await wait_until_published(publisher)
            node.api.wipe()
            await eventually_async(lambda: publisher.slices() == [])
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        assert steps == list(range(7)), "each delay is one step longer"
        publisher.kubelet_registered()
        node.api.wipe()
        await eventually_async(lambda: len(steps) == 8 and bool(node.slices()))
        assert steps[-1] == 0

    node.run(scenario)
    assert sum("repeatedly changes" in record.message for record in caplog.records) == 1


def test_a_slice_that_was_deleted_unseen_is_created_again(node: Node) -> None:
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 1)
        await wait_until_published(publisher)
        node.api.fail(503, times=None, methods="GET", path="watch=true")
        node.api.end_watches()
        await eventually_async(lambda: publisher.reading().lag_s > 0)
        # As after the deletion of the Node, with which its slices are deleted.
        node.api.wipe()
        node.api.remove("nodes", NODE)
        uid = node.register()
        node.clear_requests()
        node.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 2)
        assert node.writes() == ["PUT", "POST"]
        assert node.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == uid
        assert publisher.device_names() == set(node.names())
        await eventually_async(lambda: not publisher.reading().pending)
        assert not any("gpu" in problem for problem in publisher.reading().problems)

    node.run(scenario)


def test_a_creation_that_is_not_found_is_a_failure(node: Node) -> None:
    node.set_devices(device(1))
    node.api.fail(404, methods="POST")

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 1)
        await wait_until_published(publisher)
        assert publisher.reading().errors == {"not_found": 1}

    node.run(scenario)
    assert node.writes() == ["POST", "POST"]


def test_other_owners_of_a_slice_are_kept(node: Node) -> None:
    node.set_devices(device(1))
    added = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
    controller = {"apiVersion": "v1", "kind": "ReplicaSet", "name": "r", "uid": "v", "controller": True}

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 1)
        await wait_until_published(publisher)
        (found,) = node.slices()
        found["metadata"]["ownerReferences"] += [added, controller]
        found["metadata"]["labels"] = {"of": "another"}
        node.api.put("resourceslices", found)
        node.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 2)
        await wait_until_published(publisher)

    node.run(scenario)
    (slice_,) = node.slices()
    assert sorted(owner["kind"] for owner in slice_["metadata"]["ownerReferences"]) == ["ConfigMap", "Node"], (
        "an object has at most one controller"
    )
    assert slice_["metadata"]["labels"] == {"of": "another"}


def test_a_repeated_failure_is_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.set_devices(device(1))
    node.api.fail(500, times=2, methods="POST")

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 1)
        await wait_until_published(publisher)
        node.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 2)
        await wait_until_published(publisher)

    with caplog.at_level("INFO"):
        node.run(scenario)
    messages = [record.getMessage() for record in logged_by(caplog, "dra_agent.publish")]
    assert messages.count("slices cannot be published, trying again") == 1
    assert messages.count("slices are published again") == 1
    assert "slices are followed again" not in messages, "the watch did not fail"


def test_one_urgent_change_ends_one_pause(fake_api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the list would be retried without a pause for as long as the server fails."""
    monkeypatch.setattr(retry, "URGENT_RETRY_S", 0.2)
    urgent, times = False, []

    def lists() -> list[float]:
        return [seen.time for seen in fake_api.requests if seen.path.endswith("/resourceslices") and not seen.watch]

    async def main() -> None:
        nonlocal urgent, times
        async with connect(fake_api.kubeconfig(tmp_path / "kubeconfig")) as api:
            publisher = Publisher(api, node=NODE, driver=DRIVER, inventory=Inventory, urgent=lambda: urgent)
            await publisher.start()
            await eventually_async(lambda: any(seen.watch for seen in fake_api.requests))
            urgent = True
            publisher.devices_changed()
            fake_api.fail(410, times=None, methods="GET", path="watch=true")
            fake_api.fail(503, times=None, methods="GET", path="/resourceslices")
            fake_api.end_watches()
            await eventually_async(lambda: len(lists()) >= 4)
            times = lists()
            await publisher.stop()

    asyncio.run(main())
    assert times[3] - times[1] > 2 * 0.5 * 0.2, "two pauses of at least half of it"


def test_foreign_changes_of_a_slice_are_reverted(node: Node) -> None:
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_watched(node, publisher)
        (found,) = node.slices()
        node.clear_requests()
        changed = copy.deepcopy(found)
        changed["spec"]["devices"] = []
        changed["metadata"]["labels"] = {"theirs": "stays"}
        del changed["metadata"]["ownerReferences"]
        node.api.put("resourceslices", changed)
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        assert node.writes() == ["PUT"]
        (restored,) = node.slices()
        assert restored["metadata"]["labels"] == {"theirs": "stays"}
        assert restored["metadata"]["ownerReferences"] == found["metadata"]["ownerReferences"]

    node.run(scenario)


def test_slices_of_a_recreated_node_get_the_new_owner(node: Node) -> None:
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        node.api.remove("nodes", NODE)
        uid = node.register()
        node.api.wipe()
        await eventually_async(lambda: bool(node.slices()))
        assert node.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == uid

    node.run(scenario)


def test_slices_of_a_previous_node_object_get_the_new_owner(node: Node) -> None:
    node.set_devices(*devices(70))

    async def published(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)

    node.run(published)
    node.api.remove("nodes", NODE)
    uid = node.register()
    node.clear_requests()

    async def restored(publisher: Publisher) -> None:
        await eventually_async(
            lambda: all(slice_["metadata"]["ownerReferences"][0]["uid"] == uid for slice_ in node.slices())
        )
        await wait_until_published(publisher)

    node.run(restored)
    assert node.writes() == ["PUT", "PUT"]
    assert {slice_["spec"]["pool"]["generation"] for slice_ in node.slices()} == {1}


def test_a_new_owner_and_changed_devices_are_one_write(node: Node) -> None:
    async def published(publisher: Publisher) -> None:
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == len(node.inventory.devices))
        await wait_until_published(publisher)

    node.set_devices(device(1))
    node.run(published)
    node.api.remove("nodes", NODE)
    uid = node.register()
    node.set_devices(device(1), device(2))
    node.clear_requests()
    node.run(published)
    assert node.writes() == ["PUT"]
    assert [owner["uid"] for owner in node.slices()[0]["metadata"]["ownerReferences"]] == [uid]


def test_after_a_stop_nothing_is_started(node: Node) -> None:
    async def scenario(publisher: Publisher) -> None:
        await publisher.stop()
        node.set_devices(device(1))
        publisher.devices_changed()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("publish")]

    node.run(scenario)
    assert node.slices() == []


def test_nothing_is_written_before_the_node_object_exists(node: Node) -> None:
    node.set_devices(device(1))
    node.api.remove("nodes", NODE)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(
            lambda: any("there is no Node 'n1'" in problem for problem in publisher.reading().problems)
        )
        assert node.writes() == [] and publisher.reading().pending == (f"{NODE}/gpu",)
        assert publisher.reading().writes == {"create": 0, "update": 0, "delete": 0}
        uid = node.register()
        await eventually_async(lambda: bool(node.slices()))
        assert node.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == uid
        await wait_until_published(publisher)
        assert publisher.reading().problems == ()

    node.run(scenario)


def test_only_the_leader_writes_slices(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.publish.pool.STANDBY_INTERVAL_S", 0.05)
    node.set_devices(device(1))
    node.is_leader = False

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: any(request.watch for request in node.api.requests))
        publisher.devices_changed()
        before = node.leader_checks
        await eventually_async(lambda: node.leader_checks > before + 3)
        assert node.writes() == [] and publisher.reading().pending == (f"{NODE}/gpu",)
        node.is_leader = True
        await eventually_async(lambda: bool(node.slices()))

    node.run(scenario)


def test_an_invalid_device_is_left_out_and_counted(node: Node) -> None:
    from dra_agent.inventory.api import Attribute

    invalid = device(2)
    invalid.attributes.update({f"attribute{number}": Attribute.of(number) for number in range(40)})
    node.inventory = Inventory(devices=(device(1), invalid))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0"])
        await wait_until_published(publisher)
        assert publisher.reading().unpublishable == 1

    node.run(scenario)


def test_constantly_changing_devices_cause_no_errors(node: Node) -> None:
    async def scenario(publisher: Publisher) -> None:
        for number in range(300):
            node.set_devices(*devices(3 + number % 2))
            publisher.devices_changed()
            while sum(publisher.reading().writes.values()) <= number:
                await asyncio.sleep(0)
        await wait_until_published(publisher)
        assert publisher.reading().errors == {}

    node.run(scenario)


def test_a_change_at_the_moment_of_a_retry_is_published(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.retry.Backoff.delay", lambda self, error=None: 0.2)
    node.set_devices(device(1))
    node.api.fail(500, methods="POST")

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: publisher.reading().errors != {})
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # the blocked loop finds the retry due and the change in one iteration
        asyncio.get_running_loop().call_soon(publisher.devices_changed)
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)

    node.run(scenario)


def test_changes_of_unpublished_fields_encode_no_slices(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    encodings: list[int] = []
    encode = SliceRequest.slices

    def count_encodings(request: SliceRequest) -> EncodedSlices:
        encodings.append(1)
        return encode(request)

    monkeypatch.setattr(SliceRequest, "slices", count_encodings)
    node.set_devices(*devices(70))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)
        node.clear_requests()
        before = len(encodings)
        for health in ("unmonitored", "healthy"):
            node.set_devices(*(msgspec.structs.replace(device_, health=health) for device_ in devices(70)))
            publisher.devices_changed()
            await wait_until_published(publisher)
        assert len(encodings) == before
        node.set_devices(*devices(69))
        publisher.devices_changed()
        await eventually_async(lambda: bool(node.writes()))
        assert len(encodings) > before

    node.run(scenario)


def test_a_watch_event_may_precede_the_response_to_the_write(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Such an event is not a foreign change: later changes are neither delayed nor reported as a conflict."""
    node.api.late(0.1, times=None, methods="POST PUT DELETE")

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: any(request.watch for request in node.api.requests))
        for number in range(6):
            node.set_devices(*devices(1 + number % 2))
            publisher.devices_changed()
            await eventually_async(lambda: sum(publisher.reading().writes.values()) > number)  # noqa: B023
            await wait_until_published(publisher)
            assert len(node.names()) == 1 + number % 2
        node.api.wipe()
        await eventually_async(lambda: bool(node.slices()))

    node.run(scenario)
    assert "repeatedly changes" not in caplog.text


def test_a_foreign_change_during_a_write_is_reverted(node: Node) -> None:
    node.set_devices(device(1))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: bool(node.slices()))
        await wait_until_published(publisher)
        node.api.late(0.3, methods="PUT")
        node.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 2)
        (found,) = node.slices()
        del found["spec"]["devices"][0]
        node.api.put("resourceslices", found)
        await eventually_async(lambda: len(node.names()) == 2)
        await wait_until_published(publisher)

    node.run(scenario)

"""Claims of nominated pods: prepared, reported, released; failures, restarts, and what the agent may not do."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from binding.conftest import FAILED, FAILURE, NODE, PREPARED, SUCCESS, Stage
from dra_agent.errors import RetryableError
from dra_agent.inventory.model import Device, Inventory
from dra_agent.kube_client import ApiClient
from eventually import DEADLINE_S, eventually_async
from prepare.simulated_node import DRIVER, partition


def test_a_claim_is_prepared_before_its_pod_is_bound(stage: Stage) -> None:
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: any("resourceclaims" in seen.path for seen in stage.api.requests))
            stage.allocate("a", "gpu-0", "gpu-1")  # after the nomination, as the scheduler does
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": SUCCESS, "gpu-1": SUCCESS})
            assert stage.node.hardware == {"gpu-0": "uid-a", "gpu-1": "uid-a"} and stage.ahead() == ["a"]
            stage.bind("pod")
            claim = stage.api.store.get("resourceclaims", "default", "a")
            stage.node.preparer.prepare(claim)
            assert stage.ahead() == []
            assert stage.node.usable("uid-a")
            assert stage.node.partitions.calls == ["set_up", "set_up"], "the second one only checks"

    stage.run(scenario)
    (write,) = [seen for seen in stage.api.writes() if "resourceclaims" in seen.path]
    assert write.path.endswith("/resourceclaims/a/status") and write.query["fieldManager"] == f"{DRIVER}/binding"
    assert set(write.body["status"]) == {"devices"} and write.body["metadata"]["uid"] == "uid-a"
    lists = [seen for seen in stage.api.requests if seen.path.endswith("/pods")]
    assert {seen.query["fieldSelector"] for seen in lists} == {f"spec.nodeName=,status.nominatedNodeName={NODE}"}


@pytest.mark.parametrize("reference", ["template", "extended resource"])
def test_generated_claims_are_found(stage: Stage, reference: str) -> None:
    stage.allocate("made", "gpu-0")
    status: dict[str, Any] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]}
    if reference == "extended resource":
        status = {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": []}}
    stage.nominate("pod", **status)

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.conditions("made") == {"gpu-0": SUCCESS})

    stage.run(scenario)


@pytest.mark.parametrize("case", ["other node", "bound", "without conditions", "of another driver"])
def test_other_claims_are_left_alone(stage: Stage, case: str) -> None:
    more: dict[str, Any] = {}
    if case == "without conditions":
        more = {"bindingConditions": None}
    if case == "of another driver":
        more = {"driver": "other.example.com"}
    stage.allocate("other", "gpu-0", **more)
    stage.nominate("pod", "other", node="node-9" if case == "other node" else NODE)
    if case == "bound":
        stage.bind("pod")
    stage.allocate("own", "gpu-1")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            stage.nominate("second", "own")
            await eventually_async(lambda: stage.conditions("own") == {"gpu-1": SUCCESS})

    stage.run(scenario)
    assert stage.conditions("other") == {} and "gpu-0" not in stage.node.hardware


def test_a_failure_is_reported_once_and_after_the_taint(stage: Stage) -> None:
    stage.allocate("a", "gpu-0", fail=True, timestamp="2020-01-01T00:00:00Z")
    stage.nominate("pod", "a")
    reported: list[dict[str, Any]] = []
    stage.taints.on_failed = lambda: reported.append(stage.conditions("a"))

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client, timeout_s=1.0):
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": FAILURE})
            await eventually_async(lambda: stage.api.objects("events"))

    stage.run(scenario)
    assert reported == [{}], "the scheduler would choose the device again"
    assert "no room for the partition" in stage.message("a") and f"node {NODE}" in stage.message("a")
    assert "no room" in stage.taints.tainted["gpu-0"]
    assert stage.node.hardware == {} and stage.node.ledger.entries() == []
    (event,) = stage.api.objects("events")
    assert event["reason"] == "PrepareFailed" and event["regarding"]["name"] == "a"


def test_an_invalid_claim_taints_no_device(stage: Stage) -> None:
    """Otherwise one claim could taint the devices of all nodes, one after the other."""
    stage.allocate("a", "gpu-0", size=9)
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": FAILURE})

    stage.run(scenario)
    assert "size: at most 7" in stage.message("a") and stage.taints.tainted == {}
    assert stage.node.partitions.calls == []


def test_the_claim_is_prepared_as_the_kubelet_would_request_it(stage: Stage) -> None:
    """With the configuration that its pods request: the kubelet's request would prepare it again otherwise."""
    stage.more_config = [partition(5)]
    stage.allocate("a", "gpu-0", size=2)
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": SUCCESS})

    stage.run(scenario)
    (entry,) = stage.node.ledger.entries()
    assert [step["parameters"]["size"] for step in entry.payload["setups"]] == [5]


def test_a_node_that_is_being_reclaimed_refuses_at_once(stage: Stage) -> None:
    stage.refusal = "the node is being reclaimed"
    stage.allocate("a", "gpu-0")
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": FAILURE})

    stage.run(scenario)
    assert "being reclaimed" in stage.message("a") and stage.taints.tainted == {}
    assert stage.node.partitions.calls == []


def test_a_success_ends_an_earlier_failure(stage: Stage) -> None:
    stage.taints.tainted = {"gpu-0": "no room", "gpu-1": "no room"}
    stage.allocate("a", "gpu-0")
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.taints.tainted == {"gpu-1": "no room"})
            assert stage.conditions("a") == {"gpu-0": SUCCESS}

    stage.run(scenario)


@pytest.mark.parametrize("end", ["deallocated", "deleted", "replaced", "allocated elsewhere"])
def test_a_pod_that_goes_elsewhere_leaves_nothing(stage: Stage, end: str) -> None:
    stage.allocate("a", "gpu-0")
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": SUCCESS})
            stage.api.remove("pods", "pod", "default")
            if end == "deallocated":
                stage.deallocate("a")
            elif end == "allocated elsewhere":
                stage.deallocate("a")
                stage.allocate("a", "gpu-3", pool="node-9/gpu")
            else:
                stage.api.remove("resourceclaims", "a", "default")
                if end == "replaced":
                    stage.api.put("resourceclaims", {"metadata": {"name": "a", "namespace": "default", "uid": "new"}})
            await eventually_async(lambda: stage.node.hardware == {} and stage.node.ledger.entries() == [])

    stage.run(scenario)
    assert stage.node.specs.claims() == {}


def test_an_unavailable_api_server_releases_nothing(stage: Stage) -> None:
    stage.allocate("a", "gpu-0")
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": SUCCESS})
            absent = json.dumps({"kind": "Status", "message": "the server could not find the requested resource"})
            stage.api.fail(404, times=None, methods="GET", path="resourceclaims", body=absent)
            before = len(stage.api.requests)
            await eventually_async(lambda: len(stage.api.requests) > before + 5)
            assert stage.ahead() == ["a"]

    stage.run(scenario)


def test_the_next_allocation_of_a_claim_is_reported_again(stage: Stage) -> None:
    stage.allocate("a", "gpu-0")
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": SUCCESS})
            stage.deallocate("a")
            stage.allocate("a", "gpu-2")
            await eventually_async(lambda: stage.conditions("a") == {"gpu-2": SUCCESS})
            await eventually_async(lambda: stage.node.hardware == {"gpu-2": "uid-a"})

    stage.run(scenario)


def test_a_restarted_agent_continues(stage: Stage) -> None:
    """A claim that was prepared and not reported is reported; one that was reported is not prepared again."""
    stage.allocate("a", "gpu-0")
    stage.allocate("b", "gpu-1")
    stage.nominate("pod", "a", "b")
    stage.node.preparer.prepare_ahead(stage.api.store.get("resourceclaims", "default", "a"))
    stage.node.crash_and_restart()

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": SUCCESS})
            await eventually_async(lambda: stage.conditions("b") == {"gpu-1": SUCCESS})
        calls = len(stage.node.partitions.calls)
        stage.node.crash_and_restart()
        async with stage.service(client):
            stage.allocate("c", "gpu-2")
            stage.nominate("third", "c")
            await eventually_async(lambda: stage.conditions("c") == {"gpu-2": SUCCESS})
        assert len(stage.node.partitions.calls) == calls + 1

    stage.run(scenario)


def test_claims_of_removed_rules_are_released_without_the_watch(stage: Stage) -> None:
    stage.allocate("a", "gpu-0")
    stage.node.preparer.prepare_ahead(stage.api.store.get("resourceclaims", "default", "a"))
    stage.deallocate("a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client, follows_pods=False) as service:
            await eventually_async(lambda: stage.node.ledger.entries() == [])
            assert not service.is_ready

    stage.run(scenario)
    assert not [seen for seen in stage.api.requests if seen.path.endswith("/pods")]


def test_only_the_leader_acts(stage: Stage) -> None:
    stage.leads = False
    stage.allocate("a", "gpu-0")
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client) as service:
            await eventually_async(lambda: service.is_ready)
            assert stage.node.partitions.calls == []
            stage.leads = True
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": SUCCESS})

    stage.run(scenario)


def inventory() -> Inventory:
    return Inventory(devices=(Device("gpu-0", "gpu", "amd", "0000:01:00.0", {}, prepare_ahead=True),))


def has_conditions(service: Any) -> bool:
    (device,) = service.inventory(inventory)().devices
    return bool(device.binding_conditions)


def test_devices_carry_conditions_only_while_pods_can_be_seen(stage: Stage) -> None:
    fault = stage.api.fail(403, times=None, path="/pods")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client) as service:
            await eventually_async(lambda: service.problem)
            assert "bindingConditions of the chart" in service.problem
            assert not has_conditions(service) and stage.changes == []
            stage.api.faults.lift(fault)
            await eventually_async(lambda: has_conditions(service))
            assert stage.changes == [True]

    stage.run(scenario)


@pytest.mark.parametrize("reason", ["forbidden", "dropped"])
def test_conditions_that_cannot_be_written_are_not_published(stage: Stage, reason: str) -> None:
    if reason == "forbidden":
        stage.api.fail(403, times=None, methods="PATCH", path="/status")
    else:
        stage.api.drop_fields(lambda plural, found: found.get("status", {}).pop("devices", None))
    stage.allocate("a", "gpu-0")
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client) as service:
            await eventually_async(lambda: stage.changes[-1:] == [False])
            assert service.problem and not has_conditions(service)

    stage.run(scenario)


def test_a_set_up_that_succeeds_later_is_repeated(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.binding.attempt.FIRST_PAUSE_S", 0.01)
    stage.allocate("a", "gpu-0")
    stage.nominate("pod", "a")
    failures = [RetryableError("busy"), RetryableError("busy")]
    set_up = stage.node.partitions.set_up

    def busy(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return set_up(*given)

    monkeypatch.setattr(stage.node.partitions, "set_up", busy)

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: stage.conditions("a") == {"gpu-0": SUCCESS})

    stage.run(scenario)
    assert failures == [] and stage.taints.tainted == {}


def test_a_slow_claim_does_not_delay_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.allocate("slow", "gpu-0")
    stage.allocate("quick", "gpu-1")
    stage.nominate("pod", "slow")
    stage.nominate("second", "quick")
    gate = threading.Event()
    set_up = stage.node.partitions.set_up

    def slow(uid: str, *given: Any) -> Any:
        if uid == "uid-slow":
            assert gate.wait(DEADLINE_S)
        return set_up(uid, *given)

    monkeypatch.setattr(stage.node.partitions, "set_up", slow)

    async def scenario(client: ApiClient) -> None:
        try:
            async with stage.service(client):
                await eventually_async(lambda: stage.conditions("quick") == {"gpu-1": SUCCESS})
                assert stage.conditions("slow") == {}
                gate.set()
                await eventually_async(lambda: stage.conditions("slow") == {"gpu-0": SUCCESS})
        finally:
            gate.set()

    stage.run(scenario)


def test_other_conditions_of_the_device_are_kept(stage: Stage) -> None:
    stage.allocate("a", "gpu-0")
    ready = {"type": "Ready", "status": "True", "reason": "Healthy", "message": "", "lastTransitionTime": None}
    claim = stage.api.store.get("resourceclaims", "default", "a")
    entry = {"driver": DRIVER, "pool": f"{NODE}/gpu", "device": "gpu-0", "conditions": [ready], "data": {"key": 1}}
    stage.api.set_status("resourceclaims", "default", "a", {**claim["status"], "devices": [entry]})
    stage.nominate("pod", "a")

    async def scenario(client: ApiClient) -> None:
        async with stage.service(client):
            await eventually_async(lambda: len(stage.conditions("a")["gpu-0"]) == 3)

    stage.run(scenario)
    assert stage.conditions("a") == {"gpu-0": {"Ready": "True", PREPARED: "True", FAILED: "False"}}
    (stored,) = stage.api.store.get("resourceclaims", "default", "a")["status"]["devices"]
    assert stored["data"] == {"key": 1}

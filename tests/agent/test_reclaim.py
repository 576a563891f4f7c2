"""A real agent in Kubernetes mode on a node that is reclaimed, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.conftest import AgentProcess, ServiceManager, Start
from agent.test_kubernetes_mode import DRIVER, allocate, prepare, registered, unprepare
from dra_agent.errors import AgentError
from dra_agent.reclaim import control
from dra_agent.reclaim.control import Cancel, Request, Status
from dra_agent.reclaim.control import Start as Begin
from eventually import eventually
from fake_apiserver.fake import FakeApi

KEY = f"{DRIVER}/reclaim"


class ReclaimEnvironment:
    """An agent, its API server, and the control socket."""

    def __init__(self, start: Start, api: FakeApi, state: Path, kubelet: Path, kubeconfig: Path) -> None:
        self._start = start
        self.api = api
        self.state = state
        self.kubelet = kubelet
        self._kubeconfig = kubeconfig

    def agent(self, **options: Any) -> AgentProcess:
        connection = ("--kubelet-dir", str(self.kubelet), "--kubeconfig", str(self._kubeconfig))
        self._agent = self._start("--no-standalone", *connection, "--metrics-address", "127.0.0.1:0", **options).ready()
        return self._agent

    def send(self, request: Request) -> dict[str, Any]:
        response: dict[str, Any] = control.send_request(self.state, request)
        return response

    def devices(self) -> list[dict[str, Any]]:
        """Return the published devices."""
        return [device for slice_ in self.api.objects("resourceslices") for device in slice_["spec"]["devices"]]

    def effects(self) -> set[str]:
        devices = self.devices()
        effects_by_device = [
            [taint["effect"] for taint in device.get("taints", []) if taint["key"] == KEY] for device in devices
        ]
        return {effect for device_effects in effects_by_device for effect in device_effects or [""]}

    def wait_until(self, condition: Callable[[], object]) -> None:
        eventually(condition, self._agent.log_text)

    def reasons(self) -> set[str]:
        return {event["reason"] for event in self.api.objects("events")}


@pytest.fixture
def environment(start: Start, fake_api: FakeApi, state: Path, short_path: Path, tmp_path: Path) -> ReclaimEnvironment:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})
    return ReclaimEnvironment(start, fake_api, state, short_path / "k", fake_api.kubeconfig(tmp_path / "kubeconfig"))


def test_a_notice_from_taint_to_release(environment: ReclaimEnvironment) -> None:
    claim = allocate(environment.api, "one")
    agent = environment.agent()

    async def scenario() -> None:
        async with registered(environment.kubelet) as driver:
            first = await prepare(driver, claim)
            assert not first.error
            environment.wait_until(lambda: environment.effects() == {""})
            assert environment.send(Begin("notice", 60.0, "a test"))["phase"] == "notice"
            environment.wait_until(lambda: environment.effects() == {"NoExecute"})
            other = allocate(environment.api, "two", "nic-0000-00-05-0")
            assert "this node is being reclaimed (operator: a test)" in (await prepare(driver, other)).error
            assert await prepare(driver, claim) == first, "a repeated prepare gets the same response"
            assert await unprepare(driver, claim) == ""

    asyncio.run(scenario())
    states = {"one": "unprepared", "two": "refused"}
    environment.wait_until(
        lambda: {claim_["name"]: claim_["state"] for claim_ in environment.send(Status())["claims"]} == states
    )
    for name in states:
        environment.api.set_status("resourceclaims", "default", name, {})
    environment.wait_until(lambda: environment.send(Status())["complete"])
    environment.wait_until(lambda: {"ReclaimNotice", "ClaimsReleased"} <= environment.reasons())
    metrics = agent.get("/metrics")[1]
    assert 'dra_agent_reclaim_claims{state="released"} 2.0' in metrics
    assert "dra_agent_reclaim_taint_publish_duration_seconds" in metrics
    assert environment.send(Cancel())["phase"] == "cancelled"
    environment.wait_until(lambda: environment.effects() == {""})
    environment.wait_until(lambda: "ReclaimCancelled" in environment.reasons())


def test_a_stop_waits_until_the_kubelet_has_unprepared_claims(
    environment: ReclaimEnvironment, service_manager: ServiceManager
) -> None:
    claim = allocate(environment.api, "one")
    agent = environment.agent(environment={"NOTIFY_SOCKET": str(service_manager.path)})

    async def scenario() -> None:
        async with registered(environment.kubelet) as driver:
            assert not (await prepare(driver, claim)).error
            environment.send(Begin("notice", 600.0))
            agent.process.send_signal(signal.SIGTERM)
            agent.wait_for("claims must be released first")
            environment.wait_until(
                lambda: any(message.startswith("EXTEND_TIMEOUT_USEC=") for message in service_manager.status_messages())
            )
            assert "STOPPING=1" not in service_manager.status_messages()
            assert agent.process.poll() is None
            assert await unprepare(driver, claim) == ""

    asyncio.run(scenario())
    assert agent.process.wait(60) == 0


NEVER_CHECKS = "from dra_agent.agent import agent; agent.DRAIN_CHECK_INTERVAL_S = 3600.0"
"""Leaves an agent nothing but events to end the wait for claims."""


def test_the_release_of_the_last_claim_ends_the_wait(environment: ReclaimEnvironment) -> None:
    claim = allocate(environment.api, "one")
    agent = environment.agent(patch=NEVER_CHECKS)

    async def scenario() -> None:
        async with registered(environment.kubelet) as driver:
            assert not (await prepare(driver, claim)).error
            environment.send(Begin("notice", 7200.0))
            agent.process.send_signal(signal.SIGTERM)
            agent.wait_for("claims must be released first")
            assert await unprepare(driver, claim) == ""

    asyncio.run(scenario())
    assert agent.process.wait(60) == 0


def test_the_end_of_a_notice_ends_the_wait(environment: ReclaimEnvironment) -> None:
    agent = waiting_agent(environment, patch=NEVER_CHECKS)
    environment.send(Cancel())
    assert agent.process.wait(60) == 0


def waiting_agent(environment: ReclaimEnvironment, **options: Any) -> AgentProcess:
    """Return an agent whose stop waits for a claim that is prepared during a notice."""
    claim = allocate(environment.api, "one")
    agent = environment.agent(**options)

    async def scenario() -> None:
        async with registered(environment.kubelet) as driver:
            assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    environment.send(Begin("notice", 600.0))
    agent.process.send_signal(signal.SIGTERM)
    agent.wait_for("claims must be released first")
    return agent


def test_a_second_signal_ends_the_wait(environment: ReclaimEnvironment) -> None:
    agent = waiting_agent(environment, patch=NEVER_CHECKS)
    assert agent.end(signal.SIGTERM) == 0


def test_the_wait_ends_at_the_deadline(environment: ReclaimEnvironment) -> None:
    agent = waiting_agent(environment)
    # The earlier of two deadlines applies; on a slow machine the response may come too late.
    start = time.monotonic()
    with contextlib.suppress(AgentError):
        environment.send(Begin("notice", 3.0))
    assert agent.process.wait(60) == 0
    assert time.monotonic() - start > 0.5


def test_without_claims_or_notice_a_stop_does_not_wait(environment: ReclaimEnvironment) -> None:
    agent = environment.agent()
    environment.send(Begin("notice", 60.0))
    environment.wait_until(lambda: environment.send(Status())["complete"])
    assert agent.end() == 0 and "must be released first" not in agent.log_text()
    restarted = environment.agent()
    environment.send(Cancel())
    assert restarted.end() == 0 and "must be released first" not in restarted.log_text()


def unschedulable(environment: ReclaimEnvironment) -> object:
    (node,) = [node_ for node_ in environment.api.objects("nodes") if node_["metadata"]["name"] == "node-a"]
    return node.get("spec", {}).get("unschedulable", False)


def test_the_node_is_cordoned_where_configured(environment: ReclaimEnvironment, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[reclaim]\ncordon = true\n")
    variables = {"DRA_AGENT_CONFIG": str(config)}
    agent = environment.agent(environment=variables)
    assert unschedulable(environment) is False
    environment.api.fail(503, times=2, methods="PATCH", path="/nodes/")
    environment.send(Begin("notice", 60.0))
    environment.wait_until(lambda: unschedulable(environment) is True)
    # The notice is canceled while the agent is not running: the next run removes the cordon.
    agent.end(signal.SIGKILL)
    (environment.state / "reclaim.json").unlink()
    restarted = environment.agent(environment=variables)
    environment.wait_until(lambda: unschedulable(environment) is False)
    environment.send(Begin("notice", 60.0))
    environment.wait_until(lambda: unschedulable(environment) is True)
    environment.send(Cancel())
    environment.wait_until(lambda: unschedulable(environment) is False)
    assert restarted.end() == 0


def test_a_missing_permission_to_cordon_does_not_stop_the_rest(environment: ReclaimEnvironment, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[reclaim]\ncordon = true\n")
    environment.api.fail(403, times=None, methods="PATCH", path="/nodes/")
    agent = environment.agent(environment={"DRA_AGENT_CONFIG": str(config)})
    environment.send(Begin("notice", 60.0))
    agent.wait_for("the cordon of the node is not written")
    agent.wait_for("the condition of the node is not written")
    environment.wait_until(lambda: environment.effects() == {"NoExecute"})
    environment.wait_until(lambda: environment.send(Status())["complete"])
    environment.send(Cancel())
    environment.wait_until(lambda: environment.effects() == {""})
    environment.wait_until(lambda: withdrawn(environment))
    assert agent.log_text().count("of the node is not written") == 2, "each error is logged once"


def withdrawn(environment: ReclaimEnvironment) -> bool:
    """Return whether a request would have removed the cordon, and another one withdrawn the condition."""
    bodies = [request.body for request in environment.api.writes() if "/nodes/" in request.path]
    conditions = [one for body in bodies for one in body.get("status", {}).get("conditions", ())]
    return any(not body.keys() & {"spec", "status"} for body in bodies) and any(
        one["status"] == "False" for one in conditions
    )


def node_patches(environment: ReclaimEnvironment) -> list[str]:
    return [request.path for request in environment.api.writes() if "/nodes/" in request.path]


def condition(environment: ReclaimEnvironment) -> dict[str, Any]:
    (node,) = [node_ for node_ in environment.api.objects("nodes") if node_["metadata"]["name"] == "node-a"]
    node_ = [
        condition_
        for condition_ in node.get("status", {}).get("conditions", [])
        if condition_["type"] == f"{DRIVER}/ReclaimNotice"
    ]
    return dict(node_[0]) if node_ else {}


def test_a_node_condition_announces_the_reclaim(environment: ReclaimEnvironment) -> None:
    foreign_conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m"}]
    environment.api.set_status("nodes", "", "node-a", {"conditions": foreign_conditions})
    agent = environment.agent()
    assert node_patches(environment) == [], "without a reclaim nothing is written"
    environment.send(Begin("hint", 60.0))
    environment.wait_until(lambda: environment.effects() == {"NoSchedule"})
    assert condition(environment) == {}
    environment.send(Begin("notice", 60.0, "a test"))
    environment.wait_until(lambda: condition(environment).get("status") == "True")
    announced = condition(environment)
    assert announced["reason"] == "Operator" and "(operator: a test)" in announced["message"]
    assert announced["message"].startswith("the node is reclaimed at 20")
    # After SIGKILL the next run keeps the condition and its time.
    agent.end(signal.SIGKILL)
    restarted = environment.agent()
    environment.wait_until(lambda: environment.send(Status())["complete"])
    environment.wait_until(lambda: len(node_patches(environment)) == 2)
    assert condition(environment) == announced
    environment.send(Cancel())
    environment.wait_until(lambda: condition(environment)["status"] == "False")
    assert condition(environment)["reason"] == "Cancelled"
    # After a reboot the notice no longer applies, and the condition is removed.
    environment.send(Begin("notice", 60.0, "the end"))
    environment.wait_until(lambda: condition(environment)["status"] == "True")
    restarted.end(signal.SIGKILL)
    (environment.state / "reclaim.json").unlink()
    environment.agent()
    environment.wait_until(lambda: condition(environment)["reason"] == "NothingAnnounced")
    (node,) = [found for found in environment.api.objects("nodes") if found["metadata"]["name"] == "node-a"]
    assert foreign_conditions[0] in node["status"]["conditions"]


def test_taints_are_written_before_the_condition(environment: ReclaimEnvironment) -> None:
    environment.agent()
    environment.wait_until(lambda: environment.effects() == {""})
    environment.api.hang(3.0, methods="PATCH", path="/nodes/")
    environment.send(Begin("notice", 60.0))
    environment.wait_until(lambda: environment.effects() == {"NoExecute"})
    environment.wait_until(lambda: condition(environment).get("status") == "True")
    paths = [request.path for request in environment.api.writes()]
    first = next(number for number, path in enumerate(paths) if "/nodes/" in path)
    assert sum("/resourceslices" in path for path in paths[:first]) >= 2


@pytest.mark.parametrize("named", [True, False])
def test_by_default_the_node_is_cordoned_for_claims_named_by_pods(environment: ReclaimEnvironment, named: bool) -> None:
    claim = allocate(environment.api, "one")
    if not named:
        (claim_,) = environment.api.objects("resourceclaims")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
        environment.api.put(
            "resourceclaims", {**claim_, "metadata": {**claim_["metadata"], "ownerReferences": [owner]}}
        )
    agent = environment.agent()

    async def scenario() -> None:
        async with registered(environment.kubelet) as driver:
            assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    environment.send(Begin("notice", 60.0))
    environment.wait_until(lambda: environment.effects() == {"NoExecute"})
    if not named:
        environment.wait_until(lambda: environment.send(Status())["claims"][0]["state"] == "prepared")
        reads = [request for request in environment.api.requests if request.path.endswith("/resourceclaims/one")]
        # The claim as it was read the first time is handled before the second time.
        environment.wait_until(
            lambda: (
                sum(request.path.endswith("/resourceclaims/one") for request in tuple(environment.api.requests))
                >= len(reads) + 2
            )
        )
        environment.send(Cancel())
        environment.wait_until(lambda: condition(environment)["status"] == "False")
        bodies = [request.body for request in environment.api.writes() if "/nodes/" in request.path]
        assert bodies and not any("unschedulable" in (body.get("spec") or {}) for body in bodies)
        return
    environment.wait_until(lambda: unschedulable(environment) is True)
    # The notice is canceled after SIGKILL: the next run removes the cordon.
    agent.end(signal.SIGKILL)
    restarted = environment.agent()
    environment.send(Cancel())
    environment.wait_until(lambda: unschedulable(environment) is False)
    assert restarted.end() == 0


@pytest.mark.parametrize("granted", [True, False])
def test_a_pod_with_a_long_grace_period_is_evicted_before_the_taint(
    environment: ReclaimEnvironment, tmp_path: Path, granted: bool
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[reclaim]\nevict = "delete"\n')
    claims = [allocate(environment.api, "one"), allocate(environment.api, "two", "nic-0000-00-05-0")]
    for claim, pod, grace in zip(claims, ("p", "short"), (600, 1), strict=True):
        spec = {"nodeName": "node-a", "terminationGracePeriodSeconds": grace}
        pod_ = environment.api.put("pods", {"metadata": {"name": pod, "namespace": "default"}, "spec": spec})
        (claim_,) = [
            object_ for object_ in environment.api.objects("resourceclaims") if object_["metadata"]["name"] == claim[1]
        ]
        reserved = [{"resource": "pods", "name": pod, "uid": pod_["metadata"]["uid"]}]
        environment.api.set_status("resourceclaims", "default", claim[1], {**claim_["status"], "reservedFor": reserved})
    # The taint waits for the evictions as long as they take, also on a slow machine.
    patch = "from dra_agent.reclaim import drain\ndrain.AHEAD = 60.0"
    environment.agent(environment={"DRA_AGENT_CONFIG": str(config)}, patch=patch)

    async def scenario() -> None:
        async with registered(environment.kubelet) as driver:
            for claim in claims:
                assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    # Claims are processed in order: a request for the second pod means that the first one is known.
    environment.wait_until(
        lambda: [request for request in environment.api.requests if request.path.endswith("/pods/short")]
    )
    # A slice that is created after the notice has the taint from the start.
    environment.wait_until(lambda: len(environment.devices()) == 2)
    if not granted:
        environment.api.fail(403, times=None, methods="POST", path="/eviction")
    environment.send(Begin("notice", 300.0))
    environment.wait_until(lambda: environment.effects() == {"NoExecute"})
    path = "/api/v1/namespaces/default/pods/p"
    # An eviction adds the condition DisruptionTarget; without permission for it the pod is deleted.
    expected = [("POST", f"{path}/eviction"), *([] if granted else [("DELETE", path)])]
    notice_writes = [
        request for request in environment.api.writes() if "/pods/" in request.path or KEY in json.dumps(request.body)
    ]
    writes = notice_writes[: len(expected)]
    assert [(request.method, request.path) for request in writes] == expected
    options = writes[0].body["deleteOptions"] if granted else writes[-1].body
    assert 200 < options["gracePeriodSeconds"] <= 298


def test_events_are_in_order_when_a_notice_is_canceled_at_once(environment: ReclaimEnvironment) -> None:
    environment.agent()
    environment.wait_until(lambda: environment.effects() == {""})
    environment.api.fail(503, times=None, methods="PUT", path="/resourceslices")
    environment.send(Begin("notice", 60.0))
    environment.send(Cancel())
    environment.wait_until(lambda: {"ReclaimNotice", "ReclaimCancelled"} <= environment.reasons())
    times = {event["reason"]: event["eventTime"] for event in environment.api.objects("events")}
    assert times["ReclaimNotice"] <= times["ReclaimCancelled"]

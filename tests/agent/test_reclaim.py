"""A real agent of Kubernetes on a host that is being taken: a kubelet asks, and somebody tells the agent to stop."""

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


class World:
    """An agent, its API server, and the socket by which operators speak to it."""

    def __init__(self, start: Start, api: FakeApi, state: Path, kubelet: Path, kubeconfig: Path) -> None:
        self._start = start
        self.api = api
        self.state = state
        self.kubelet = kubelet
        self._kubeconfig = kubeconfig

    def agent(self, **how: Any) -> AgentProcess:
        where = ("--kubelet-dir", str(self.kubelet), "--kubeconfig", str(self._kubeconfig))
        self._is_newest = self._start("--no-standalone", *where, "--metrics-address", "127.0.0.1:0", **how).ready()
        return self._is_newest

    def ask(self, request: Request) -> dict[str, Any]:
        answer: dict[str, Any] = control.send_request(self.state, request)
        return answer

    def effects(self) -> set[str]:
        devices = [device for one in self.api.objects("resourceslices") for device in one["spec"]["devices"]]
        found = [[taint["effect"] for taint in device.get("taints", []) if taint["key"] == KEY] for device in devices]
        return {effect for effects in found for effect in effects or [""]}

    def until(self, what: Callable[[], object]) -> None:
        eventually(what, self._is_newest.said)

    def reasons(self) -> set[str]:
        return {event["reason"] for event in self.api.objects("events")}


@pytest.fixture
def world(start: Start, fake_api: FakeApi, state: Path, short_path: Path, tmp_path: Path) -> World:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})
    return World(start, fake_api, state, short_path / "k", fake_api.kubeconfig(tmp_path / "kubeconfig"))


def test_a_notice_from_taint_to_release(world: World) -> None:
    claim = allocate(world.api, "one")
    agent = world.agent()

    async def scenario() -> None:
        async with registered(world.kubelet) as driver:
            first = await prepare(driver, claim)
            assert not first.error
            world.until(lambda: world.effects() == {""})
            assert world.ask(Begin("notice", 60.0, "a test"))["phase"] == "notice"
            world.until(lambda: world.effects() == {"NoExecute"})
            other = allocate(world.api, "two", "nic-0000-00-05-0")
            assert "this node is being reclaimed (operator: a test)" in (await prepare(driver, other)).error
            assert await prepare(driver, claim) == first, "a repeat is answered as ever"
            assert await unprepare(driver, claim) == ""

    asyncio.run(scenario())
    states = {"one": "unprepared", "two": "refused"}
    world.until(lambda: {one["name"]: one["state"] for one in world.ask(Status())["claims"]} == states)
    for name in states:
        world.api.set_status("resourceclaims", "default", name, {})
    world.until(lambda: world.ask(Status())["complete"])
    world.until(lambda: {"ReclaimNotice", "ClaimsReleased"} <= world.reasons())
    metrics = agent.get("/metrics")[1]
    assert 'dra_agent_reclaim_claims{state="released"} 2.0' in metrics
    assert "dra_agent_reclaim_taint_publish_duration_seconds" in metrics
    assert world.ask(Cancel())["phase"] == "cancelled"
    world.until(lambda: world.effects() == {""})
    world.until(lambda: "ReclaimCancelled" in world.reasons())


def test_told_to_stop_it_goes_on_until_the_kubelet_has_given_claims_back(
    world: World, service_manager: ServiceManager
) -> None:
    claim = allocate(world.api, "one")
    agent = world.agent(environment={"NOTIFY_SOCKET": str(service_manager.path)})

    async def scenario() -> None:
        async with registered(world.kubelet) as driver:
            assert not (await prepare(driver, claim)).error
            world.ask(Begin("notice", 600.0))
            agent.process.send_signal(signal.SIGTERM)
            agent.wait_for("claims must be released first")
            world.until(lambda: any(said.startswith("EXTEND_TIMEOUT_USEC=") for said in service_manager.news()))
            assert "STOPPING=1" not in service_manager.news()
            assert agent.process.poll() is None
            assert await unprepare(driver, claim) == ""

    asyncio.run(scenario())
    assert agent.process.wait(60) == 0


def test_a_second_signal_ends_the_waiting(world: World) -> None:
    claim = allocate(world.api, "one")
    agent = world.agent()

    async def scenario() -> None:
        async with registered(world.kubelet) as driver:
            assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    world.ask(Begin("notice", 600.0))
    agent.process.send_signal(signal.SIGTERM)
    agent.wait_for("claims must be released first")
    assert agent.end(signal.SIGTERM) == 0


def test_at_the_deadline_nothing_is_waited_for(world: World) -> None:
    claim = allocate(world.api, "one")
    agent = world.agent()

    async def scenario() -> None:
        async with registered(world.kubelet) as driver:
            assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    world.ask(Begin("notice", 600.0))
    agent.process.send_signal(signal.SIGTERM)
    agent.wait_for("claims must be released first")
    # Of two deadlines the earlier one holds; whether it leaves time for the answer is up to the machine.
    began = time.monotonic()
    with contextlib.suppress(AgentError):
        world.ask(Begin("notice", 3.0))
    assert agent.process.wait(60) == 0
    assert time.monotonic() - began > 0.5


def test_without_claims_or_without_a_notice_it_stops_as_ever(world: World) -> None:
    agent = world.agent()
    world.ask(Begin("notice", 60.0))
    world.until(lambda: world.ask(Status())["complete"])
    assert agent.end() == 0 and "must be released first" not in agent.said()
    again = world.agent()
    world.ask(Cancel())
    assert again.end() == 0 and "must be released first" not in again.said()


def unschedulable(world: World) -> object:
    (node,) = [found for found in world.api.objects("nodes") if found["metadata"]["name"] == "node-a"]
    return node.get("spec", {}).get("unschedulable", False)


def test_the_node_is_cordoned_where_that_is_wanted(world: World, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[reclaim]\ncordon = true\n")
    environment = {"DRA_AGENT_CONFIG": str(config)}
    agent = world.agent(environment=environment)
    assert unschedulable(world) is False
    world.api.fail(503, times=2, methods="PATCH", path="/nodes/")
    world.ask(Begin("notice", 60.0))
    world.until(lambda: unschedulable(world) is True)
    # Killed, and taken back while nobody is there to hear it: the next run takes its word back.
    agent.end(signal.SIGKILL)
    (world.state / "reclaim.json").unlink()
    again = world.agent(environment=environment)
    world.until(lambda: unschedulable(world) is False)
    world.ask(Begin("notice", 60.0))
    world.until(lambda: unschedulable(world) is True)
    world.ask(Cancel())
    world.until(lambda: unschedulable(world) is False)
    assert again.end() == 0


def test_without_the_right_the_node_is_not_cordoned_and_the_rest_goes_on(world: World, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[reclaim]\ncordon = true\n")
    world.api.fail(403, times=None, methods="PATCH", path="/nodes/")
    agent = world.agent(environment={"DRA_AGENT_CONFIG": str(config)})
    world.ask(Begin("notice", 60.0))
    agent.wait_for("the cordon of the node is not written")
    agent.wait_for("the condition of the node is not written")
    world.until(lambda: world.effects() == {"NoExecute"})
    world.until(lambda: world.ask(Status())["complete"])
    world.ask(Cancel())
    world.until(lambda: world.effects() == {""})
    world.until(lambda: len(node_patches(world)) == 4)
    assert agent.said().count("of the node is not written") == 2, "each is said once"


def node_patches(world: World) -> list[str]:
    return [seen.path for seen in world.api.writes() if "/nodes/" in seen.path]


def condition(world: World) -> dict[str, Any]:
    (node,) = [found for found in world.api.objects("nodes") if found["metadata"]["name"] == "node-a"]
    found = [one for one in node.get("status", {}).get("conditions", []) if one["type"] == f"{DRIVER}/ReclaimNotice"]
    return dict(found[0]) if found else {}


def test_a_condition_of_the_node_says_that_it_is_taken(world: World) -> None:
    others = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m"}]
    world.api.set_status("nodes", "", "node-a", {"conditions": others})
    agent = world.agent()
    assert node_patches(world) == [], "an ordinary start writes nothing"
    world.ask(Begin("hint", 60.0))
    world.until(lambda: world.effects() == {"NoSchedule"})
    assert condition(world) == {}
    world.ask(Begin("notice", 60.0, "a test"))
    world.until(lambda: condition(world).get("status") == "True")
    said = condition(world)
    assert said["reason"] == "Operator" and "(operator: a test)" in said["message"]
    assert said["message"].startswith("the node is reclaimed at 20")
    # Killed in the middle: the same word, with the same time.
    agent.end(signal.SIGKILL)
    again = world.agent()
    world.until(lambda: world.ask(Status())["complete"])
    world.until(lambda: len(node_patches(world)) == 2)
    assert condition(world) == said
    world.ask(Cancel())
    world.until(lambda: condition(world)["status"] == "False")
    assert condition(world)["reason"] == "Cancelled"
    # The next boot: nothing holds any more of what another notice said.
    world.ask(Begin("notice", 60.0, "the end"))
    world.until(lambda: condition(world)["status"] == "True")
    again.end(signal.SIGKILL)
    (world.state / "reclaim.json").unlink()
    world.agent()
    world.until(lambda: condition(world)["reason"] == "NothingAnnounced")
    (node,) = [found for found in world.api.objects("nodes") if found["metadata"]["name"] == "node-a"]
    assert others[0] in node["status"]["conditions"]


def test_taints_come_before_the_condition_however_long_it_takes(world: World) -> None:
    world.agent()
    world.until(lambda: world.effects() == {""})
    world.api.hang(3.0, methods="PATCH", path="/nodes/")
    world.ask(Begin("notice", 60.0))
    world.until(lambda: world.effects() == {"NoExecute"})
    world.until(lambda: condition(world).get("status") == "True")
    paths = [seen.path for seen in world.api.writes()]
    first = next(number for number, path in enumerate(paths) if "/nodes/" in path)
    assert sum("/resourceslices" in path for path in paths[:first]) >= 2


@pytest.mark.parametrize("named", [True, False])
def test_by_default_the_node_is_cordoned_for_claims_that_pods_name(world: World, named: bool) -> None:
    claim = allocate(world.api, "one")
    if not named:
        (found,) = world.api.objects("resourceclaims")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
        world.api.put("resourceclaims", {**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}})
    agent = world.agent()

    async def scenario() -> None:
        async with registered(world.kubelet) as driver:
            assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    world.ask(Begin("notice", 60.0))
    world.until(lambda: world.effects() == {"NoExecute"})
    if not named:
        world.until(lambda: world.ask(Status())["claims"][0]["state"] == "prepared")
        time.sleep(1.0)
        assert unschedulable(world) is False
        return
    world.until(lambda: unschedulable(world) is True)
    # Killed, and taken back afterwards: whoever comes next opens the node.
    agent.end(signal.SIGKILL)
    again = world.agent()
    world.ask(Cancel())
    world.until(lambda: unschedulable(world) is False)
    assert again.end() == 0


@pytest.mark.parametrize("granted", [True, False])
def test_a_pod_with_a_longer_grace_than_its_host_is_asked_before_the_taint(
    world: World, tmp_path: Path, granted: bool
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[reclaim]\nevict = "delete"\n')
    claims = [allocate(world.api, "one"), allocate(world.api, "two", "nic-0000-00-05-0")]
    for claim, pod, grace in zip(claims, ("p", "short"), (600, 1), strict=True):
        spec = {"nodeName": "node-a", "terminationGracePeriodSeconds": grace}
        made = world.api.put("pods", {"metadata": {"name": pod, "namespace": "default"}, "spec": spec})
        (found,) = [one for one in world.api.objects("resourceclaims") if one["metadata"]["name"] == claim[1]]
        reserved = [{"resource": "pods", "name": pod, "uid": made["metadata"]["uid"]}]
        world.api.set_status("resourceclaims", "default", claim[1], {**found["status"], "reservedFor": reserved})
    # The taint waits for them as long as it takes, on a slow machine too.
    patch = "from dra_agent.reclaim import drain\ndrain.AHEAD = 60.0"
    world.agent(environment={"DRA_AGENT_CONFIG": str(config)}, patch=patch)

    async def scenario() -> None:
        async with registered(world.kubelet) as driver:
            for claim in claims:
                assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    # Claims are looked at one after the other: the first one's pod is known once the second one's is asked for.
    world.until(lambda: [seen for seen in world.api.requests if seen.path.endswith("/pods/short")])
    if not granted:
        world.api.fail(403, times=None, methods="POST", path="/eviction")
    world.ask(Begin("notice", 300.0))
    world.until(lambda: world.effects() == {"NoExecute"})
    path = "/api/v1/namespaces/default/pods/p"
    # An eviction tells the pod that it was disrupted; where that is not granted, it is deleted all the same.
    expected = [("POST", f"{path}/eviction"), *([] if granted else [("DELETE", path)])]
    of_notice = [seen for seen in world.api.writes() if "/pods/" in seen.path or KEY in json.dumps(seen.body)]
    writes = of_notice[: len(expected)]
    assert [(seen.method, seen.path) for seen in writes] == expected
    options = writes[0].body["deleteOptions"] if granted else writes[-1].body
    assert 200 < options["gracePeriodSeconds"] <= 298


def test_events_are_in_order_also_where_a_notice_is_taken_back_at_once(world: World) -> None:
    world.agent()
    world.until(lambda: world.effects() == {""})
    world.api.fail(503, times=None, methods="PUT", path="/resourceslices")
    world.ask(Begin("notice", 60.0))
    world.ask(Cancel())
    world.until(lambda: {"ReclaimNotice", "ReclaimCancelled"} <= world.reasons())
    times = {event["reason"]: event["eventTime"] for event in world.api.objects("events")}
    assert times["ReclaimNotice"] <= times["ReclaimCancelled"]

"""What a reclaim of a node changes in its cluster: devices, Node object, Events and pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_agent.clock import STEADY
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import connect
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.publish import Publisher
from dra_agent.reclaim.kubernetes import NodeDrain
from dra_agent.reclaim.progress_file import PROGRESS_FILE
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.retry import Backoff
from dra_agent.status import EventRecorder
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi
from publish.node import DRIVER, NODE, devices
from reclaim.doubles import MemoryLedger, entry

ANNOUNCED = f"{DRIVER}/ReclaimNotice"
Scenario = Callable[[], Awaitable[None]]


@dataclass
class ClusterNode:
    """A node, its API server, and what the agent keeps over its restarts."""

    api: FakeApi
    folder: Path
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    is_leader: bool = True
    reclaim: ReclaimService = field(init=False)
    drain: NodeDrain = field(init=False)

    def run(self, scenario: Scenario, *, before: Scenario | None = None, boot: str = "boot", **settings: Any) -> None:
        """Run an agent's drain from its start to its stop; `before` runs when it has read its state."""
        asyncio.run(self._run(scenario, before, boot, ReclaimSettings(**settings)))

    async def _run(self, scenario: Scenario, before: Scenario | None, boot: str, settings: ReclaimSettings) -> None:
        async with asyncio.timeout(3 * DEADLINE_S), connect(self.api.kubeconfig(self.folder / "kubeconfig")) as api:
            self.reclaim = ReclaimService(self.folder, boot, [])
            events = EventRecorder(api, DRIVER, NODE)
            events.start()
            watch = NodeWatch(api, NODE, backoff=Backoff(first=0.01, longest=0.1))
            watching = asyncio.create_task(watch.run(), name="node watch")
            self.drain = NodeDrain(
                settings,
                api,
                self.reclaim,
                self.ledger,
                events,
                node=NODE,
                node_watch=watch,
                driver=DRIVER,
                state_dir=self.folder,
                is_leader=lambda: self.is_leader,
            )
            inventory = self.drain.inventory(lambda: Inventory(devices=devices(1)))
            publisher = Publisher(api, node=NODE, driver=DRIVER, inventory=inventory, node_watch=watch)
            await self.reclaim.start()
            await publisher.start()
            if before is not None:
                await before()
            await self.drain.start(publisher)
            try:
                await eventually_async(lambda: len(self.api.objects("resourceslices")) == 1)
                await scenario()
            finally:
                await self.reclaim.stop()
                await self.drain.stop()
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("reclaim")]
                assert left == [], "a stop ends every task"
                await publisher.stop()
                await events.stop()

    async def notice(self, seconds: float = 60.0) -> None:
        deadline = STEADY.now() + timedelta(seconds=seconds)
        await self.reclaim.begin("notice", deadline=deadline, description="a test")

    async def cancel(self) -> None:
        await self.reclaim.cancel(everything=False)

    def hold(self, name: str, *, grace: int = 30, owners: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Create a claim that is prepared on this node, and a pod of the node for which it is reserved."""
        spec = {"nodeName": NODE, "terminationGracePeriodSeconds": grace}
        pod = self.api.put("pods", {"metadata": {"name": f"{name}-pod", "namespace": "ns"}, "spec": spec})
        result = {"request": "r", "driver": DRIVER, "pool": f"{NODE}/gpu", "device": "d"}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": f"{name}-pod", "uid": pod["metadata"]["uid"]}],
        }
        claim: dict[str, Any] = {"metadata": {"name": name, "namespace": "ns"}, "spec": {}, "status": status}
        claim["metadata"]["ownerReferences"] = list(owners)
        claim = self.api.put("resourceclaims", claim)
        self.ledger.add(entry(claim["metadata"]["uid"], name))
        return claim

    def object(self) -> dict[str, Any]:
        (node,) = self.api.objects("nodes")
        return node

    def condition(self) -> tuple[str, str] | None:
        """Return status and reason of the condition of this driver."""
        found = [one for one in self.object().get("status", {}).get("conditions", ()) if one["type"] == ANNOUNCED]
        return (found[0]["status"], found[0]["reason"]) if found else None

    def is_cordoned(self) -> bool:
        return bool(self.object().get("spec", {}).get("unschedulable"))

    def effects(self) -> set[str]:
        slices = self.api.objects("resourceslices")
        taints = [device.get("taints", []) for slice_ in slices for device in slice_["spec"]["devices"]]
        return {next((taint["effect"] for taint in found), "") for found in taints}

    def writes(self, part: str) -> list[tuple[str, str]]:
        return [(request.method, request.path) for request in self.api.writes() if part in request.path]

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.api.objects("events")]

    def states(self) -> dict[str, str]:
        return {record.name: record.state for record in self.reclaim.progress().claims}


@pytest.fixture
def node(fake_api: FakeApi, tmp_path: Path) -> ClusterNode:
    fake_api.put("nodes", {"metadata": {"name": NODE}})
    return ClusterNode(fake_api, tmp_path)


def test_a_notice_taints_cordons_and_announces_until_it_is_withdrawn(node: ClusterNode) -> None:
    async def scenario() -> None:
        assert node.writes("/nodes") == [], "without a reclaim the Node is not written"
        await node.reclaim.begin("hint", deadline=None, description="maybe")
        await eventually_async(lambda: node.effects() == {"NoSchedule"})
        assert node.writes("/nodes") == [], "a hint does not change the Node"
        await node.notice()
        await eventually_async(lambda: node.effects() == {"NoExecute"} and node.is_cordoned())
        await eventually_async(lambda: node.condition() == ("True", "Operator"))
        await node.cancel()
        await eventually_async(lambda: node.effects() == {""} and not node.is_cordoned())
        await eventually_async(lambda: node.condition() == ("False", "Cancelled"))
        await eventually_async(lambda: {"ReclaimHint", "ReclaimNotice", "ReclaimCancelled"} <= set(node.reasons()))

    node.run(scenario, cordon=True)
    status, spec = f"/api/v1/nodes/{NODE}/status", f"/api/v1/nodes/{NODE}"
    assert sorted(node.writes("/nodes")) == sorted([("PATCH", path) for path in (spec, status) for _ in range(2)])


def test_after_a_reboot_condition_and_cordon_are_removed(node: ClusterNode) -> None:
    async def interrupted() -> None:
        await node.notice()
        await eventually_async(lambda: node.is_cordoned() and node.condition() is not None)

    async def cleaned() -> None:
        await eventually_async(lambda: not node.is_cordoned())
        await eventually_async(lambda: node.condition() == ("False", "NothingAnnounced"))

    node.run(interrupted, cordon=True)
    assert node.is_cordoned() and node.condition() == ("True", "Operator"), "a stop of the agent changes neither"
    node.api.fail(503, methods="GET", path="/nodes?")
    node.run(cleaned, boot="next", cordon=True)


def test_a_node_that_may_not_be_read_at_first_is_cleaned_up_later(
    node: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server learns of a new role or policy after the agent has started."""

    async def interrupted() -> None:
        await node.notice()
        await eventually_async(node.is_cordoned)

    async def cleaned() -> None:
        await eventually_async(lambda: "an earlier notice is not removed from the node" in caplog.text)
        node.api.faults.lift(refusal)
        await eventually_async(lambda: not node.is_cordoned())

    node.run(interrupted, cordon=True)
    refusal = node.api.fail(403, methods="GET", path="/nodes?", times=None)
    node.run(cleaned, boot="next", cordon=True)


def test_a_stop_does_not_wait_for_the_api_server(node: ClusterNode) -> None:
    async def scenario() -> None:
        await eventually_async(lambda: any("/nodes" in seen.path for seen in node.api.requests))

    node.api.fail(503, times=None, methods="GET", path="/nodes?")
    node.run(scenario)


def test_the_node_is_listed_and_watched_and_not_read_besides(node: ClusterNode) -> None:
    async def scenario() -> None:
        await node.notice()
        await eventually_async(lambda: node.condition() == ("True", "Operator"))
        await node.cancel()
        await eventually_async(lambda: node.condition() == ("False", "Cancelled"))

    node.run(scenario)
    reads = [seen.path for seen in node.api.requests if seen.method == "GET" and "/nodes" in seen.path]
    assert reads and not [path for path in reads if path.partition("?")[0].endswith(f"/nodes/{NODE}")]


def test_a_later_run_removes_the_cordon_of_an_earlier_one(node: ClusterNode) -> None:
    node.hold("named")

    async def cordoned() -> None:
        await node.notice()
        await eventually_async(node.is_cordoned)

    async def withdrawn() -> None:
        await node.cancel()
        await eventually_async(lambda: not node.is_cordoned())

    node.run(cordoned)
    node.run(withdrawn, cordon=False)


@pytest.mark.parametrize(("cordon", "owned"), [("auto", True), (False, False)])
def test_the_node_is_not_cordoned_without_need(node: ClusterNode, cordon: Any, owned: bool) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    node.hold("one", owners=[owner] if owned else [])

    async def scenario() -> None:
        await node.notice()
        await eventually_async(lambda: node.condition() is not None)
        await eventually_async(lambda: any(record.pods for record in node.reclaim.progress().claims))

    node.run(scenario, cordon=cordon)
    assert not node.is_cordoned()


def test_prepared_and_refused_claims_are_tracked(node: ClusterNode) -> None:
    node.hold("prepared")
    early, late = ({"metadata": {"uid": name, "namespace": "ns", "name": name}} for name in ("early", "late"))

    async def before() -> None:
        assert node.drain.is_unprepared
        node.drain.refused(early)
        await asyncio.sleep(0)

    async def scenario() -> None:
        await eventually_async(lambda: node.states() == {"prepared": "prepared", "early": "refused"})
        assert not node.drain.is_unprepared
        await asyncio.to_thread(node.drain.refused, late)
        await eventually_async(lambda: "late" in node.states())
        node.ledger.remove(*node.ledger.held)
        await eventually_async(lambda: node.drain.is_unprepared)
        await node.cancel()
        await eventually_async(lambda: node.states() == {})
        await eventually_async(lambda: node.drain.is_unprepared)

    async def noticed() -> None:
        await node.notice()

    node.run(noticed)
    node.run(scenario, before=before)


def test_a_notice_is_reported_by_the_run_that_received_it(node: ClusterNode) -> None:
    async def reported() -> None:
        await eventually_async(lambda: node.reasons().count("ReclaimNotice") == 1)

    async def resumed() -> None:
        await eventually_async(lambda: node.reclaim.progress().complete)

    async def notice() -> None:
        await node.notice()

    node.run(reported, before=notice)
    assert (node.folder / PROGRESS_FILE).exists()
    node.run(resumed)
    assert node.reasons().count("ReclaimNotice") == 1


def test_an_agent_without_leadership_changes_only_its_devices(node: ClusterNode) -> None:
    node.is_leader = False
    node.hold("one", grace=600)

    async def scenario() -> None:
        await node.notice()
        await eventually_async(lambda: node.effects() == {"NoExecute"})
        await eventually_async(lambda: any(record.pods for record in node.reclaim.progress().claims))

    node.run(scenario, evict="delete", cordon=True)
    assert not node.writes("/nodes") and not node.writes("/events") and not node.writes("/pods")
    assert not (node.folder / PROGRESS_FILE).exists()


@pytest.mark.parametrize("when", ["before the start", "prepared later"])
def test_a_pod_with_a_long_grace_period_is_evicted_first(node: ClusterNode, when: str) -> None:
    async def scenario() -> None:
        if when == "prepared later":
            for name, grace in (("one", 600), ("two", 1)):
                await asyncio.to_thread(node.drain.prepared, node.hold(name, grace=grace))
        # Claims are read in order: a request for the second pod means that the first one is known.
        await eventually_async(lambda: any(seen.path.endswith("/pods/two-pod") for seen in node.api.requests))
        await node.notice(300.0)
        await eventually_async(lambda: node.effects() == {"NoExecute"})
        await eventually_async(lambda: node.reclaim.progress().evictions == {("evict", "ok"): 1})

    if when == "before the start":
        for name, grace in (("one", 600), ("two", 1)):
            node.hold(name, grace=grace)
    node.api.fail(201, methods="POST", path="/pods/one-pod/eviction", body="{}")
    node.run(scenario, evict="delete")
    (eviction,) = [request for request in node.api.writes() if "/pods/" in request.path]
    assert eviction.path == "/api/v1/namespaces/ns/pods/one-pod/eviction"
    assert (eviction.body["apiVersion"], eviction.body["kind"]) == ("policy/v1", "Eviction")
    assert eviction.body["metadata"] == {"name": "one-pod", "namespace": "ns"}
    (pod,) = node.api.objects("pods", lambda pod: pod["metadata"]["name"] == "one-pod")
    options = eviction.body["deleteOptions"]
    assert options["preconditions"] == {"uid": pod["metadata"]["uid"]} and 200 < options["gracePeriodSeconds"] < 300


def test_a_pod_that_the_taint_does_not_evict_is_evicted(node: ClusterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.evictor.POLL_INTERVAL_S", 0.05)
    node.hold("one")
    node.api.set_status("pods", "ns", "one-pod", {"extendedResourceClaimStatus": {"resourceClaimName": "one"}})
    node.api.fail(201, methods="POST", path="/pods/one-pod/eviction", body="{}")

    async def scenario() -> None:
        await node.notice()
        await eventually_async(lambda: node.reclaim.progress().evictions == {("evict", "ok"): 1})

    node.run(scenario, evict="auto")
    assert node.writes("/pods/") == [("POST", "/api/v1/namespaces/ns/pods/one-pod/eviction")]


def test_a_hint_reads_the_pods_that_joined_a_shared_claim(node: ClusterNode) -> None:
    node.hold("one", grace=10)

    async def scenario() -> None:
        await eventually_async(lambda: any(seen.path.endswith("/pods/one-pod") for seen in node.api.requests))
        joined = {"metadata": {"name": "joined", "namespace": "ns"}, "spec": {"terminationGracePeriodSeconds": 600}}
        pod = node.api.put("pods", joined)
        (claim,) = node.api.objects("resourceclaims")
        consumers = [
            *claim["status"]["reservedFor"],
            {"resource": "pods", "name": "joined", "uid": pod["metadata"]["uid"]},
        ]
        node.api.set_status("resourceclaims", "ns", "one", {**claim["status"], "reservedFor": consumers})
        await node.reclaim.begin("hint", deadline=None, description="maybe")
        await eventually_async(lambda: any(seen.path.endswith("/pods/joined") for seen in node.api.requests))

    node.run(scenario, evict="evict")

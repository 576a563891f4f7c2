"""`dra-agent explain podgroup/NAME` and the real scheduler: the same pods are placed, and the same pod fails.

Two H100 of each node are published, as whole GPUs and as every partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.conftest import Explain, apply_classes
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLAIMS, EVENTS, JOBS, PODS, Kind, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.drain_probe import announce, cancel
from cluster.kube.workload import Namespace, first_available, is_scheduled, pod_spec, request

GATES = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
POD_GROUPS = Kind("scheduling.k8s.io/v1beta1", "podgroups")
HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
AGENT_CONFIG = """\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID in ["0000:1b:00.0", "0000:43:00.0"]']

[[inventory.partition]]
mode = "mig"
when = 'device.attributes["dra-agent.internal"].type == "gpu"'
"""
HALF = f'device.attributes["{DRIVER}"].profile == "3g.40gb"'
UPSTREAM = "kubernetes/kubernetes#138765"

Agents = dict[str, Agent]


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster: gates are set when the API server starts."""
    with running(gates=GATES, runtime_config={POD_GROUPS.version: True}) as cluster:
        apply_classes(cluster)
        yield cluster


class Gang:
    """A native pod group, and its pods in the order in which they are scheduled."""

    def __init__(
        self,
        namespace: Namespace,
        name: str,
        pods: int,
        template: str,
        *,
        minimum: int,
        shared: bool = False,
        topology: str = "",
        parent: str = "",
        **spec: Any,
    ) -> None:
        """Create the group and its pods.

        `shared`: they share one claim of the template. `topology`: a label with one value for the nodes of all pods.
        `parent`: the composite pod group of which it is a part.
        """
        self.namespace, self.name, self._template, self._spec = namespace, name, template, spec
        self.pods: list[str] = []
        claims = [{"name": "devices", "resourceClaimTemplateName": template}] if shared else []
        of_group: Object = {"schedulingPolicy": {"gang": {"minCount": minimum}}, "resourceClaims": claims}
        if topology:
            of_group["schedulingConstraints"] = {"topology": [{"key": topology}]}
        if parent:
            of_group["parentCompositePodGroupName"] = parent
            of_group["workloadRef"] = {"workloadName": parent, "templateName": name}
        namespace.api.create(POD_GROUPS, {"metadata": {"name": name}, "spec": of_group}, namespace.name)
        for _ in range(pods):
            self.add_pod()

    def add_pod(self) -> None:
        pod = f"{self.name}-{len(self.pods)}"
        group = {"podGroupName": self.name}
        self.namespace.pod(pod, template=self._template, schedulingGroup=group, **self._spec)
        self.pods.append(pod)

    def condition(self) -> Object:
        """Return what the scheduler reports about the group; empty before its first attempt."""
        group = self.namespace.api.get(POD_GROUPS, self.name, self.namespace.name)
        listed = group.get("status", {}).get("conditions", [])
        return next((one for one in listed if one["type"] == "PodGroupInitiallyScheduled"), {})

    def wait_for(self, status: str) -> None:
        self.namespace.api.wait(
            lambda: self.condition()["status"] == status, f"the scheduler decides {status} about {self.name}"
        )

    def nodes(self) -> dict[str, str]:
        """Return the pods that have a node, and which."""
        found = {pod: self.namespace.get_pod(pod)["spec"].get("nodeName") for pod in self.pods}
        return {pod: str(node) for pod, node in found.items() if node}

    def failed(self) -> list[str]:
        """Return the pods for which the scheduler itself found no node; others fail with the group."""
        messages = {pod: _message(self.namespace.get_pod(pod)) for pod in self.pods}
        return [pod for pod, message in messages.items() if "nodes are available" in message]

    def wait_for_failure(self, *pods: str) -> None:
        self.namespace.api.wait(lambda: self.failed() == list(pods), f"the scheduler finds no node for {pods}")

    def delete(self) -> None:
        for pod in self.pods:
            self.namespace.delete_pod(pod, grace=1)
        self.namespace.wait_until_deleted(*self.pods)


def _message(pod: Object) -> str:
    conditions = pod["status"].get("conditions", [])
    return next((str(one.get("message")) for one in conditions if one["type"] == "PodScheduled"), "")


def test_a_gang_that_fits_is_placed_as_explained(
    agents: Agents, namespace: Namespace, cluster: Cluster, explain: Explain
) -> None:
    namespace.template("one", request("gpu", "gpu"))
    cluster.control_plane.scheduler.kill()
    gang = Gang(namespace, "ring", 4, "one", minimum=4)
    answer = explain("podgroup/ring")
    assert (answer["fits"], answer["placed"], answer["running"]) == (True, 4, 0), answer["summary"]
    assert answer["failure"] is None and answer["kinds"][0]["nodes"] == {"node-a": 2, "node-b": 2}
    cluster.control_plane.scheduler.start()
    gang.wait_for("True")
    namespace.running(*gang.pods)
    assert Counter(gang.nodes().values()) == answer["kinds"][0]["nodes"]
    after = explain("podgroup/ring")
    assert (after["fits"], after["running"]) == (True, 4) and "no pod waits for a node" in after["summary"]


def test_a_gang_of_eight(agents: Agents, namespace: Namespace, explain: Explain) -> None:
    """Half of each of four GPUs twice; with one half held, no pod of the gang starts."""
    namespace.template("half", request("half", "mig", HALF))
    namespace.pod("other", template="half")
    namespace.running("other")
    gang = Gang(namespace, "ring", 8, "half", minimum=8)
    gang.wait_for("False")
    assert not gang.nodes()
    answer = explain("podgroup/ring")
    assert (answer["fits"], answer["placed"], answer["needed"]) == (False, 7, 8), answer["summary"]
    namespace.delete_pod("other")
    gang.wait_for("True")
    namespace.running(*gang.pods)
    assert Counter(gang.nodes().values()) == {"node-a": 4, "node-b": 4}


def test_pods_of_a_gang_share_the_claim_of_their_group(
    agents: Agents, namespace: Namespace, cluster: Cluster, explain: Explain
) -> None:
    """Each pod names the claim of the group, so one claim is created, and reserved for the group."""
    namespace.template("one", request("gpu", "gpu"))
    cluster.control_plane.scheduler.kill()
    gang = Gang(namespace, "ring", 3, "one", minimum=3, shared=True)
    answer = explain("podgroup/ring")
    assert answer["fits"] and len(answer["kinds"][0]["nodes"]) == 1, answer["summary"]
    cluster.control_plane.scheduler.start()
    gang.wait_for("True")
    namespace.running(*gang.pods)
    assert len(set(gang.nodes().values())) == 1
    (claim,) = namespace.api.list(CLAIMS, namespace.name)
    (consumer,) = claim["status"]["reservedFor"]
    assert (consumer["resource"], consumer["name"]) == ("podgroups", "ring")
    device = namespace.results(claim)[0]["device"]
    assert {namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] for pod in gang.pods} == {device}

    def specs() -> list[str]:
        uid = claim["metadata"]["uid"]
        return [name for agent in agents.values() for name in agent.node.cdi_files() if uid in name]

    for pod in gang.pods[:2]:
        namespace.delete_pod(pod, grace=1)
    namespace.wait_until_deleted(*gang.pods[:2])
    assert len(specs()) == 1, "the last pod uses the claim"
    namespace.delete_pod(gang.pods[2], grace=1)
    namespace.wait_until_deleted(gang.pods[2])
    namespace.api.wait(lambda: not specs(), "the claim is unprepared after the last pod of the group")


def test_a_reclaim_of_a_node_leaves_no_half_gang(agents: Agents, namespace: Namespace) -> None:
    """The scheduler does not end the rest of a gang. The Job does, whose policy makes an evicted pod fail it."""
    namespace.template("one", request("gpu", "gpu"))
    group = {"metadata": {"name": "ring"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}
    namespace.api.create(POD_GROUPS, group, namespace.name)
    evicted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    body = {
        "metadata": {"name": "ring"},
        "spec": {
            "parallelism": 4,
            "completions": 4,
            "podFailurePolicy": {"rules": [evicted]},
            # A program that ends with 0 after SIGTERM has succeeded, for its Job.
            "template": {
                "spec": pod_spec(
                    template="one",
                    command="trap 'exit 143' TERM; sleep 1000000 & wait",
                    schedulingGroup={"podGroupName": "ring"},
                )
            },
        },
    }
    namespace.api.create(JOBS, body, namespace.name)

    def pods() -> list[Object]:
        return namespace.api.list(PODS, namespace.name, labels="batch.kubernetes.io/job-name=ring")

    def nodes() -> Counter[str]:
        return Counter(pod["spec"]["nodeName"] for pod in pods() if pod["status"]["phase"] == "Running")

    namespace.api.wait(lambda: nodes() == {"node-a": 2, "node-b": 2}, "the gang runs on both nodes")
    announce(agents["node-a"], 3600)

    def has_failed() -> bool:
        listed = namespace.api.get(JOBS, "ring", namespace.name)["status"].get("conditions", [])
        return any(one["type"] == "Failed" and one["status"] == "True" for one in listed)

    namespace.api.wait(has_failed, "the Job has failed")
    namespace.api.wait(lambda: not nodes(), "no pod of the gang runs")

    def held() -> list[str]:
        claims = namespace.api.list(CLAIMS, namespace.name)
        return [one["metadata"]["name"] for one in claims if one.get("status", {}).get("allocation")]

    namespace.api.wait(lambda: not held(), "no claim of the gang holds a device")

    def events() -> list[Object]:
        """The Events about released claims of the node; one that is recorded again has a count."""
        recorded = [one for one in namespace.api.list(EVENTS, "default") if one["reason"] == "ClaimsReleased"]
        return [one for one in recorded if one["involvedObject"]["name"] == "node-a"]

    namespace.api.wait(events, "an Event reports the released claims")
    (event,) = events()
    assert "2 of 2 claims released" in event["message"] and event.get("count", 1) == 1
    cancel(agents["node-a"])


def test_the_member_that_fails_is_that_of_the_scheduler(agents: Agents, namespace: Namespace, explain: Explain) -> None:
    namespace.template("two", request("gpus", "gpu", count=2))
    gang = Gang(namespace, "ring", 3, "two", minimum=3)
    gang.wait_for("False")
    gang.wait_for_failure("ring-2")
    assert gang.condition()["reason"] == "Unschedulable" and not gang.nodes()
    answer = explain("podgroup/ring")
    assert (answer["fits"], answer["placed"], answer["needed"]) == (False, 2, 3)
    assert answer["failure"]["member"] == "ring-2" and answer["failure"]["failed"] == 1
    assert "ring-2 fits on none of 2 nodes" in answer["summary"]
    reason = "there are devices for request gpus (2 devices) of 2 pods, and ring-0 has 3"
    assert answer["search"]["impossible"] == reason


def test_a_gang_starts_with_its_minimum(agents: Agents, namespace: Namespace, explain: Explain) -> None:
    namespace.template("two", request("gpus", "gpu", count=2))
    gang = Gang(namespace, "ring", 2, "two", minimum=3)
    answer = explain("podgroup/ring")
    assert not answer["fits"] and "waits for 3 pods, and there are 2" in answer["summary"]
    # The scheduler has processed pods that were created later, and none of the gang.
    namespace.pod("later")
    assert is_scheduled(namespace.api, "later", namespace.name)
    assert not gang.nodes() and not gang.condition()
    namespace.api.patch(POD_GROUPS, "ring", {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}, namespace.name)
    gang.wait_for("True")
    gang.add_pod()
    gang.wait_for_failure("ring-2")
    answer = explain("podgroup/ring")
    assert (answer["fits"], answer["running"], answer["placed"]) == (True, 2, 0), answer["summary"]
    assert answer["failure"]["member"] == "ring-2"
    assert sorted(gang.nodes()) == ["ring-0", "ring-1"]


def test_alternatives_that_the_scheduler_does_not_try(agents: Agents, namespace: Namespace, explain: Explain) -> None:
    half = request("half", "mig", HALF)
    namespace.template("whole-or-half", first_available("gpu", request("whole", "gpu"), half))
    namespace.template("half", half)
    waiting = Gang(namespace, "ring", 4, "whole-or-half", minimum=4, node="node-a")
    waiting.wait_for("False")
    waiting.wait_for_failure("ring-2")
    answer = explain("podgroup/ring")
    assert not answer["fits"] and answer["failure"]["member"] == "ring-2"
    search = answer["search"]
    assert search["found"] and search["differs"] == ["choice of alternatives"] and search["upstream"] == UPSTREAM
    assert {kind["name"]: kind["alternatives"] for kind in search["kinds"]} == {"ring-0": {"gpu/half": 4}}
    waiting.delete()
    # The remedy: the same gang without the alternative that the placement does not use.
    gang = Gang(namespace, "halves", 4, "half", minimum=4, node="node-a")
    gang.wait_for("True")
    namespace.running(*gang.pods)
    assert set(gang.nodes().values()) == {"node-a"} and explain("podgroup/halves")["fits"]

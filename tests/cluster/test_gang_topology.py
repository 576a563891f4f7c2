"""Native topology-aware scheduling (KEP-5732, alpha in Kubernetes 1.37) by the fabric labels of Nodes.

A pod group runs in one clique, or waits. Each scenario runs with the gate on, and with the default, where it is off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from cluster.conftest import Explain, StartAgent, apply_classes
from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS, NODES
from cluster.kube.cluster import Cluster, running
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from cluster.test_fabric_labels import CLIQUE, join_clique, labels
from cluster.test_gangs import GATES, POD_GROUPS, Gang
from cluster.test_kueue_topology import trays_of_one_clique

GATE = "TopologyAwareWorkloadScheduling"
RACK = "example.com/rack"


@pytest.fixture(scope="module", params=[True, False], ids=["on", "off"])
def session_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A separate cluster for each state of the gate, which is set when a process starts."""
    gates = {**GATES, GATE: request.param}
    with running(gates=gates, runtime_config={POD_GROUPS.version: True}) as cluster:
        apply_classes(cluster)
        yield cluster


@pytest.fixture
def has_gate(cluster: Cluster) -> bool:
    """Whether the gate is on."""
    return cluster.control_plane.gates[GATE]


@pytest.fixture
def trays(cluster: Cluster, start_agent: StartAgent) -> Iterator[dict[str, Agent]]:
    """An agent on each node that labels it: both are in one clique, and each has four GPUs."""
    with trays_of_one_clique(cluster, start_agent) as started:
        yield started


@pytest.fixture
def apart(cluster: Cluster, trays: dict[str, Agent]) -> None:
    """The nodes are in different cliques."""
    join_clique(trays["node-b"], 7)
    until(lambda: labels(cluster, "node-b")[CLIQUE].endswith(".7"), "node-b is in another clique")


def wait_for_refusal(gang: Gang, message: str) -> None:
    """Wait until the scheduler refuses the whole group with this message."""
    gang.namespace.api.wait(
        lambda: gang.condition()["status"] == "False" and message in gang.condition()["message"],
        f"the scheduler refuses {gang.name} with {message!r}, not {gang.condition()}",
    )


def test_a_gang_runs_in_one_clique_or_waits(
    cluster: Cluster, trays: dict[str, Agent], apart: None, namespace: Namespace, has_gate: bool, explain: Explain
) -> None:
    clique = labels(cluster, "node-a")[CLIQUE]
    namespace.template("pair", request("gpus", "gpu", count=2))
    namespace.pod("other", template="pair", node="node-a")
    namespace.running("other")
    # Six GPUs: there are two on node-a and four on node-b.
    far = Gang(namespace, "far", 3, "pair", minimum=3, topology=CLIQUE)
    everywhere = {"node-a": 1, "node-b": 2}
    if not has_gate:
        assert "schedulingConstraints" not in namespace.api.get(POD_GROUPS, "far", namespace.name)["spec"]
        far.wait_for("True")
        namespace.running(*far.pods)
        assert Counter(far.nodes().values()) == everywhere
        return
    wait_for_refusal(far, "0/2 placements are available")
    assert not far.nodes()
    answer = explain("podgroup/far")
    assert (answer["fits"], answer["placed"], answer["needed"]) == (True, 3, 3), "six GPUs are free"
    (quote,) = answer["quotes"]
    assert quote["not_evaluated"] == f"{GATE}: nodes with the same value of label {CLIQUE}"
    refused = [one["message"] for one in quote["conditions"] if one["status"] == "False"]
    assert refused == [far.condition()["message"]]

    near = Gang(namespace, "near", 2, "pair", minimum=2, topology=CLIQUE)
    near.wait_for("True")
    namespace.running(*near.pods)
    assert set(near.nodes().values()) == {"node-b"}, "the clique of node-a has devices for one of them"
    near.delete()

    join_clique(trays["node-b"], int(clique.rpartition(".")[2]))
    until(lambda: labels(cluster, "node-b")[CLIQUE] == clique, "both nodes are in one clique")
    far.wait_for("True")
    namespace.running(*far.pods)
    assert Counter(far.nodes().values()) == everywhere
    (quote,) = explain("podgroup/far")["quotes"]
    assert [one["status"] for one in quote["conditions"] if one["type"] == "PodGroupInitiallyScheduled"] == ["True"]


def test_a_claim_of_the_group_is_allocated_in_its_clique(apart: None, namespace: Namespace) -> None:
    """The claim fits on node-b only; an attempt in the clique of node-a, before or after it, leaves no trace."""
    namespace.template("one", request("gpu", "gpu"))
    namespace.template("tray", request("gpus", "gpu", count=4))
    namespace.pod("other", template="one", node="node-a")
    namespace.running("other")
    gang = Gang(namespace, "ring", 3, "tray", minimum=3, shared=True, topology=CLIQUE)
    gang.wait_for("True")
    namespace.running(*gang.pods)
    assert set(gang.nodes().values()) == {"node-b"}
    (claim,) = [one for one in namespace.api.list(CLAIMS, namespace.name) if len(namespace.results(one)) == 4]
    assert [(one["resource"], one["name"]) for one in claim["status"]["reservedFor"]] == [("podgroups", "ring")]


def test_a_gang_waits_for_nodes_with_the_label(
    cluster: Cluster, trays: dict[str, Agent], namespace: Namespace, has_gate: bool
) -> None:
    namespace.template("one", request("gpu", "gpu"))
    gang = Gang(namespace, "ring", 2, "one", minimum=2, topology=RACK)
    if has_gate:
        wait_for_refusal(gang, "no feasible placements found")
        assert not gang.nodes()
    try:
        cluster.api.patch(NODES, "node-b", {"metadata": {"labels": {RACK: "r1"}}})
        gang.wait_for("True")
        namespace.running(*gang.pods)
        assert not has_gate or set(gang.nodes().values()) == {"node-b"}
    finally:
        cluster.api.patch(NODES, "node-b", {"metadata": {"labels": {RACK: None}}})

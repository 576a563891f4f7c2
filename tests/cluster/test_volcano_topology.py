"""Volcano's topology-aware scheduling by the fabric labels of Nodes: a gang runs in one clique, or waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster.conftest import StartAgent, apply_classes
from cluster.kube import prerequisites
from cluster.kube.agent import Agent
from cluster.kube.api import Kind
from cluster.kube.cluster import Cluster, running
from cluster.kube.process import until
from cluster.kube.volcano import Volcano
from cluster.kube.volcano_jobs import Jobs
from cluster.kube.workload import Namespace, request
from cluster.test_fabric_labels import CLIQUE, join_clique, labels
from cluster.test_kueue_topology import trays_of_one_clique
from cluster.test_volcano import allocated

HYPER_NODES = Kind("topology.volcano.sh/v1alpha1", "hypernodes", namespaced=False)


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster, because a second scheduler of pods would be left after the scenarios."""
    with running() as cluster:
        apply_classes(cluster)
        yield cluster


@pytest.fixture(scope="module")
def volcano(session_cluster: Cluster) -> Iterator[Volcano]:
    try:
        created = Volcano(session_cluster)
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    created.start()
    yield created
    created.kill()


@pytest.fixture(autouse=True)
def volcano_log(volcano: Volcano) -> Iterator[None]:
    """Print Volcano's logs of a failed scenario."""
    yield
    print(volcano.tail(60))


@pytest.fixture
def jobs(volcano: Volcano, namespace: Namespace) -> Iterator[Jobs]:
    created = Jobs(namespace)
    namespace.template("gpu", request("gpu", "gpu"))
    yield created
    created.end()


@pytest.fixture
def trays(cluster: Cluster, start_agent: StartAgent) -> Iterator[dict[str, Agent]]:
    """An agent on each node that labels it: both are in one clique."""
    with trays_of_one_clique(cluster, start_agent) as started:
        yield started


@pytest.fixture
def hyper_nodes(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Create a HyperNode for each clique, and one above them; delete them at the end."""
    created: list[str] = []

    def create() -> None:
        cliques = {labels(cluster, node)[CLIQUE] for node in ("node-a", "node-b")}
        members = {}
        for number, clique in enumerate(sorted(cliques)):
            selector = {"labelMatch": {"matchLabels": {CLIQUE: clique}}}
            members[f"clique-{number}"] = (1, [{"type": "Node", "selector": selector}])
        above = [{"type": "HyperNode", "selector": {"exactMatch": {"name": name}}} for name in members]
        members["fabric"] = (2, above)
        for name, (tier, of_it) in members.items():
            body = {"kind": "HyperNode", "metadata": {"name": name}, "spec": {"tier": tier, "members": of_it}}
            cluster.api.create(HYPER_NODES, body)
            created.append(name)

    yield create
    for name in created:
        cluster.api.delete(HYPER_NODES, name)


def test_a_gang_runs_in_one_clique_or_waits(
    cluster: Cluster,
    trays: dict[str, Agent],
    namespace: Namespace,
    jobs: Jobs,
    hyper_nodes: Callable[[], None],
) -> None:
    """Each node has four GPUs. Two pods with four each need both nodes, which are in two cliques."""
    join_clique(trays["node-b"], 7)
    until(lambda: labels(cluster, "node-b")[CLIQUE].endswith(".7"), "node-b is in another clique")
    hyper_nodes()
    namespace.template("tray", request("gpus", "gpu", count=4))
    jobs.submit("far", 2, template="tray", networkTopology={"mode": "hard", "highestTierAllowed": 1})
    jobs.wait_until_refused("far")
    assert not jobs.nodes("far") and allocated(namespace) == 0
    jobs.submit("near", 2, networkTopology={"mode": "hard", "highestTierAllowed": 1})
    assert len(jobs.wait_until_running("near", 2)) == 1
    jobs.delete("near")
    jobs.delete("far")
    jobs.submit("anywhere", 2, template="tray", networkTopology={"mode": "hard", "highestTierAllowed": 2})
    assert jobs.wait_until_running("anywhere", 2) == {"node-a": 1, "node-b": 1}

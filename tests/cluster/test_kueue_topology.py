"""Kueue's topology-aware scheduling by the fabric labels of Nodes: a gang runs in one clique, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.conftest import StartAgent, apply_classes
from cluster.kube import prerequisites
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import JOBS, NODES, Kind, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.kueue import Kueue
from cluster.kube.process import until
from cluster.kube.workload import Namespace, container, pod_spec, request
from cluster.test_fabric_labels import CHART_VALUES, CLIQUE, PROFILE, join_clique, labels
from cluster.test_kueue import (
    API,
    BACKGROUND,
    CLUSTER_QUEUES,
    FLAVORS,
    LOCAL_QUEUES,
    QUEUE_OF_JOBS,
    RESOURCE,
    running_pods,
    wait_for_refusal,
    wait_until_admitted,
    workload_of,
)

TOPOLOGIES = Kind(API, "topologies", namespaced=False)
FABRIC = "fabric"
HOSTNAME = "kubernetes.io/hostname"
OS = {"kubernetes.io/os": "linux"}
REQUIRED = "kueue.x-k8s.io/podset-required-topology"

Agents = dict[str, Agent]


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster, because Kueue's webhooks would be called for the objects of every scenario."""
    with running() as cluster:
        apply_classes(cluster)
        yield cluster


@pytest.fixture(scope="module")
def kueue(session_cluster: Cluster) -> Iterator[Kueue]:
    """Kueue with a queue of 8 GPUs and CPU, whose flavor has the topology of the fabric."""
    try:
        created = Kueue(session_cluster, {RESOURCE: ["gpu"]})
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    created.start()
    api = session_cluster.api
    levels = [{"nodeLabel": CLIQUE}, {"nodeLabel": HOSTNAME}]
    api.create(TOPOLOGIES, {"kind": "Topology", "metadata": {"name": FABRIC}, "spec": {"levels": levels}})
    spec = {"nodeLabels": OS, "topologyName": FABRIC}
    api.create(FLAVORS, {"kind": "ResourceFlavor", "metadata": {"name": FABRIC}, "spec": spec})
    quotas = [{"name": RESOURCE, "nominalQuota": 8}, {"name": "cpu", "nominalQuota": 1000}]
    group = {"coveredResources": [RESOURCE, "cpu"], "flavors": [{"name": FABRIC, "resources": quotas}]}
    body: Object = {"namespaceSelector": {}, "resourceGroups": [group]}
    api.create(CLUSTER_QUEUES, {"kind": "ClusterQueue", "metadata": {"name": FABRIC}, "spec": body})
    yield created
    created.process.kill()


@pytest.fixture(autouse=True)
def kueue_log(kueue: Kueue) -> Iterator[None]:
    """Print Kueue's log of a failed scenario."""
    yield
    print(kueue.process.tail(40))


@contextmanager
def trays_of_one_clique(cluster: Cluster, start_agent: StartAgent) -> Iterator[Agents]:
    """Run an agent on each node that labels it; afterwards the nodes have no label of the fabric."""
    identity = cluster.identity(DRIVER, *CHART_VALUES)
    started = {
        node: start_agent(node, PROFILE, "--node-labels", "node", kubeconfig=identity.kubeconfig(node))
        for node in ("node-a", "node-b")
    }
    until(lambda: all(CLIQUE in labels(cluster, node) for node in started), "both nodes have a clique")
    assert labels(cluster, "node-a") == labels(cluster, "node-b")
    yield started
    for node, agent in started.items():
        agent.end()  # it would write the labels again
        cluster.api.patch(NODES, node, {"metadata": {"labels": dict.fromkeys(labels(cluster, node))}})


@pytest.fixture
def trays(cluster: Cluster, start_agent: StartAgent) -> Iterator[Agents]:
    """An agent on each node that labels it: both are in one clique."""
    with trays_of_one_clique(cluster, start_agent) as started:
        yield started


@pytest.fixture
def queue(kueue: Kueue, namespace: Namespace) -> Iterator[None]:
    """A LocalQueue of the namespace; its Jobs are deleted with their Workloads."""
    local = {"kind": "LocalQueue", "metadata": {"name": "gpus"}, "spec": {"clusterQueue": FABRIC}}
    namespace.api.create(LOCAL_QUEUES, local, namespace.name)
    yield
    for job in namespace.api.list(JOBS, namespace.name):
        namespace.api.call("DELETE", JOBS.path(namespace.name, job["metadata"]["name"], None), BACKGROUND)


def submit(namespace: Namespace, name: str, *, gpus: int, cpus: str) -> None:
    """Create a Job of two pods that must be in one clique."""
    namespace.template(name, request("gpus", "gpu", count=gpus))
    main = container("main", "devices")
    main["resources"]["requests"] = {"cpu": cpus}
    claims = [{"name": "devices", "resourceClaimTemplateName": name}]
    template = {
        "metadata": {"annotations": {REQUIRED: CLIQUE}},
        "spec": pod_spec(claims=claims, containers=[main]),
    }
    spec = {"parallelism": 2, "completions": 2, "suspend": True, "template": template}
    body = {"metadata": {"name": name, "labels": {QUEUE_OF_JOBS: "gpus"}}, "spec": spec}
    namespace.api.create(JOBS, body, namespace.name)


def nodes_of(namespace: Namespace, job: str) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in running_pods(namespace, job, 2))


def share_of_a_node(cluster: Cluster, percent: int) -> str:
    """Return a part of the CPU of a node: Kueue places pods by CPU and memory, and not by devices of claims."""
    found = [cluster.api.get(NODES, node)["status"]["allocatable"]["cpu"] for node in ("node-a", "node-b")]
    millis = [int(cpu.removesuffix("m")) if cpu.endswith("m") else int(cpu) * 1000 for cpu in found]
    return f"{max(millis) * percent // 100}m"


def test_a_gang_waits_until_one_clique_has_room_for_all_of_it(
    cluster: Cluster, trays: Agents, namespace: Namespace, queue: None
) -> None:
    clique = labels(cluster, "node-a")[CLIQUE]
    join_clique(trays["node-b"], 7)
    until(lambda: labels(cluster, "node-b")[CLIQUE].endswith(".7"), "node-b is in another clique")
    submit(namespace, "ring", gpus=4, cpus=share_of_a_node(cluster, 60))
    refusal = wait_for_refusal(namespace, "ring", f'topology "{FABRIC}" allows to fit only 1 out of 2 pod(s)')
    assert refusal
    running_pods(namespace, "ring", 0)

    join_clique(trays["node-b"], int(clique.rpartition(".")[2]))
    wait_until_admitted(namespace, "ring")
    assert nodes_of(namespace, "ring") == ["node-a", "node-b"]
    assert labels(cluster, "node-b")[CLIQUE] == clique


def test_a_gang_that_fits_in_a_clique_is_not_split(
    cluster: Cluster, trays: Agents, namespace: Namespace, queue: None
) -> None:
    join_clique(trays["node-b"], 7)
    until(lambda: labels(cluster, "node-b")[CLIQUE].endswith(".7"), "node-b is in another clique")
    for job in ("first", "second"):
        submit(namespace, job, gpus=2, cpus=share_of_a_node(cluster, 40))
        wait_until_admitted(namespace, job)
    placed = [nodes_of(namespace, job) for job in ("first", "second")]
    assert sorted(placed) == [["node-a"] * 2, ["node-b"] * 2], "both pods of a Job are in one clique, here on one node"
    (assignment,) = workload_of(namespace, "first")["status"]["admission"]["podSetAssignments"]
    assert HOSTNAME in assignment["topologyAssignment"]["levels"]

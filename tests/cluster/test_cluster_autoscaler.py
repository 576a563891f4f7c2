"""A real Cluster Autoscaler adds and removes nodes for claims, from zero with the slices of `slices template`.

The nodes are Node objects without kubelets: a thread reports them as ready, and the slices of the agent are applied.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from cluster.conftest import apply_classes
from cluster.kube import prerequisites
from cluster.kube.agent import DRIVER
from cluster.kube.api import CLAIMS, EVENTS, NODES, PODS, Object
from cluster.kube.bare_node import remove_slices, reported_as_ready
from cluster.kube.cluster import Cluster, running
from cluster.kube.cluster_autoscaler import NODE_GROUP_LABEL, ClusterAutoscaler, NotDownloadedError
from cluster.kube.process import LONG_TIMEOUT_S
from cluster.kube.workload import Namespace, match, request

MIG_CONFIG = str(Path(__file__).parents[2] / "examples" / "agent" / "mig.toml")
GPUS, PARTITIONS, WITHOUT_SLICES = "gpus", "partitions", "without-slices"
HARDWARE = {
    GPUS: ("--simulate", "dgx-h100"),
    PARTITIONS: ("--simulate", "h100-pcie", "--config", MIG_CONFIG),
    WITHOUT_SLICES: ("--simulate", "l40s"),
}
"""Different products, so that a pod fits on one group only: the autoscaler remembers the slices of a group's nodes."""
NICS_OF_A_NODE = 10
MISMATCHES = "cluster_autoscaler_dra_node_template_resources_mismatch"
NONE = dict.fromkeys(HARDWARE, 0)

AgentCommand = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster: Cluster Autoscaler would add nodes for the pods of every scenario."""
    with running() as cluster:
        apply_classes(cluster)
        yield cluster


def template(group: str) -> str:
    """Return the slices of the template node of a group, as a cloud provider returns them."""
    if group == WITHOUT_SLICES:
        return ""
    command = (sys.executable, "-m", "dra_agent", "slices", "template", *HARDWARE[group])
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONG_TIMEOUT_S).stdout


@pytest.fixture(scope="module")
def autoscaler(session_cluster: Cluster) -> Iterator[ClusterAutoscaler]:
    """Cluster Autoscaler with node groups without nodes."""
    try:
        created = ClusterAutoscaler(session_cluster, {group: template(group) for group in HARDWARE})
    except NotDownloadedError as error:
        pytest.skip(str(error))
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    created.process.start()
    yield created
    created.process.kill()


@pytest.fixture(autouse=True)
def autoscaler_log(autoscaler: ClusterAutoscaler) -> Iterator[None]:
    """Print the autoscaler's log of a failed scenario."""
    yield
    print(autoscaler.process.tail(60))


@pytest.fixture(autouse=True)
def no_nodes(autoscaler: ClusterAutoscaler, namespace: Namespace) -> Iterator[None]:
    """After a scenario, remove its pods, which no kubelet terminates, and the nodes that were added."""
    yield
    api = namespace.api
    for pod in api.list(PODS, namespace.name):
        namespace.delete_pod(pod["metadata"]["name"], grace=0)
    nodes = [node for group in HARDWARE for node in autoscaler.nodes(group)]
    for node in nodes:
        api.delete(NODES, node)
    remove_slices(api, nodes)


def wait_for_nodes(autoscaler: ClusterAutoscaler, group: str, count: int) -> list[str]:
    """Wait until a group has that many nodes; return their names."""
    autoscaler.cluster.api.wait(lambda: len(autoscaler.nodes(group)) == count, f"group {group} has {count} nodes")
    return autoscaler.nodes(group)


def node_counts(autoscaler: ClusterAutoscaler) -> dict[str, int]:
    return {group: len(autoscaler.nodes(group)) for group in HARDWARE}


def publish(cluster: Cluster, agent_command: AgentCommand, group: str, *nodes: str) -> None:
    """Publish the slices that the agent publishes on nodes of a group."""
    for node in nodes:
        output = agent_command("slices", *HARDWARE[group], "--node-name", node, "-o", "json").stdout
        cluster.kubectl("create", "-f", "-", input=output)


def wait_until_bound(namespace: Namespace, *pods: str) -> list[str]:
    """Wait until the pods have nodes; return their names."""
    for pod in pods:
        namespace.api.wait(lambda pod=pod: namespace.get_pod(pod)["spec"]["nodeName"], f"{pod} has a node")  # type: ignore[misc]
    return [str(namespace.get_pod(pod)["spec"]["nodeName"]) for pod in pods]


def wait_for_event(namespace: Namespace, pod: str, reason: str, text: str) -> str:
    """Wait for an Event of Cluster Autoscaler about a pod whose message contains a text; return the message."""
    messages: list[str] = []

    def reported() -> bool:
        listed = namespace.api.list(EVENTS, namespace.name, fields={"involvedObject.name": pod, "reason": reason})
        found = [str(one["message"]) for one in listed if one["source"].get("component") == "cluster-autoscaler"]
        messages[:] = [message for message in found if text in message]
        return bool(messages)

    namespace.api.wait(reported, f"Cluster Autoscaler reports {reason} for {pod}: {text}")
    return messages[-1]


@dataclass(frozen=True)
class Case:
    """Pods that are created at once, each with its own claims of these (requests, constraints)."""

    group: str
    """The only group whose template the claims fit."""
    claims: tuple[tuple[list[Object], list[Object]], ...]
    pods: int = 1
    nodes: int = 1


def attribute(name: str) -> str:
    return f'device.attributes["{DRIVER}"].{name}'


H100 = f'{attribute("productName")} == "NVIDIA H100 80GB HBM3"'
GPU = request("gpu", "gpu", H100)
NIC = request("nic", "rdma-nic")
ALL_GPUS = request("gpus", "gpu", H100, count=8)
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
HALVES = request("halves", "mig", f'{attribute("profile")} == "3g.40gb"', count=8)
FITTING = {
    "a-product": Case(GPUS, (([GPU], []),)),
    "below-one-pcie-root": Case(GPUS, (([GPU, NIC], [match(PCIE_ROOT)]),)),
    "gpus-below-several-pcie-roots": Case(
        GPUS, (([ALL_GPUS], [{"distinctAttribute": PCIE_ROOT, "requests": ["gpus"]}]),)
    ),
    "two-claims": Case(GPUS, (([GPU], []), ([NIC], []))),
    "two-pods-that-need-a-node-each": Case(GPUS, (([ALL_GPUS], []),), pods=2, nodes=2),
    "two-pods-on-one-node": Case(GPUS, (([GPU], []),), pods=2),
    "partitions-of-all-gpus": Case(PARTITIONS, (([HALVES], []),)),
}


def create_pods(namespace: Namespace, case: Case) -> list[str]:
    """Create the pods and claims of a case; return the names of the pods."""
    references = []
    for index, (requests, constraints) in enumerate(case.claims):
        namespace.template(f"claim-{index}", *requests, constraints=constraints)
        references.append({"name": f"claim-{index}", "resourceClaimTemplateName": f"claim-{index}"})
    names = [f"user-{index}" for index in range(case.pods)]
    for name in names:
        namespace.pod(name, claims=references)
    return names


@pytest.mark.parametrize("name", FITTING)
def test_nodes_are_added_from_zero(
    autoscaler: ClusterAutoscaler, cluster: Cluster, namespace: Namespace, agent_command: AgentCommand, name: str
) -> None:
    api, case = cluster.api, FITTING[name]
    pods = create_pods(namespace, case)
    nodes = wait_for_nodes(autoscaler, case.group, case.nodes)
    wait_for_event(namespace, pods[0], "TriggeredScaleUp", f"{case.group} 0->{case.nodes}")

    with reported_as_ready(api, *nodes):
        api.wait(lambda: autoscaler.starting_nodes() == case.nodes, "the autoscaler waits for the slices")
        publish(cluster, agent_command, case.group, *nodes)
        assert set(wait_until_bound(namespace, *pods)) == set(nodes)
        api.wait(lambda: autoscaler.starting_nodes() == 0, "the nodes have started")

    assert node_counts(autoscaler) == {**NONE, case.group: case.nodes}
    devices = devices_of_template(case.group)
    for claim in api.list(CLAIMS, namespace.name):
        results = namespace.results(claim)
        assert results and {(one["pool"].partition("/")[2], one["device"]) for one in results} <= devices


def devices_of_template(group: str) -> set[tuple[str, str]]:
    return {
        (entry["spec"]["pool"]["name"].partition("/")[2], device["name"])
        for entry in yaml.safe_load(template(group))["items"]
        for device in entry["spec"].get("devices") or ()
    }


NOT_FITTING = {
    "another-product": [request("gpu", "gpu", f'{attribute("productName")} == "NVIDIA B200"')],
    "an-attribute-that-is-left-out": [request("gpu", "gpu", f'{attribute("uuid")} != ""')],
    "more-than-one-node-has": [request("gpu", "gpu", count=9)],
    "more-than-the-counters-permit": [
        request("gpus", "gpu", f'{attribute("productName")} == "NVIDIA H100 PCIe"', count=4),
        request("partition", "mig"),
    ],
    "equal-values-that-are-left-out": [request("nics", "rdma-nic", count=2)],
}
REASONS = {"an-attribute-that-is-left-out": "CEL runtime error: no such key: uuid"}
CONSTRAINTS = {"equal-values-that-are-left-out": [match(f"{DRIVER}/ibSubnetPrefix")]}


@pytest.mark.parametrize("name", NOT_FITTING)
def test_no_node_is_added_for_a_claim_that_does_not_fit_on_a_template(
    autoscaler: ClusterAutoscaler, namespace: Namespace, name: str
) -> None:
    namespace.claim("devices", *NOT_FITTING[name], constraints=CONSTRAINTS.get(name, []))
    namespace.pod("user", claim="devices")
    wait_for_event(namespace, "user", "NotTriggerScaleUp", REASONS.get(name, "3 cannot allocate all claims"))
    assert node_counts(autoscaler) == NONE


STABLE_S = 120.0
"""A ready node replaces the template of its group once this state is older than a minute."""


def test_a_group_without_slices_in_its_template_grows_once_it_has_a_node(
    autoscaler: ClusterAutoscaler, cluster: Cluster, namespace: Namespace, agent_command: AgentCommand
) -> None:
    api = cluster.api
    namespace.template("all", request("gpus", "gpu", f'{attribute("productName")} == "NVIDIA L40S"', count=4))
    select = {NODE_GROUP_LABEL: WITHOUT_SLICES}
    namespace.pod("first", template="all", nodeSelector=select)
    message = wait_for_event(namespace, "first", "NotTriggerScaleUp", "1 cannot allocate all claims")
    assert "2 node(s) didn't match" in message
    assert autoscaler.nodes(WITHOUT_SLICES) == []

    autoscaler.add_node(WITHOUT_SLICES, "first-node")
    with reported_as_ready(api, "first-node"):
        publish(cluster, agent_command, WITHOUT_SLICES, "first-node")
        wait_until_bound(namespace, "first")
        namespace.pod("second", template="all", nodeSelector=select)
        wait_for_event(namespace, "second", "NotTriggerScaleUp", "1 cannot allocate all claims")
    with reported_as_ready(api, "first-node", since_s=STABLE_S):
        nodes = wait_for_nodes(autoscaler, WITHOUT_SLICES, 2)
    for pod in ("first", "second"):
        namespace.delete_pod(pod, grace=0)
    for node in nodes:
        api.delete(NODES, node)
    # It is from zero again, and the autoscaler remembers the slices of the node.
    namespace.pod("third", template="all", nodeSelector=select)
    wait_for_nodes(autoscaler, WITHOUT_SLICES, 1)


def test_an_idle_node_is_removed_and_one_with_a_claim_is_not(
    autoscaler: ClusterAutoscaler, cluster: Cluster, namespace: Namespace, agent_command: AgentCommand
) -> None:
    namespace.template("all", ALL_GPUS)
    for pod in ("stays", "ends"):
        namespace.pod(pod, template="all")
    nodes = wait_for_nodes(autoscaler, GPUS, 2)
    with reported_as_ready(cluster.api, *nodes):
        publish(cluster, agent_command, GPUS, *nodes)
        kept, idle = wait_until_bound(namespace, "stays", "ends")
        namespace.delete_pod("ends", grace=0)
        assert wait_for_nodes(autoscaler, GPUS, 1) == [kept]
        cluster.api.wait(lambda: f"Node {kept} unremovable" in autoscaler.process.read_log(), f"{kept} is not removed")
    assert idle != kept


def test_a_node_whose_nics_are_all_in_use_counts_as_utilized(
    autoscaler: ClusterAutoscaler, cluster: Cluster, namespace: Namespace, agent_command: AgentCommand
) -> None:
    """The pool with the most devices in use counts, although none of the GPUs is."""
    namespace.claim("nics", request("nics", "rdma-nic", count=NICS_OF_A_NODE))
    namespace.pod("user", claim="nics", nodeSelector={NODE_GROUP_LABEL: GPUS})
    (node,) = wait_for_nodes(autoscaler, GPUS, 1)
    with reported_as_ready(cluster.api, node):
        publish(cluster, agent_command, GPUS, node)
        wait_until_bound(namespace, "user")
        reason = f"Node {node} unremovable: {DRIVER}/{node}/nic requested (100% of allocatable) is above"
        cluster.api.wait(lambda: reason in autoscaler.process.read_log(), "the node counts as utilized")


def test_the_metric_counts_what_a_template_leaves_out_until_a_node_replaces_it(
    autoscaler: ClusterAutoscaler, cluster: Cluster, namespace: Namespace, agent_command: AgentCommand
) -> None:
    def mismatches(kind: str) -> float:
        return autoscaler.metric(MISMATCHES, driver=DRIVER, mismatch_type=kind)

    namespace.claim("devices", GPU)
    namespace.pod("user", claim="devices")
    (node,) = wait_for_nodes(autoscaler, GPUS, 1)
    with reported_as_ready(cluster.api, node):
        publish(cluster, agent_command, GPUS, node)
        cluster.api.wait(lambda: mismatches("mismatch") > 0, "the attributes that are left out are counted")
    with reported_as_ready(cluster.api, node, since_s=STABLE_S):
        cluster.api.wait(lambda: mismatches("mismatch") == 0, "the slices of the node are the template")

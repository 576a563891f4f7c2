"""Labels of Nodes for the fabric: two nodes of one NVLink clique, then of two; what an agent may change of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import NODES, Api
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, match, request
from cluster.test_permissions import kinds_of_tokens, refusal
from dra_simulate import nvml

from .conftest import StartAgent

PROFILE = "gb200-nvl"
CHART_VALUES = ("nodeLabels=node",)
PREFIX = f"fabric.{DRIVER}/"
CLIQUE = f"{PREFIX}clique"
FOUR_GPUS = request("gpus", "gpu", count=4)
LINKED = match(f"{DRIVER}/interconnectGroup", "gpus")


def labels(cluster: Cluster, node: str) -> dict[str, str]:
    found = cluster.api.get(NODES, node)["metadata"]["labels"]
    return {key: value for key, value in found.items() if key.startswith(PREFIX)}


def others(cluster: Cluster, node: str) -> dict[str, str]:
    found = cluster.api.get(NODES, node)["metadata"]["labels"]
    return {key: value for key, value in found.items() if not key.startswith(PREFIX)}


def join_clique(agent: Agent, clique: int) -> None:
    """Let the fabric manager put all GPUs of a host into another clique of the same domain."""
    folder = agent.host / "lib"
    with nvml.locked(folder):
        state = nvml.read(folder)
        devices = []
        for gpu in state.devices:
            assert gpu.fabric is not None
            devices.append(msgspec.structs.replace(gpu, fabric=(gpu.fabric[0], clique)))
        nvml.write(folder, msgspec.structs.replace(state, devices=tuple(devices)))


@pytest.fixture
def trays(cluster: Cluster, start_agent: StartAgent) -> Iterator[dict[str, Agent]]:
    """An agent on each node that labels it, and no label afterwards."""
    identity = cluster.identity(DRIVER, *CHART_VALUES)
    started = {
        node: start_agent(node, PROFILE, "--node-labels", "node", kubeconfig=identity.kubeconfig(node))
        for node in ("node-a", "node-b")
    }
    yield started
    for node, agent in started.items():
        agent.end()  # it would write the labels again
        gone = {"metadata": {"labels": dict.fromkeys(labels(cluster, node))}}
        cluster.api.patch(NODES, node, gone)


def start_near(namespace: Namespace, name: str) -> None:
    """Create a pod with the four GPUs of a tray, on another node in the clique of pod `first`."""
    namespace.claim(name, FOUR_GPUS, constraints=[LINKED])
    of_first = {"labelSelector": {"matchLabels": {"app": "first"}}}
    affinity = {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{**of_first, "topologyKey": CLIQUE}]},
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**of_first, "topologyKey": "kubernetes.io/hostname"}]
        },
    }
    namespace.pod(name, claim=name, affinity=affinity)


def test_a_gang_runs_in_one_clique_and_waits_when_there_are_two(
    cluster: Cluster, trays: dict[str, Agent], namespace: Namespace
) -> None:
    before = {node: others(cluster, node) for node in trays}
    until(lambda: all(CLIQUE in labels(cluster, node) for node in trays), "both nodes have a clique")
    assert labels(cluster, "node-a") == labels(cluster, "node-b")
    assert labels(cluster, "node-a")[CLIQUE].endswith(".32766")

    namespace.claim("first", FOUR_GPUS, constraints=[LINKED])
    namespace.pod("first", claim="first", node="node-a")
    namespace.running("first")
    start_near(namespace, "second")
    namespace.running("second")
    assert namespace.get_pod("second")["spec"]["nodeName"] == "node-b"
    assert len(namespace.results("second")) == 4
    namespace.delete_pod("second")
    namespace.wait_until_deleted("second")

    join_clique(trays["node-b"], 7)
    until(lambda: labels(cluster, "node-b")[CLIQUE].endswith(".7"), "node-b is in another clique")
    assert labels(cluster, "node-a")[CLIQUE].endswith(".32766")
    assert labels(cluster, "node-a")[f"{PREFIX}domain"] == labels(cluster, "node-b")[f"{PREFIX}domain"]
    start_near(namespace, "third")
    namespace.wait_for_scheduling_failure("third", "pod affinity")
    assert {node: others(cluster, node) for node in trays} == before


def test_labels_are_removed_when_the_option_is_turned_off(
    cluster: Cluster, trays: dict[str, Agent], start_agent: StartAgent
) -> None:
    until(lambda: CLIQUE in labels(cluster, "node-a"), "the node has a clique")
    trays["node-a"].end()
    assert CLIQUE in labels(cluster, "node-a"), "a restart of the agent changes no label"
    before = others(cluster, "node-a")
    # With the permissions of the default values: the policy permits to remove labels, not to add them.
    start_agent("node-a", PROFILE)
    until(lambda: labels(cluster, "node-a") == {}, "the labels are removed")
    assert others(cluster, "node-a") == before


@pytest.fixture
def own(cluster: Cluster) -> Api:
    """An agent of node-a that may label it, once the policy is in force."""
    identity = cluster.identity(DRIVER, *CHART_VALUES)
    api = cluster.api.as_user(identity.token("node-a"))

    def is_in_force() -> bool:
        return bool(refusal(lambda: api.patch(NODES, "node-b", {"metadata": {"labels": {CLIQUE: "x"}}})))

    cluster.api.wait(is_in_force, "the policy about nodes is in force")
    return api


@pytest.mark.parametrize("who", ["pod", "bound to the node", "bound to nothing", "kubelet"])
def test_no_token_labels_another_node(cluster: Cluster, own: Api, who: str) -> None:
    tokens = kinds_of_tokens(cluster, cluster.identity(DRIVER, *CHART_VALUES))
    assert refusal(lambda: tokens[who].patch(NODES, "node-b", {"metadata": {"labels": {CLIQUE: "stolen"}}}))
    assert labels(cluster, "node-b").get(CLIQUE) != "stolen"


@pytest.mark.parametrize(
    "changed",
    [
        {"x": "y"},
        {f"{PREFIX}other": "y"},
        {f"fabric.{DRIVER}.example.com/clique": "y"},
        {f"other/{PREFIX.rstrip('/')}": "y"},
        {"kubernetes.io/hostname": None},
        {"kubernetes.io/hostname": "node-b"},
        {CLIQUE: "y", "x": "y"},
    ],
    ids=str,
)
def test_no_other_label_of_the_own_node_is_changed(cluster: Cluster, own: Api, changed: dict[str, Any]) -> None:
    assert "the labels of the fabric" in refusal(lambda: own.patch(NODES, "node-a", {"metadata": {"labels": changed}}))


def test_labels_of_the_fabric_are_written_only_with_the_option(cluster: Cluster, own: Api) -> None:
    def write(api: Api, value: str | None) -> str:
        return refusal(lambda: api.patch(NODES, "node-a", {"metadata": {"labels": {CLIQUE: value}}}))

    by_default = cluster.api.as_user(cluster.identity(DRIVER).token("node-a"))
    assert write(own, "one") == ""
    cluster.api.wait(lambda: write(by_default, "two") != "", "the policy of the default values is in force")
    assert write(by_default, None) == "", "labels of an earlier run are removed without the option"
    assert CLIQUE not in cluster.api.get(NODES, "node-a")["metadata"]["labels"]

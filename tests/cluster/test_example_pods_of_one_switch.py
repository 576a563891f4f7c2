"""The example with two GPUs and a NIC below one PCIe switch: on a host with such switches, and on one without."""

from __future__ import annotations

from cluster.kube import example_pods
from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS, PODS, Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, match, request

HARDWARE = {"node-a": "hgx-h200", "node-b": "dgx-h100"}
"""Only switches of node-a have two GPUs."""
NAME = "two-gpus-and-a-nic"
SWITCH = "dra-agent.internal/pcieSwitch"

Agents = dict[str, Agent]


def switches(agent: Agent) -> dict[str, str]:
    """Return the switch above each published device that has one."""
    published = {name: device["attributes"].get("pcieSwitch") for name, device in agent.devices().items()}
    return {name: attribute["string"] for name, attribute in published.items() if attribute}


def apply(namespace: Namespace, name: str = NAME) -> None:
    """Create the claim and the pod of the example, under this name."""
    claim, pod = example_pods.objects("two-gpus-and-a-nic.yaml")
    claim["metadata"]["name"] = pod["metadata"]["name"] = name
    pod["spec"]["resourceClaims"][0]["resourceClaimName"] = name
    namespace.api.create(CLAIMS, claim, namespace.name)
    namespace.api.create(PODS, pod, namespace.name)


def node_of(pod: Object) -> str:
    found: str = pod["spec"]["nodeName"]
    return found


def test_both_gpus_and_the_nic_are_below_one_switch(cluster: Cluster, agents: Agents, namespace: Namespace) -> None:
    text = example_pods.manifest("two-gpus-and-a-nic.yaml")
    cluster.kubectl("apply", "-n", namespace.name, "--validate=strict", "-f", "-", input=text)
    assert node_of(namespace.running(NAME)) == "node-a"
    results = namespace.results(NAME)
    assert sorted(result["request"] for result in results) == ["gpus", "gpus", "nic"]
    above = switches(agents["node-a"])
    assert len({above[result["device"]] for result in results}) == 1
    gpus = namespace.environment(NAME, "training")["DRA_AGENT_REQUEST_GPUS"]
    assert sorted(gpus.split(",")) == sorted(result["device"] for result in results if result["request"] == "gpus")
    assert "DRA_AGENT_REQUEST_GPUS" not in namespace.environment(NAME, "transport")


def test_each_switch_serves_one_such_pod_and_the_next_one_waits(agents: Agents, namespace: Namespace) -> None:
    above = switches(agents["node-a"])
    gpus = {name for name in above if name.startswith("gpu-")}
    count = len({above[gpu] for gpu in gpus})
    assert (len(gpus), count) == (8, 4), "two GPUs per switch"
    pods = [f"pod-{number}" for number in range(count)]
    for name in pods:
        apply(namespace, name)
    namespace.running(*pods)
    used = [{above[result["device"]] for result in namespace.results(name)} for name in pods]
    assert sorted(map(len, used)) == [1] * count and len(set.union(*used)) == count
    # Eight GPUs of node-b are free, with adapters, but no switch there has two of them.
    apply(namespace, "late")
    namespace.wait_for_scheduling_failure("late", "cannot allocate all claims")
    namespace.delete_pod(pods[0])
    namespace.wait_until_deleted(pods[0])
    assert node_of(namespace.running("late")) == "node-a"


def test_more_gpus_than_a_switch_has_stay_pending(agents: Agents, namespace: Namespace) -> None:
    requests = request("gpus", "gpu", count=3), request("nic", "rdma-nic")
    namespace.claim("three", *requests, constraints=[match(SWITCH, "gpus", "nic")])
    namespace.pod("three", claim="three")
    namespace.wait_for_scheduling_failure("three", "cannot allocate all claims")
    pod = namespace.get_pod("three")
    assert pod["status"]["phase"] == "Pending" and "nodeName" not in pod["spec"]
    # The devices are there: without the constraint, the same requests are met.
    namespace.claim("anywhere", *requests)
    namespace.pod("anywhere", claim="anywhere")
    namespace.running("anywhere")

"""A real Karpenter adds a node from zero for a claim, with the devices of `dra-agent slices template`.

The nodes are Node objects without kubelets: a thread reports them as ready, and the slices of the agent are applied.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import yaml

from cluster.conftest import apply_classes
from cluster.kube import prerequisites
from cluster.kube.agent import DRIVER
from cluster.kube.api import EVENTS, NODES, Api, Kind, Object
from cluster.kube.bare_node import remove_slices, reported_as_ready
from cluster.kube.cluster import Cluster, running
from cluster.kube.karpenter import Karpenter, instance_type
from cluster.kube.process import LONG_TIMEOUT_S
from cluster.kube.workload import Namespace, match, request

NODE_POOLS = Kind("karpenter.sh/v1", "nodepools", namespaced=False)
NODE_CLAIMS = Kind("karpenter.sh/v1", "nodeclaims", namespaced=False)
NODE_CLASSES = Kind("karpenter.kwok.sh/v1alpha1", "kwoknodeclasses", namespaced=False)
PROFILE = "dgx-h100"
WITH_DEVICES, WITHOUT_DEVICES, WITHOUT_BINDINGS = "gpus.large", "plain.large", "unbound.large"
PRICES = {WITHOUT_DEVICES: 1.0, WITH_DEVICES: 2.0, WITHOUT_BINDINGS: 3.0}
"""Of the instance types: Karpenter adds a node of the cheapest one on which a pod fits."""
INSTANCE_TYPE = "node.kubernetes.io/instance-type"

AgentCommand = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster: Karpenter would add nodes for the pods of every scenario."""
    with running() as cluster:
        apply_classes(cluster)
        yield cluster


@pytest.fixture(scope="module")
def template() -> str:
    """The devices of the instance type, as a cloud provider of Karpenter fills them in."""
    command = (sys.executable, "-m", "dra_agent", "slices", "template", "--simulate", PROFILE, "--form", "karpenter")
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONG_TIMEOUT_S).stdout


@pytest.fixture(scope="module")
def karpenter(session_cluster: Cluster, template: str) -> Iterator[Karpenter]:
    """Karpenter with a NodePool without nodes."""
    unbound = yaml.safe_dump({**yaml.safe_load(template), "attributeBindings": []})
    documents = {WITH_DEVICES: template, WITHOUT_BINDINGS: unbound}
    devices = {name: document.replace("node-name", name) for name, document in documents.items()}
    try:
        created = Karpenter(session_cluster, [instance_type(*of) for of in PRICES.items()], devices)
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    api = session_cluster.api
    api.create(NODE_CLASSES, {"kind": "KWOKNodeClass", "metadata": {"name": "simulated"}})
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "simulated"}
    capacity_type = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
    spec = {
        "template": {
            "spec": {"nodeClassRef": reference, "requirements": [capacity_type], "expireAfter": "Never"},
        },
        "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
    }
    api.create(NODE_POOLS, {"kind": "NodePool", "metadata": {"name": "gpus"}, "spec": spec})
    created.process.start()
    yield created
    created.process.kill()


@pytest.fixture(autouse=True)
def karpenter_log(karpenter: Karpenter) -> Iterator[None]:
    """Print Karpenter's log of a failed scenario."""
    yield
    print(karpenter.process.tail(40))


@pytest.fixture(autouse=True)
def no_nodes(karpenter: Karpenter, namespace: Namespace) -> Iterator[None]:
    """After a scenario, remove its pods, which no kubelet terminates, and the nodes that Karpenter added."""
    yield
    api = namespace.api
    namespace.delete_pod("user", grace=0)
    nodes = [str(found.get("status", {}).get("nodeName", "")) for found in api.list(NODE_CLAIMS)]
    for found in api.list(NODE_CLAIMS):
        api.delete(NODE_CLAIMS, found["metadata"]["name"])
    remove_slices(api, nodes)
    api.wait(
        lambda: not api.list(NODE_CLAIMS) and not [one for one in nodes if one and api.find(NODES, one)],
        "the nodes that Karpenter added are gone",
    )


def only_node_claim(api: Api) -> Object:
    listed = api.list(NODE_CLAIMS)
    assert len(listed) == 1, f"there are {len(listed)} NodeClaims"
    return listed[0]


def condition(node_claim: Object, kind: str) -> Object:
    listed = node_claim.get("status", {}).get("conditions", [])
    return next((one for one in listed if one["type"] == kind), {})


def wait_for_node(api: Api) -> str:
    """Wait until Karpenter has created a NodeClaim and its Node; return the name of the Node."""
    api.wait(lambda: only_node_claim(api)["status"]["nodeName"], "Karpenter creates a NodeClaim")
    node = str(only_node_claim(api)["status"]["nodeName"])
    api.wait(lambda: api.get(NODES, node), "the provider creates the Node")
    return node


def publish(cluster: Cluster, agent_command: AgentCommand, node: str) -> None:
    """Publish the slices that the agent publishes on a node of this name."""
    output = agent_command("slices", "--simulate", PROFILE, "--node-name", node, "-o", "json").stdout
    cluster.kubectl("create", "-f", "-", input=output)


def refusal_of_karpenter(namespace: Namespace, pod: str) -> str:
    """Wait for Karpenter's Event about a pod for which it adds no node; return the message."""
    messages: list[str] = []

    def reported() -> bool:
        listed = namespace.api.list(EVENTS, namespace.name, fields={"involvedObject.name": pod})
        messages[:] = [
            str(event["message"])
            for event in listed
            if event["reason"] == "FailedScheduling" and event["source"].get("component") == "karpenter"
        ]
        return bool(messages)

    namespace.api.wait(reported, f"Karpenter reports why it adds no node for {pod}")
    return messages[0]


GPU = request("gpu", "gpu", f'device.attributes["{DRIVER}"].productName == "NVIDIA H100 80GB HBM3"')
NICS = request("nics", "rdma-nic", count=2)
SAME_FABRIC = [match(f"{DRIVER}/ibSubnetPrefix")]
FITTING = {
    "a-product": ([GPU], []),
    "of-a-selected-instance-type": ([GPU], []),
    "below-one-pcie-root": (
        [request("gpu", "gpu"), request("nic", "rdma-nic")],
        [match("resource.kubernetes.io/pcieRoot")],
    ),
    # The value is left out of the template; the attribute binding has the devices with an equal one.
    "of-one-fabric": ([NICS], SAME_FABRIC),
}
SELECTORS = {"of-a-selected-instance-type": {INSTANCE_TYPE: WITHOUT_BINDINGS}}


@pytest.mark.parametrize("case", FITTING)
def test_a_node_is_added_from_zero(
    karpenter: Karpenter, cluster: Cluster, namespace: Namespace, agent_command: AgentCommand, template: str, case: str
) -> None:
    api = cluster.api
    requests, constraints = FITTING[case]
    selector = SELECTORS.get(case, {})
    namespace.claim("devices", *requests, constraints=constraints)
    namespace.pod("user", claim="devices", nodeSelector=selector)
    node = wait_for_node(api)
    expected_type = selector.get(INSTANCE_TYPE, WITH_DEVICES)
    assert api.get(NODES, node)["metadata"]["labels"][INSTANCE_TYPE] == expected_type

    with reported_as_ready(api, node):
        api.wait(
            lambda: condition(only_node_claim(api), "Initialized")["reason"] == "DRADriverPoolsNotPublished",
            "Karpenter waits for the slices of the driver",
        )
        assert DRIVER in condition(only_node_claim(api), "Initialized")["message"]
        publish(cluster, agent_command, node)
        api.wait(lambda: namespace.get_pod("user")["spec"].get("nodeName") == node, "the pod has the new node")
        api.wait(
            lambda: condition(only_node_claim(api), "Initialized")["status"] == "True",
            "Karpenter regards the node as initialized",
        )

    expected = {
        (entry["pool"]["name"].replace("node-name", node), device["name"])
        for entry in yaml.safe_load(template)["resourceSliceTemplates"]
        for device in entry.get("devices", [])
    }
    results = namespace.results("devices")
    assert results and {(one["pool"], one["device"]) for one in results} <= expected


SECOND_GPU_ROOT = {"distinctAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["gpu"]}
NOT_FITTING = {
    "another-product": (request("gpu", "gpu", f'device.attributes["{DRIVER}"].productName == "NVIDIA B200"'), []),
    "an-attribute-that-is-left-out": (request("gpu", "gpu", f'device.attributes["{DRIVER}"].uuid != ""'), []),
    "more-than-one-node-has": (request("gpu", "gpu", count=9), []),
    "distinct-attribute": (request("gpu", "gpu", count=2), [SECOND_GPU_ROOT]),
}
REFUSALS = {"distinct-attribute": "DistinctAttribute constraints not done yet"}
NO_INSTANCE_TYPE = "no instance type can satisfy the allocation"


@pytest.mark.parametrize("case", NOT_FITTING)
def test_no_node_is_added_for_a_claim_that_does_not_fit_on_the_template(
    karpenter: Karpenter, namespace: Namespace, case: str
) -> None:
    asked, constraints = NOT_FITTING[case]
    namespace.claim("devices", asked, constraints=constraints)
    namespace.pod("user", claim="devices")
    assert REFUSALS.get(case, NO_INSTANCE_TYPE) in refusal_of_karpenter(namespace, "user")
    assert namespace.api.list(NODE_CLAIMS) == []


OTHER_TYPES = {"without-devices": (WITHOUT_DEVICES, GPU, []), "without-bindings": (WITHOUT_BINDINGS, NICS, SAME_FABRIC)}


@pytest.mark.parametrize("case", OTHER_TYPES)
def test_no_node_is_added_of_an_instance_type_without_the_devices_or_their_bindings(
    karpenter: Karpenter, namespace: Namespace, case: str
) -> None:
    name, asked, constraints = OTHER_TYPES[case]
    namespace.claim("devices", asked, constraints=constraints)
    namespace.pod("user", claim="devices", nodeSelector={INSTANCE_TYPE: name})
    assert "no instance type satisfies both scheduling and dynamic resource" in refusal_of_karpenter(namespace, "user")
    assert namespace.api.list(NODE_CLAIMS) == []

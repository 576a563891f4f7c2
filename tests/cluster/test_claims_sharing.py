"""Consumers of a claim: several containers or pods, an init container, none, two drivers; and its configuration."""

from __future__ import annotations

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS, CLASSES, Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, container, opaque, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
OTHER = "other.example"

Agents = dict[str, Agent]


def has_spec(agents: Agents, claim: Object) -> bool:
    """Return whether any node has a CDI spec for the claim."""
    return any(claim["metadata"]["uid"] in name for agent in agents.values() for name in agent.node.cdi_files())


def test_two_containers_share_a_claim(agents: Agents, namespace: Namespace) -> None:
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod(
        "user",
        claims=[{"name": "gpu", "resourceClaimName": "one"}],
        containers=[container("left", "gpu"), container("right", "gpu"), container("without")],
    )
    namespace.running("user")
    device = namespace.results("one")[0]["device"]
    for name in ("left", "right"):
        assert namespace.environment("user", name)["DRA_AGENT_REQUEST_GPU"] == device
        assert nvidia_gpus(namespace, "user", name) == nvidia_gpus(namespace, "user", "left") != []
    assert not [key for key in namespace.environment("user", "without") if key.startswith("DRA_AGENT_")]
    assert nvidia_gpus(namespace, "user", "without") == []


def nvidia_gpus(namespace: Namespace, pod: str, name: str | None = None) -> list[str]:
    """Return the NVIDIA GPUs that a container has nodes of."""
    return namespace.execute(pod, "cd /dev; ls -d nvidia[0-9]* 2>/dev/null || true", name).split()


def test_two_pods_share_a_claim(agents: Agents, namespace: Namespace) -> None:
    claim = namespace.claim("one", request("gpu", "gpu"))
    for pod in ("first", "second"):
        namespace.pod(pod, claim="one")
    namespace.running("first", "second")
    assert len({namespace.get_pod(pod)["spec"]["nodeName"] for pod in ("first", "second")}) == 1
    assert len(namespace.get_claim("one")["status"]["reservedFor"]) == 2
    device = namespace.results("one")[0]["device"]
    for pod in ("first", "second"):
        assert namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] == device
    namespace.delete_pod("first")
    namespace.wait_until_deleted("first")
    # The other pod still holds it: the device stays, and a third pod joins.
    assert has_spec(agents, claim)
    namespace.pod("third", claim="one")
    namespace.running("second", "third")
    assert namespace.environment("third")["DRA_AGENT_REQUEST_GPU"] == device
    for pod in ("second", "third"):
        namespace.delete_pod(pod)
    namespace.wait_until_deleted("second", "third")
    namespace.api.wait(lambda: not has_spec(agents, claim), "the claim is unprepared after its last pod")


def test_init_container_uses_the_claim_of_its_pod(agents: Agents, namespace: Namespace) -> None:
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod(
        "user",
        claims=[{"name": "gpu", "resourceClaimName": "one"}],
        init_containers=[container("first", "gpu", command="echo init $DRA_AGENT_REQUEST_GPU; ls /dev")],
        containers=[container("main", "gpu")],
    )
    namespace.running("user")
    device = namespace.results("one")[0]["device"]
    output = namespace.log("user", "first")
    assert output.startswith(f"init {device}\n")
    # Both containers have the same devices.
    assert set(nvidia_gpus(namespace, "user")) <= set(output.split())
    assert namespace.environment("user")["DRA_AGENT_REQUEST_GPU"] == device


def test_claim_is_used_by_an_init_container_only(agents: Agents, namespace: Namespace) -> None:
    namespace.template("one", request("gpu", "gpu"))
    namespace.pod(
        "user",
        claims=[{"name": "gpu", "resourceClaimTemplateName": "one"}],
        init_containers=[container("first", "gpu", command="echo init $DRA_AGENT_REQUEST_GPU")],
        containers=[container("main", command="env")],
    )
    assert "DRA_AGENT" not in namespace.ended("user")
    assert namespace.log("user", "first").startswith("init gpu-")


def test_claim_that_no_container_uses_is_held(agents: Agents, namespace: Namespace) -> None:
    claim = namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claims=[{"name": "gpu", "resourceClaimName": "one"}], containers=[container("main")])
    namespace.running("user")
    # The pod still holds the device, and its container gets nothing.
    assert len(namespace.results("one")) == 1
    assert has_spec(agents, claim)
    assert not [key for key in namespace.environment("user") if key.startswith("DRA_AGENT_")]
    assert nvidia_gpus(namespace, "user") == []
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(lambda: not has_spec(agents, claim), "the claim is unprepared")


@pytest.fixture
def other_class(cluster: Cluster) -> object:
    """A DeviceClass of the GPUs of another driver."""
    selector = f'device.driver == "{OTHER}" && device.attributes["{OTHER}"].type == "gpu"'
    body = {"metadata": {"name": "other-gpu"}, "spec": {"selectors": [{"cel": {"expression": selector}}]}}
    cluster.api.create(CLASSES, body)
    yield
    cluster.api.delete(CLASSES, "other-gpu")


def test_one_claim_has_devices_of_two_drivers(
    agents: Agents, start_agent: StartAgent, namespace: Namespace, other_class: object
) -> None:
    other = start_agent("node-b", "mi300x", driver=OTHER)
    claim = namespace.claim("both", request("nvidia", "gpu"), request("amd", "other-gpu"))
    namespace.pod("user", claim="both")
    namespace.running("user")
    results = {result["request"]: result for result in namespace.results("both")}
    assert {name: result["driver"] for name, result in results.items()} == {
        "nvidia": "dra-agent.internal",
        "amd": OTHER,
    }
    environment = namespace.environment("user")
    for name, result in results.items():
        assert environment[f"DRA_AGENT_REQUEST_{name.upper()}"] == result["device"]
    assert len(nvidia_gpus(namespace, "user")) == 1
    assert namespace.execute("user", "ls /dev/dri").split() == sorted(nodes_of(other, results["amd"]["device"]))
    uid = claim["metadata"]["uid"]
    owners = sorted(name for name in other.node.cdi_files() if uid in name)
    assert owners == [f"dra-agent.internal-claim_{uid}.json", f"{OTHER}-claim_{uid}.json"]
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(lambda: not has_spec(agents, claim), "both drivers have unprepared it")


def nodes_of(agent: Agent, device: str) -> list[str]:
    """Return the nodes below /dev/dri of a device of the simulated host."""
    address = agent.devices()[device]["attributes"]["resource.kubernetes.io/pciBusID"]["string"]
    return [path.name for path in (agent.host / "sys/bus/pci/devices" / address / "drm").iterdir()]


CONFIG = {"apiVersion": "dra-agent.internal/v1", "kind": "Unheard", "level": 1}


@pytest.fixture
def configured_class(cluster: Cluster) -> object:
    """A DeviceClass of GPUs with configuration for two drivers; the kind of the agent's one is unknown."""
    selector = 'device.driver == "dra-agent.internal" && device.attributes["dra-agent.internal"].type == "gpu"'
    spec = {
        "selectors": [{"cel": {"expression": selector}}],
        "config": [
            {"opaque": {"driver": OTHER, "parameters": {"anything": "goes"}}},
            {"opaque": {"driver": "dra-agent.internal", "parameters": CONFIG}},
        ],
    }
    cluster.api.create(CLASSES, {"metadata": {"name": "configured-gpu"}, "spec": spec})
    yield
    cluster.api.delete(CLASSES, "configured-gpu")


def test_unknown_class_configuration_fails_only_its_claim(
    agents: Agents, namespace: Namespace, configured_class: object
) -> None:
    namespace.claim("odd", request("gpu", "configured-gpu"))
    namespace.claim("plain", request("gpu", "gpu"))
    namespace.pod("refused", claim="odd", node="node-a")
    namespace.pod("user", claim="plain", node="node-a")
    # The configuration of one claim fails that claim only.
    namespace.running("user")
    output = namespace.wait_for_prepare_failure("refused")
    entries = namespace.get_claim("odd")["status"]["allocation"]["devices"]["config"]
    (index,) = (n for n, entry in enumerate(entries) if entry["opaque"]["driver"] == "dra-agent.internal")
    assert entries[index]["source"] == "FromClass"
    assert f"claim {namespace.name}/odd: status.allocation.devices.config[{index}].opaque.parameters.kind" in output
    assert "'Unheard' of 'dra-agent.internal/v1' is not known to this agent" in output


def test_claim_configuration_applies_to_its_named_request(agents: Agents, namespace: Namespace) -> None:
    requests = [request("gpu", "gpu"), request("nic", "rdma-nic")]
    # The agent ignores another driver's configuration.
    namespace.claim("foreign", *requests, config=[opaque(OTHER, {"anything": "goes"}, "gpu")])
    namespace.pod("user", claim="foreign", node="node-a")
    namespace.running("user")
    config = [opaque(OTHER, {"anything": "goes"}, "gpu"), opaque("dra-agent.internal", CONFIG, "nic")]
    namespace.claim("odd", *requests, config=config)
    namespace.pod("refused", claim="odd", node="node-a")
    output = namespace.wait_for_prepare_failure("refused")
    entries = namespace.get_claim("odd")["status"]["allocation"]["devices"]["config"]
    assert [(entry["source"], entry["requests"]) for entry in entries] == [
        ("FromClaim", ["gpu"]),
        ("FromClaim", ["nic"]),
    ]
    assert "odd: status.allocation.devices.config[1].opaque.parameters.kind" in output


def test_a_new_claim_corrects_a_wrong_configuration(agents: Agents, namespace: Namespace) -> None:
    namespace.claim("odd", request("gpu", "gpu"), config=[opaque("dra-agent.internal", CONFIG)])
    namespace.pod("refused", claim="odd", node="node-a")
    namespace.wait_for_prepare_failure("refused")
    namespace.delete_pod("refused")
    namespace.wait_until_deleted("refused")
    namespace.delete_claim("odd")
    namespace.api.wait(lambda: not namespace.api.find(CLAIMS, "odd", namespace.name), "the claim is gone")
    namespace.claim("odd", request("gpu", "gpu"))
    namespace.pod("user", claim="odd", node="node-a")
    namespace.running("user")

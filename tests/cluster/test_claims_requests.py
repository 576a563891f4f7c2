"""All kinds of requests, from the claim to the container, on simulated H100 and L40S nodes."""

from __future__ import annotations

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS, Object
from cluster.kube.workload import Namespace, container, first_available, match, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
OWN = 'device.attributes["dra-agent.internal"]'
MEMORY = 'device.capacity["dra-agent.internal"].memory'

Agents = dict[str, Agent]


def names(results: list[Object]) -> list[str]:
    return [result["device"] for result in results]


def published(agents: Agents, result: Object) -> Object:
    """Return the device of an allocation as its node published it."""
    node = result["pool"].partition("/")[0]
    device: Object = agents[node].devices()[result["device"]]
    return device


def node_of(result: Object) -> str:
    return str(result["pool"].partition("/")[0])


def has_spec(agents: Agents, claim: Object) -> bool:
    """Return whether any node has a CDI spec for the claim."""
    return any(claim["metadata"]["uid"] in name for agent in agents.values() for name in agent.node.cdi_files())


def test_each_pod_gets_a_claim_from_its_template(agents: Agents, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.pod("first", template="one-gpu")
    namespace.pod("second", template="one-gpu")
    namespace.running("first", "second")
    claims = {pod: namespace.claim_of(pod) for pod in ("first", "second")}
    devices = {pod: namespace.results(claim)[0] for pod, claim in claims.items()}
    assert len({(one["pool"], one["device"]) for one in devices.values()}) == 2
    for pod, device in devices.items():
        assert namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] == device["device"]
    assert all(has_spec(agents, claim) for claim in claims.values())
    for pod in devices:
        namespace.delete_pod(pod)
    namespace.wait_until_deleted("first", "second")
    namespace.api.wait(lambda: not namespace.api.list(CLAIMS, namespace.name), "the pods' claims are gone")
    assert not any(has_spec(agents, claim) for claim in claims.values())


def test_a_named_claim_is_used_and_reused(agents: Agents, namespace: Namespace) -> None:
    namespace.claim("mine", request("gpu", "gpu"))
    assert namespace.results("mine") == []
    namespace.pod("user", claim="mine")
    namespace.running("user")
    (result,) = namespace.results("mine")
    environment = namespace.environment("user")
    assert environment["DRA_AGENT_CLAIM"] == f"{namespace.name}/mine"
    assert environment["DRA_AGENT_REQUEST_GPU"] == result["device"]
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(lambda: not namespace.results("mine"), "the claim is free again")
    namespace.pod("next", claim="mine")
    namespace.running("next")
    assert namespace.environment("next")["DRA_AGENT_REQUEST_GPU"] == namespace.results("mine")[0]["device"]


def test_containers_get_only_their_request_of_a_claim(agents: Agents, namespace: Namespace) -> None:
    namespace.claim("both", request("gpu", "gpu"), request("nic", "rdma-nic"))
    each = [container(name, ("both", name)) for name in ("gpu", "nic")]
    namespace.pod("user", claims=[{"name": "both", "resourceClaimName": "both"}], containers=each)
    namespace.running("user")
    results = {result["request"]: result for result in namespace.results("both")}
    assert published(agents, results["gpu"])["attributes"]["type"] == {"string": "gpu"}
    assert published(agents, results["nic"])["attributes"]["rdma"] == {"bool": True}
    for own, other in (("gpu", "nic"), ("nic", "gpu")):
        environment = namespace.environment("user", own)
        assert environment[f"DRA_AGENT_REQUEST_{own.upper()}"] == results[own]["device"]
        assert f"DRA_AGENT_REQUEST_{other.upper()}" not in environment


def test_a_request_for_two_devices_gets_both(agents: Agents, namespace: Namespace) -> None:
    namespace.claim("two", request("gpus", "gpu", count=2))
    namespace.pod("user", claim="two")
    namespace.running("user")
    results = namespace.results("two")
    assert len(set(names(results))) == 2
    devices_in_variable = namespace.environment("user")["DRA_AGENT_REQUEST_GPUS"]
    assert sorted(devices_in_variable.split(",")) == sorted(names(results))


def test_allocation_mode_all_gets_every_device(agents: Agents, namespace: Namespace) -> None:
    namespace.claim("all", request("gpus", "gpu", f'{OWN}.architecture == "Ada Lovelace"', allocationMode="All"))
    namespace.pod("user", claim="all")
    namespace.running("user")
    ada_gpus = [name for name, device in agents["node-b"].devices().items() if name.startswith("gpu-")]
    assert len(ada_gpus) == 4
    assert sorted(names(namespace.results("all"))) == sorted(ada_gpus)
    namespace.claim("one-more", request("gpu", "gpu", f'{OWN}.architecture == "Ada Lovelace"'))
    namespace.pod("waits", claim="one-more")
    namespace.wait_for_scheduling_failure("waits", "cannot allocate all claims")
    namespace.delete_pod("user")
    namespace.running("waits")


@pytest.mark.parametrize(
    ("alternatives", "chosen", "node"),
    [
        ([("h200", "Blackwell"), ("l40s", "Ada Lovelace"), ("any", "Hopper")], "l40s", "node-b"),
        ([("h100", "Hopper"), ("l40s", "Ada Lovelace")], "h100", "node-a"),
    ],
    ids=["second", "first"],
)
def test_first_available_alternative_is_allocated(
    agents: Agents, namespace: Namespace, alternatives: list[tuple[str, str]], chosen: str, node: str
) -> None:
    subrequests = [request(name, "gpu", f'{OWN}.architecture == "{wanted}"') for name, wanted in alternatives]
    namespace.claim("some", first_available("gpu", *subrequests))
    namespace.pod(
        "user",
        claims=[{"name": "some", "resourceClaimName": "some"}],
        containers=[container("main", ("some", "gpu"))],
    )
    namespace.running("user")
    (result,) = namespace.results("some")
    assert (result["request"], node_of(result)) == (f"gpu/{chosen}", node)
    # The container names the request, and gets its alternative.
    assert namespace.environment("user")["DRA_AGENT_REQUEST_GPU"] == result["device"]


@pytest.mark.parametrize(
    ("selector", "node"),
    [
        (f'{MEMORY}.compareTo(quantity("60Gi")) > 0', "node-a"),
        (f'{MEMORY}.compareTo(quantity("60Gi")) < 0', "node-b"),
    ],
    ids=["more", "less"],
)
def test_cel_selects_by_memory(agents: Agents, namespace: Namespace, selector: str, node: str) -> None:
    assert_selects(selector, node, agents, namespace)


@pytest.mark.parametrize(
    ("selector", "node"),
    [
        (f'{OWN}.cudaComputeCapability.compareTo(semver("9.0.0")) >= 0', "node-a"),
        (f'{OWN}.cudaComputeCapability.isLessThan(semver("9.0.0"))', "node-b"),
    ],
    ids=["from-9.0", "below-9.0"],
)
def test_cel_selects_by_compute_capability(agents: Agents, namespace: Namespace, selector: str, node: str) -> None:
    assert_selects(selector, node, agents, namespace)


@pytest.mark.parametrize(
    ("architecture", "node"), [("Hopper", "node-a"), ("Ada Lovelace", "node-b")], ids=["hopper", "ada"]
)
def test_cel_selects_by_architecture(agents: Agents, namespace: Namespace, architecture: str, node: str) -> None:
    assert_selects(f'{OWN}.architecture == "{architecture}"', node, agents, namespace)


def assert_selects(selector: str, node: str, agents: Agents, namespace: Namespace) -> None:
    """Assert that a pod with a GPU of this selector runs on that node with the allocated device."""
    namespace.claim("gpu", request("gpu", "gpu", selector))
    namespace.pod("user", claim="gpu")
    body = namespace.running("user")
    (result,) = namespace.results("gpu")
    assert body["spec"]["nodeName"] == node_of(result) == node
    uuid = published(agents, result)["attributes"]["uuid"]["string"]
    assert uuid in namespace.environment("user").values()


def test_match_attribute_joins_gpu_and_nic_at_a_pcie_root(agents: Agents, namespace: Namespace) -> None:
    root = "resource.kubernetes.io/pcieRoot"
    pair = [request("gpu", "gpu"), request("nic", "rdma-nic")]
    claims = [f"near-{number}" for number in range(8)]
    for name in claims:
        namespace.claim(name, *pair, constraints=[match(root, "gpu", "nic")])
        namespace.pod(name, claim=name, node="node-a")
    namespace.running(*claims)
    used = set()
    for name in claims:
        results = {result["request"]: result for result in namespace.results(name)}
        roots = {published(agents, result)["attributes"][root]["string"] for result in results.values()}
        assert len(roots) == 1, f"{name}: {results}"
        used |= roots
    # Each of the eight GPUs of a DGX has its own root, with one adapter.
    assert len(used) == 8

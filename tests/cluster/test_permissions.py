"""What the chart's objects allow and refuse, asked of the real API server as pods and services of a host."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.kube.agent import DRIVER
from cluster.kube.api import (
    CLAIMS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    SLICES,
    Api,
    ApiStatusError,
    Kind,
)
from cluster.kube.cluster import Cluster
from cluster.kube.identity import CHART, RELEASE, Identity
from cluster.kube.workload import Namespace, request

ROOT = Path(__file__).resolve().parents[2]
OTHER = {"node-a": "node-b", "node-b": "node-a"}
POLICIES = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False)


@pytest.fixture
def tokens(cluster: Cluster) -> dict[str, Api]:
    """Every kind of token of an agent of node-a, once the policies are in force."""
    identity = cluster.identity()
    in_force(cluster, cluster.api.as_user(identity.token("node-a")))
    return kinds_of_tokens(cluster, identity)


def kinds_of_tokens(cluster: Cluster, identity: Identity) -> dict[str, Api]:
    """Return the identities that an agent of node-a can have, by name."""
    path = SERVICE_ACCOUNTS.path(identity.namespace, RELEASE, "token")

    def requested(**bound: Any) -> str:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 600, **bound},
        }
        return str(cluster.api.call("POST", path, body)["status"]["token"])

    node = cluster.api.get(NODES, "node-a")["metadata"]
    to_node = {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"]}
    return {
        "pod": cluster.api.as_user(identity.token("node-a")),
        "bound to the node": cluster.api.as_user(requested(boundObjectRef=to_node)),
        "bound to nothing": cluster.api.as_user(requested()),
        "kubelet": cluster.api.as_user(cluster.control_plane.tokens["node:node-a"]),
    }


def in_force(cluster: Cluster, agent: Api) -> None:
    """Wait until the API server has compiled the policies: until then it does not enforce them."""
    foreign = a_slice("test-in-force", nodeName="node-b")

    def is_refused() -> bool:
        if refusal(lambda: agent.create(SLICES, foreign)):
            return True
        cluster.api.delete(SLICES, "test-in-force")
        return False

    cluster.api.wait(is_refused, "the policy about slices is in force")
    # Each policy is compiled separately.
    nothing = {"spec": {"unschedulable": None}}
    cluster.api.wait(
        lambda: refusal(lambda: agent.patch(NODES, "node-b", nothing)), "the policy about nodes is in force"
    )


def a_slice(name: str, pool_name: str = "", **spec: Any) -> dict[str, Any]:
    """Return a slice in a pool of its node, unless a pool is named."""
    pool_name = pool_name or f"{spec.get('nodeName', 'node-a')}/{name}"
    pool = {"name": pool_name, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "pool": pool, "devices": [{"name": "gpu-0"}], **spec},
    }


@pytest.fixture
def slices(cluster: Cluster) -> Iterator[dict[str, dict[str, Any]]]:
    """A slice on each node, written by the administrator; every slice of a test is deleted afterwards."""
    created = {
        node: cluster.api.create(SLICES, a_slice(f"test-{node}", nodeName=node, driver=DRIVER)) for node in OTHER
    }
    yield created
    for found in cluster.api.list(SLICES):
        if found["metadata"]["name"].startswith("test-"):
            cluster.api.delete(SLICES, found["metadata"]["name"])


def refusal(call: Any) -> str:
    """Return the API server's reason for a refusal; "" if the call succeeds.

    A missing permission for a part of a claim's status is "Invalid" (422) with "Forbidden" in its text.
    """
    try:
        call()
    except ApiStatusError as error:
        assert error.code == 403 or (error.code == 422 and "Forbidden: changing status" in str(error)), error
        return str(error)
    return ""


def render(cluster: Cluster, *flags: str, release: str = "check") -> str:
    return cluster.helm_template(release, CHART, *flags, namespace="check")


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--set", "driverName=gpu.example.com,kubeletDir=/var/data/kubelet,staticCdiDir=,claimStatus=false"),
        ("--set", "hostNetwork=true,simulate=dgx-h100,apiServer.host=10.0.0.1,apiServer.port=6443"),
        ("--set", "deviceClasses.extendedResourceNames.gpu=nvidia.com/gpu,criticalPodsQuota.create=true"),
        ("--set", "seLinuxOptions.type=spc_t,runtimeClassName=nvidia,imagePullSecrets[0].name=mine"),
        ("--set", "privileged=true,networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring"),
    ],
)
def test_apiserver_accepts_every_object_of_the_chart(cluster: Cluster, flags: tuple[str, ...]) -> None:
    ensure_namespace(cluster, "check")
    message = cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", input=render(cluster, *flags)
    )
    lines = message.splitlines()
    assert len(lines) > 15 and all("(server dry run)" in line for line in lines), message
    assert any(line.startswith("daemonset.apps/check-dra-agent") for line in lines)


@pytest.mark.parametrize(("folder", "namespace"), [("base", "dra-agent"), ("example", "accelerators")])
def test_apiserver_accepts_the_kustomizations(cluster: Cluster, folder: str, namespace: str) -> None:
    cluster.identity()  # creates the namespace dra-agent
    ensure_namespace(cluster, namespace)
    message = cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-k", str(ROOT / "deploy/kustomize" / folder)
    )
    assert "daemonset.apps/dra-agent created (server dry run)" in message
    assert message.count("deviceclass.resource.k8s.io/") >= 8 and "error" not in message


def ensure_namespace(cluster: Cluster, name: str) -> None:
    if cluster.api.find(NAMESPACES, name) is None:
        cluster.api.create(NAMESPACES, {"metadata": {"name": name}})


def test_policy_has_no_type_warnings(cluster: Cluster) -> None:
    cluster.identity()

    def checked() -> bool:
        status = cluster.api.get(POLICIES, RELEASE).get("status", {})
        return "typeChecking" in status and status.get("observedGeneration") is not None

    cluster.api.wait(checked, "the policy's types are checked")
    assert not cluster.api.get(POLICIES, RELEASE)["status"]["typeChecking"].get("expressionWarnings")


@pytest.mark.parametrize("who", ["pod", "bound to the node"])
def test_slices_of_another_node_cannot_be_written(
    cluster: Cluster, tokens: dict[str, Api], slices: dict[str, dict[str, Any]], who: str
) -> None:
    api = tokens[who]
    foreign = "an agent on node node-a must not write slices of node node-b"
    name = f"test-own-{who.replace(' ', '-')}"
    assert refusal(lambda: api.create(SLICES, a_slice(name, nodeName="node-a"))) == ""
    assert foreign in refusal(lambda: api.create(SLICES, a_slice("test-x", nodeName="node-b")))
    assert "must be of one node" in refusal(lambda: api.create(SLICES, a_slice("test-x", allNodes=True)))
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
    everywhere = a_slice("test-x", nodeSelector={"nodeSelectorTerms": [term]})
    assert "must be of one node" in refusal(lambda: api.create(SLICES, everywhere))
    other_driver = a_slice("test-x", nodeName="node-a", driver="gpu.example.com")
    assert "must not write slices of driver gpu.example.com" in refusal(lambda: api.create(SLICES, other_driver))
    for node, expected in (("node-b", foreign), ("node-a", "")):
        changed = copy.deepcopy(slices[node])
        changed["spec"]["devices"].append({"name": "gpu-1"})
        assert expected in refusal(lambda changed=changed: api.replace(SLICES, changed))
        message = refusal(lambda node=node: api.call("DELETE", SLICES.path(None, f"test-{node}", None), {}))
        assert expected in message and bool(message) == bool(expected)
    assert [found["metadata"]["name"] for found in cluster.api.list(SLICES, fields={"spec.nodeName": "node-b"})] == [
        "test-node-b"
    ]
    assert "cannot deletecollection" in refusal(lambda: api.call("DELETE", SLICES.path(None, None, None), {}))


def test_a_token_without_a_node_name_writes_nothing(
    cluster: Cluster, tokens: dict[str, Api], slices: dict[str, dict[str, Any]]
) -> None:
    api = tokens["bound to nothing"]
    for node in OTHER:
        message = refusal(lambda node=node: api.create(SLICES, a_slice("test-x", nodeName=node)))
        assert "the token of this account carries no node name" in message
        path = SLICES.path(None, f"test-{node}", None)
        assert "carries no node name" in refusal(lambda path=path: api.call("DELETE", path, {}))
    assert len(api.list(SLICES, fields={"spec.driver": DRIVER})) >= 2, "reads require no node name"


def test_kubelet_credentials_write_slices_of_their_node(
    tokens: dict[str, Api], slices: dict[str, dict[str, Any]]
) -> None:
    api = tokens["kubelet"]
    assert refusal(lambda: api.create(SLICES, a_slice("test-own", nodeName="node-a"))) == ""
    assert "same NodeName" in refusal(lambda: api.create(SLICES, a_slice("test-x", nodeName="node-b")))
    own = {"spec.nodeName": "node-a"}
    assert {found["metadata"]["name"] for found in api.list(SLICES, fields=own)} >= {"test-own", "test-node-a"}
    others = own | {"spec.driver!": "gpu.example.com"}
    assert {found["metadata"]["name"] for found in api.list(SLICES, fields=others)} >= {"test-own", "test-node-a"}
    assert "nodeName field selector" in refusal(lambda: api.list(SLICES))
    assert refusal(lambda: api.get(NODES, "node-a")) == "" and "node-b" in refusal(lambda: api.get(NODES, "node-b"))


def allocated(namespace: Namespace, name: str, node: str, device: str = "gpu-0") -> dict[str, Any]:
    """Create a claim allocated on a node, as the scheduler would write it."""
    namespace.claim(name, request("gpu", "gpu"))
    claim = namespace.get_claim(name)
    result = {"request": "gpu", "driver": DRIVER, "pool": f"{node}/gpu", "device": device}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    selector = {"nodeSelectorTerms": [term]}
    claim["status"] = {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}
    return namespace.api.replace(CLAIMS, claim, subresource="status")


@pytest.mark.parametrize(
    ("who", "own", "foreign"),
    [
        ("pod", "", "arbitrary-node"),
        ("bound to the node", "", "arbitrary-node"),
        ("bound to nothing", "arbitrary-node", "arbitrary-node"),
        ("kubelet", "cannot patch", "cannot patch"),
    ],
)
def test_device_status_is_written_for_the_own_node_only(
    tokens: dict[str, Api], namespace: Namespace, who: str, own: str, foreign: str
) -> None:
    for node, expected in (("node-a", own), ("node-b", foreign)):
        name = f"claim-{node}"
        allocated(namespace, name, node)
        status = {"driver": DRIVER, "pool": f"{node}/gpu", "device": "gpu-0", "data": {"uuid": "GPU-0"}}
        patch = {"status": {"devices": [status]}}
        message = refusal(
            lambda name=name, patch=patch: tokens[who].patch(CLAIMS, name, patch, namespace.name, subresource="status")
        )
        assert expected in message and bool(message) == bool(expected), f"{who} on {node}: {message or 'carried out'}"
        written = namespace.get_claim(name)["status"].get("devices", [])
        assert bool(written) == (not expected)


def test_allocations_and_reservations_cannot_be_changed(tokens: dict[str, Api], namespace: Namespace) -> None:
    allocated(namespace, "held", "node-a")
    consumer = {"resource": "pods", "name": "x", "uid": "y"}
    for patch in ({"allocation": None}, {"reservedFor": [consumer]}):
        message = refusal(
            lambda patch=patch: tokens["pod"].patch(
                CLAIMS, "held", {"status": patch}, namespace.name, subresource="status"
            )
        )
        assert "resourceclaims/binding" in message, message
    assert namespace.get_claim("held")["status"]["allocation"]
    assert "cannot delete" in refusal(
        lambda: tokens["pod"].call("DELETE", CLAIMS.path(namespace.name, "held", None), {})
    )


def test_no_other_request_is_allowed(tokens: dict[str, Api], namespace: Namespace) -> None:
    api = tokens["pod"]
    for call in (
        lambda: api.list(CLAIMS),
        lambda: api.get(SLICES, "test-node-a"),
        lambda: api.list(PODS, namespace.name),
        lambda: api.list(EVENTS, namespace.name),
        lambda: api.get(SERVICE_ACCOUNTS, "default", namespace.name),
        lambda: api.create(PODS, {"metadata": {"name": "x"}, "spec": {"containers": []}}, namespace.name),
        lambda: api.call("GET", Kind("v1", "secrets").path(namespace.name, None, None)),
    ):
        assert "cannot" in refusal(call)
    # The permissions for cordon and condition are restricted to these: test_reclaim_permissions.py.
    label = {"metadata": {"labels": {"x": "y"}}}
    assert "may change nothing of its node but" in refusal(lambda: api.patch(NODES, "node-a", label))
    assert "may change its own node only" in refusal(lambda: api.patch(NODES, "node-b", label))

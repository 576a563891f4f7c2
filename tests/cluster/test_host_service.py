"""The agent as a host service: which credentials suffice, and what it logs otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import Agent
from cluster.kube.api import NODES, SERVICE_ACCOUNTS
from cluster.kube.cluster import Cluster
from cluster.kube.identity import RELEASE
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request

PROFILE = "l40s"
Starter = Callable[[str], Agent]


@pytest.fixture
def as_service(cluster: Cluster, start_agent: StartAgent, tmp_path: Path) -> Starter:
    """Start the agent of node-a with a kubeconfig that holds this token."""

    def start(token: str) -> Agent:
        kubeconfig = cluster.control_plane.kubeconfig("service", tmp_path / "kubeconfig", token=token)
        return start_agent("node-a", PROFILE, "--claim-status", "all", kubeconfig=kubeconfig, ready=False)

    return start


def requested(cluster: Cluster, account: str, namespace: str, **spec: Any) -> str:
    """Return a token of a service account, as `kubectl create token` requests it."""
    spec = {"expirationSeconds": 3600} | spec
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return str(cluster.api.call("POST", SERVICE_ACCOUNTS.path(namespace, account, "token"), body)["status"]["token"])


def use_a_gpu(namespace: Namespace) -> None:
    namespace.claim("gpu", request("gpu", "gpu"))
    namespace.pod("user", claim="gpu", node="node-a")
    namespace.running("user")


def release(namespace: Namespace) -> None:
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")


def test_a_token_bound_to_the_node_is_sufficient(cluster: Cluster, as_service: Starter, namespace: Namespace) -> None:
    node = cluster.api.get(NODES, "node-a")["metadata"]
    bound = {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"]}
    as_service(requested(cluster, RELEASE, cluster.identity().namespace, boundObjectRef=bound)).ready()
    use_a_gpu(namespace)
    cluster.api.wait(lambda: namespace.get_claim("gpu")["status"].get("devices"), "the status is written")
    release(namespace)


def test_kubelet_credentials_lack_only_the_claim_status(
    cluster: Cluster, as_service: Starter, namespace: Namespace
) -> None:
    agent = as_service(cluster.control_plane.tokens["node:node-a"]).ready()
    use_a_gpu(namespace)
    refusal_in_log = agent.wait_for_log(r"warning claim status is not written reason=.*resourceclaims/status.*grant=")
    assert "claim status is not written" not in agent.read_log()[refusal_in_log.end() :], "the warning is logged once"
    assert "devices" not in namespace.get_claim("gpu")["status"]
    assert "cannot determine the other drivers" not in agent.read_log(), "the Node and the slices on it may be read"
    release(namespace)


def test_an_unbound_token_publishes_nothing_and_logs_the_fix(cluster: Cluster, as_service: Starter) -> None:
    agent = as_service(requested(cluster, RELEASE, cluster.identity().namespace))
    agent.wait_for_log("registered with the kubelet")
    agent.wait_for_log("slices cannot be published.*carries no node name: use that of a pod, or one that is bound")
    assert agent.slices() == []

    def reports_reason() -> bool:
        status, body = agent.get("/readyz")
        return status == 503 and "slices cannot be published" in body and "carries no node name" in body

    until(reports_reason, "it is not ready, with the reason")


def test_missing_permissions_are_logged_by_name(cluster: Cluster, as_service: Starter, namespace: Namespace) -> None:
    agent = as_service(requested(cluster, "default", namespace.name))
    agent.wait_for_log("registered with the kubelet")
    agent.wait_for_log("slices cannot be followed.*cannot list resource.*resourceslices.*deploy/ has the RBAC rules")
    agent.wait_for_log("cannot determine the other drivers.*cannot list resource.*nodes")
    assert agent.slices() == [] and agent.get("/healthz")[0] == 200
    assert agent.get("/readyz")[0] == 503, "an update of the DaemonSet must stop here"


def test_an_invalid_token_is_reported_as_unauthorized(as_service: Starter) -> None:
    agent = as_service("nonsense")
    agent.wait_for_log("registered with the kubelet")
    agent.wait_for_log("Unauthorized; check that the token or the client certificate is valid and has not expired")
    assert agent.process.running


def test_a_token_replaced_in_its_file_is_used(cluster: Cluster, start_agent: StartAgent, tmp_path: Path) -> None:
    """A service whose kubeconfig names a tokenFile, which the host renews."""
    file = tmp_path / "token"
    file.write_text("expired")
    path = cluster.control_plane.kubeconfig("service", tmp_path / "kubeconfig", token="expired")
    path.write_text(path.read_text().replace('"token": "expired"', f'"tokenFile": "{file}"'))
    agent = start_agent("node-a", PROFILE, kubeconfig=path, ready=False)
    agent.wait_for_log("Unauthorized")
    renewed = file.with_suffix(".new")
    renewed.write_text(cluster.identity().token("node-a"))
    renewed.replace(file)  # the agent may read it at any time
    agent.ready()
    assert agent.slices()

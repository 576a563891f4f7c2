"""Credentials of the agent for the API server: a node's own, insufficient ones, and rotated ones."""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, PODS, SERVICE_ACCOUNTS, SLICES, Api, ApiStatusError
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
HARDWARE = "vm-1gpu"


def assert_prepared_at_first_try(namespace: Namespace, pod: str) -> None:
    """Assert that the kubelet's first call succeeded: it records an Event of each failure and retries after 60 s."""
    assert not [event for event in namespace.events(pod) if "FailedPrepare" in event]


def run_pod_with_gpu(namespace: Namespace, name: str) -> None:
    """Run a pod with the GPU and delete it."""
    namespace.claim(name, request("gpu", "gpu"))
    namespace.pod(name, claim=name, node="node-a")
    namespace.running(name)
    namespace.delete_pod(name)
    namespace.wait_until_deleted(name)
    namespace.delete_claim(name)


def test_node_credentials_are_sufficient(start_agent: StartAgent, namespace: Namespace) -> None:
    # An agent of a host (systemd) may have the kubelet's credentials. The Node authorizer then lets it read a claim
    # only after it has observed the bound pod: agents that ask earlier are refused, and must not report that, because
    # the kubelet would retry only after 60 to 90 s.
    agent = start_agent("node-a", HARDWARE, user="node:node-a")
    for number in range(12):
        run_pod_with_gpu(namespace, f"pod-{number}")
        assert_prepared_at_first_try(namespace, f"pod-{number}")
    assert "Traceback" not in agent.read_log()


def test_agent_reports_missing_permissions_and_starts_once_granted(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    account = cluster.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "bare"}}, namespace.name)
    token = bound_token(cluster.api, namespace, "bare", "stand-in")
    kubeconfig = cluster.control_plane.kubeconfig("bare", cluster.directory / "bare.kubeconfig", token=token)
    agent = start_agent("node-a", HARDWARE, kubeconfig=kubeconfig, ready=False)
    agent.wait_for_log(r"resourceslices.* is forbidden")
    time.sleep(5)
    assert agent.slices() == []
    warnings = [line for line in agent.read_log().splitlines() if " info " not in line and " debug " not in line]
    assert len(warnings) < 10, "the agent repeats its warnings:\n" + "\n".join(warnings)

    # An administrator grants the missing permissions; the agent is not restarted.
    role_name = cluster.api.get(CLUSTER_ROLES, cluster.identity().namespace)["metadata"]["name"]
    name = f"bare-{namespace.name}"
    subject = {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": namespace.name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role_name}
    cluster.api.create(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    try:
        agent.ready()
        run_pod_with_gpu(namespace, "after")
    finally:
        agent.end()
        cluster.api.delete(CLUSTER_ROLE_BINDINGS, name)


def test_a_revoked_token_is_replaced_from_its_file(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    identity = cluster.identity()
    file = cluster.directory / "rotated.token"
    kubeconfig = cluster.control_plane.kubeconfig("rotated", cluster.directory / "rotated.kubeconfig", token_file=file)
    first = identity.token("node-a", pod="first")
    file.write_text(first)
    agent = start_agent("node-a", HARDWARE, kubeconfig=kubeconfig)
    run_pod_with_gpu(namespace, "before")

    # A token expires with the pod that it is bound to.
    cluster.api.delete(PODS, "first", identity.namespace, grace=0)
    revoked = cluster.api.as_user(first)
    until(lambda: is_unauthorized(revoked), "the API server refuses the old token")
    # Without any signal, the claim of the next pod is read with the new token of the file.
    renewed = file.with_suffix(".new")
    renewed.write_text(identity.token("node-a", pod="second"))
    renewed.replace(file)  # the agent may read it at any time
    run_pod_with_gpu(namespace, "after")
    assert_prepared_at_first_try(namespace, "after")
    agent.simulate("unplug", "0000:00:04.0")
    until(lambda: not [name for name in agent.devices() if name.startswith("gpu-")], "the unplugged GPU is gone")
    assert agent.read_log().count("Traceback") == 0
    cluster.api.delete(PODS, "second", identity.namespace, grace=0)


def bound_token(api: Api, namespace: Namespace, account: str, pod: str) -> str:
    """Return a token of any account, bound to a pod of it on node-a."""
    body = namespace.pod(pod, node="node-a", serviceAccountName=account)
    namespace.running(pod)
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": body["metadata"]["uid"]}
    spec = {"boundObjectRef": bound, "expirationSeconds": 3600}
    path = SERVICE_ACCOUNTS.path(namespace.name, account, "token")
    token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return str(api.call("POST", path, token_request)["status"]["token"])


def is_unauthorized(api: Api) -> bool:
    try:
        api.list(SLICES, fields={"spec.driver": DRIVER})
    except ApiStatusError as error:
        return error.code == 401
    return False

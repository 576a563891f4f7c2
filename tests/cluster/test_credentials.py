"""The agent and who it is to the API server: a node's own credentials, none that suffice, and ones that change."""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, PODS, SERVICE_ACCOUNTS, SLICES, Api, RefusedError
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
HARDWARE = "vm-1gpu"


def prepared_at_once(namespace: Namespace, pod: str) -> None:
    """The kubelet's first try went well: it says so of each that fails, and asks again 60 s later at the earliest."""
    assert not [event for event in namespace.events(pod) if "FailedPrepare" in event]


def use_the_gpu(namespace: Namespace, name: str) -> None:
    """A pod gets the GPU and gives it back."""
    namespace.claim(name, request("gpu", "gpu"))
    namespace.pod(name, claim=name, node="node-a")
    namespace.running(name)
    namespace.delete_pod(name)
    namespace.gone(name)
    namespace.delete_claim(name)


def test_the_credentials_of_a_node_serve_as_they_are(start_agent: StartAgent, namespace: Namespace) -> None:
    # An agent of a host's own (systemd) may have the kubelet's. The Node authorizer then lets it read a claim only
    # after it has seen the pod that was bound: agents ask earlier, are refused, and must not pass that on, because the
    # kubelet would wait 60 to 90 s before it asked again.
    agent = start_agent("node-a", HARDWARE, user="node:node-a")
    for number in range(12):
        use_the_gpu(namespace, f"pod-{number}")
        prepared_at_once(namespace, f"pod-{number}")
    assert "Traceback" not in agent.said()


def test_without_rights_it_says_so_and_begins_when_it_has_them(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    account = cluster.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "bare"}}, namespace.name)
    token = bound_token(cluster.api, namespace, "bare", "stand-in")
    kubeconfig = cluster.control_plane.kubeconfig("bare", cluster.directory / "bare.kubeconfig", token=token)
    agent = start_agent("node-a", HARDWARE, kubeconfig=kubeconfig, ready=False)
    agent.wait_for_log(r"resourceslices.* is forbidden")
    time.sleep(5)
    assert agent.slices() == []
    said = [line for line in agent.said().splitlines() if " info " not in line and " debug " not in line]
    assert len(said) < 10, "it says the same again and again:\n" + "\n".join(said)

    # Somebody grants what is missing; nobody restarts the agent.
    rights = cluster.api.get(CLUSTER_ROLES, cluster.identity().namespace)["metadata"]["name"]
    name = f"bare-{namespace.name}"
    subject = {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": namespace.name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": rights}
    cluster.api.create(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    try:
        agent.ready()
        use_the_gpu(namespace, "after")
    finally:
        agent.end()
        cluster.api.delete(CLUSTER_ROLE_BINDINGS, name)


def test_a_token_that_is_revoked_and_replaced(cluster: Cluster, start_agent: StartAgent, namespace: Namespace) -> None:
    identity = cluster.identity()
    file = cluster.directory / "rotated.token"
    kubeconfig = cluster.control_plane.kubeconfig("rotated", cluster.directory / "rotated.kubeconfig", token_file=file)
    first = identity.token("node-a", pod="first")
    file.write_text(first)
    agent = start_agent("node-a", HARDWARE, kubeconfig=kubeconfig)
    use_the_gpu(namespace, "before")

    # A token ends with the pod that it is bound to.
    cluster.api.delete(PODS, "first", identity.namespace, grace=0)
    revoked = cluster.api.as_user(first)
    until(lambda: refuses(revoked), "the API server refuses the old token")
    # No notice is needed: the next pod's claim is read with the token that the file has then.
    renewed = file.with_suffix(".new")
    renewed.write_text(identity.token("node-a", pod="second"))
    renewed.replace(file)  # the agent may read it at any time
    use_the_gpu(namespace, "after")
    prepared_at_once(namespace, "after")
    agent.simulate("unplug", "0000:00:04.0")
    until(lambda: not [name for name in agent.devices() if name.startswith("gpu-")], "the unplugged GPU is gone")
    assert agent.said().count("Traceback") == 0
    cluster.api.delete(PODS, "second", identity.namespace, grace=0)


def bound_token(api: Api, namespace: Namespace, account: str, pod: str) -> str:
    """A token of any account, bound to a pod of it on node-a."""
    body = namespace.pod(pod, node="node-a", serviceAccountName=account)
    namespace.running(pod)
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": body["metadata"]["uid"]}
    spec = {"boundObjectRef": bound, "expirationSeconds": 3600}
    path = SERVICE_ACCOUNTS.path(namespace.name, account, "token")
    ask = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return str(api.call("POST", path, ask)["status"]["token"])


def refuses(api: Api) -> bool:
    try:
        api.list(SLICES, fields={"spec.driver": DRIVER})
    except RefusedError as refused:
        return refused.code == 401
    return False

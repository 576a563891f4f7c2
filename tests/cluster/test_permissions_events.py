"""Which Events an agent's token may write: those of the agent on its node, about claims and that Node."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from cluster.kube.agent import DRIVER
from cluster.kube.api import NAMESPACES, NODES, SERVICE_ACCOUNTS, Api, ApiStatusError, Kind
from cluster.kube.cluster import Cluster
from cluster.kube.identity import RELEASE
from cluster.kube.workload import Namespace
from cluster.test_permissions import refusal

EVENTS = Kind("events.k8s.io/v1", "events")
POLICIES = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False)
NODE_NAME = "authentication.kubernetes.io/node-name"
NOT_ITS_OWN = f"an agent may write Events of {DRIVER} on its own node only"
NOT_ABOUT = "an agent may write Events about ResourceClaims and its own Node only"
CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "name": "notebook"}


def event(name: str, namespace: str, **fields: Any) -> dict[str, Any]:
    """Return an Event as the agent of node-a writes it, with other `fields`."""
    return {
        "metadata": {"name": name},
        "eventTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": DRIVER,
        "reportingInstance": "node-a",
        "action": "Preparing",
        "reason": "PrepareFailed",
        "regarding": {**CLAIM, "namespace": namespace},
        "note": "a note",
        "type": "Warning",
        **fields,
    }


@pytest.fixture
def own(cluster: Cluster, namespace: Namespace) -> Api:
    """An agent of node-a, once the policy about Events is in force."""
    api = cluster.api.as_user(cluster.identity().token("node-a"))
    attempts = iter(range(1 << 30))

    def policy_is_in_force() -> bool:
        foreign = event(f"in-force-{next(attempts)}", namespace.name, reportingController="kubelet")
        return NOT_ITS_OWN in refusal(lambda: api.create(EVENTS, foreign, namespace.name))

    cluster.api.wait(policy_is_in_force, "the policy about Events is in force")
    return api


def test_policy_has_no_type_warnings(cluster: Cluster, own: Api) -> None:
    def checked() -> bool:
        return "typeChecking" in cluster.api.get(POLICIES, f"{RELEASE}-events").get("status", {})

    cluster.api.wait(checked, "the policy's types are checked")
    assert not cluster.api.get(POLICIES, f"{RELEASE}-events")["status"]["typeChecking"].get("expressionWarnings")


def test_own_events_are_created_and_updated(own: Api, namespace: Namespace) -> None:
    made = own.create(EVENTS, event("own", namespace.name), namespace.name)
    series = {"count": 2, "lastObservedTime": made["eventTime"]}
    assert own.patch(EVENTS, "own", {"series": series}, namespace.name)["series"]["count"] == 2
    node = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}
    body = event("own-node", "default", regarding=node)
    body["metadata"]["name"] = f"{namespace.name}-own"
    assert refusal(lambda: own.create(EVENTS, body, "default")) == ""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reportingController": "kubelet"}, NOT_ITS_OWN),
        ({"reportingController": "other.example"}, NOT_ITS_OWN),
        ({"reportingInstance": "node-b"}, NOT_ITS_OWN),
        ({"regarding": {"apiVersion": "v1", "kind": "Pod", "name": "kube-apiserver"}}, NOT_ABOUT),
        ({"regarding": {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "kube-proxy"}}, NOT_ABOUT),
        ({"regarding": {"apiVersion": "example.com/v1", "kind": "ResourceClaim", "name": "x"}}, NOT_ABOUT),
        ({"regarding": {}}, NOT_ABOUT),
        ({"related": {"apiVersion": "v1", "kind": "Pod", "name": "x"}}, NOT_ABOUT),
    ],
    ids=str,
)
def test_events_of_others_and_about_others_are_refused(
    own: Api, namespace: Namespace, fields: dict[str, Any], message: str
) -> None:
    body = event("forged", namespace.name, **fields)
    body["regarding"] = {**body["regarding"], "namespace": namespace.name}
    assert message in refusal(lambda: own.create(EVENTS, body, namespace.name))


def test_event_about_another_node_is_refused(own: Api, cluster: Cluster) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node-b",
        "uid": cluster.api.get(NODES, "node-b")["metadata"]["uid"],
    }
    assert NOT_ABOUT in refusal(lambda: own.create(EVENTS, event("forged", "default", regarding=node), "default"))


def test_event_of_the_kubelet_in_kube_system_is_refused(own: Api) -> None:
    """The attack: an alert that trusts the reporter treats a pod of the control plane as failed."""
    pod = {"apiVersion": "v1", "kind": "Pod", "name": "etcd-node-a", "namespace": "kube-system"}
    forged = event("forged", "kube-system", reportingController="kubelet", reason="BackOff", regarding=pod)
    assert NOT_ITS_OWN in refusal(lambda: own.create(EVENTS, forged, "kube-system"))
    core = {
        "metadata": {"name": "forged"},
        "involvedObject": pod,
        "reason": "BackOff",
        "source": {"component": "kubelet", "host": "node-a"},
    }
    assert "cannot create" in refusal(lambda: own.create(Kind("v1", "events"), core, "kube-system"))


def test_event_of_another_reporter_cannot_be_changed(cluster: Cluster, own: Api, namespace: Namespace) -> None:
    foreign = event("theirs", namespace.name, reportingController="other.example")
    made = cluster.api.create(EVENTS, foreign, namespace.name)
    series = {"series": {"count": 99, "lastObservedTime": made["eventTime"]}}
    assert NOT_ITS_OWN in refusal(lambda: own.patch(EVENTS, "theirs", series, namespace.name))
    takeover = {**series, "reportingController": DRIVER}
    with pytest.raises(ApiStatusError, match="reportingController: Invalid value: .* field is immutable"):
        own.patch(EVENTS, "theirs", takeover, namespace.name)
    assert "series" not in cluster.api.get(EVENTS, "theirs", namespace.name)


def test_a_token_without_a_node_name_writes_no_event(cluster: Cluster, own: Api, namespace: Namespace) -> None:
    path = SERVICE_ACCOUNTS.path(cluster.identity().namespace, RELEASE, "token")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    unbound = cluster.api.as_user(str(cluster.api.call("POST", path, body)["status"]["token"]))
    assert NOT_ITS_OWN in refusal(lambda: unbound.create(EVENTS, event("forged", namespace.name), namespace.name))


def test_impersonation_gives_no_access(cluster: Cluster, own: Api, namespace: Namespace) -> None:
    account = f"system:serviceaccount:{cluster.identity().namespace}:{RELEASE}"
    for header, name in (
        ("Impersonate-User", "system:admin"),
        ("Impersonate-User", "system:node:node-b"),
        ("Impersonate-User", account),
    ):
        other = replace(own, impersonate=((header, name),))
        assert "cannot impersonate" in refusal(lambda other=other: other.get(NODES, "node-a"))
    extra = (("Impersonate-User", account), (f"Impersonate-Extra-{NODE_NAME.replace('/', '%2F')}", "node-b"))
    forged = replace(own, impersonate=extra)
    assert "cannot impersonate" in refusal(lambda: forged.create(EVENTS, event("x", namespace.name), namespace.name))
    # A user who may impersonate the account, but not its node, is not an agent of any node.
    as_account = replace(cluster.api, impersonate=(("Impersonate-User", account),))
    assert NOT_ITS_OWN in refusal(lambda: as_account.create(EVENTS, event("x", namespace.name), namespace.name))
    assert cluster.api.find(NAMESPACES, namespace.name) is not None

"""What an agent's token may report: Events of the agent on its node, about claims and that Node, and no others."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from cluster.kube.agent import DRIVER
from cluster.kube.api import NAMESPACES, NODES, SERVICE_ACCOUNTS, Api, Kind, RefusedError
from cluster.kube.cluster import Cluster
from cluster.kube.identity import RELEASE
from cluster.kube.workload import Namespace
from cluster.test_rights import refusal

EVENTS = Kind("events.k8s.io/v1", "events")
POLICIES = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False)
NODE_NAME = "authentication.kubernetes.io/node-name"
NOT_ITS_OWN = f"an agent may write Events of {DRIVER} on its own node only"
NOT_ABOUT = "an agent may write Events about ResourceClaims and its own Node only"
CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "name": "notebook"}


def event(name: str, namespace: str, **fields: Any) -> dict[str, Any]:
    """An Event as the agent of node-a writes it, with other `fields`."""
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
    tried = iter(range(1 << 30))

    def narrowed() -> bool:
        foreign = event(f"in-force-{next(tried)}", namespace.name, reportingController="kubelet")
        return NOT_ITS_OWN in refusal(lambda: api.create(EVENTS, foreign, namespace.name))

    cluster.api.wait(narrowed, "the policy about Events is in force")
    return api


def test_the_policy_compiles_against_the_types_of_the_server(cluster: Cluster, own: Api) -> None:
    def checked() -> bool:
        return "typeChecking" in cluster.api.get(POLICIES, f"{RELEASE}-events").get("status", {})

    cluster.api.wait(checked, "the policy's types are checked")
    assert not cluster.api.get(POLICIES, f"{RELEASE}-events")["status"]["typeChecking"].get("expressionWarnings")


def test_the_agents_own_events_are_written_and_counted(own: Api, namespace: Namespace) -> None:
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
def test_no_event_of_another_reporter_or_about_another_object(
    own: Api, namespace: Namespace, fields: dict[str, Any], message: str
) -> None:
    body = event("forged", namespace.name, **fields)
    body["regarding"] = {**body["regarding"], "namespace": namespace.name}
    assert message in refusal(lambda: own.create(EVENTS, body, namespace.name))


def test_no_event_about_another_node(own: Api, cluster: Cluster) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node-b",
        "uid": cluster.api.get(NODES, "node-b")["metadata"]["uid"],
    }
    assert NOT_ABOUT in refusal(lambda: own.create(EVENTS, event("forged", "default", regarding=node), "default"))


def test_no_event_of_the_kubelet_in_kube_system(own: Api) -> None:
    """The attack: an alert that trusts the reporter believes that a pod of the control plane fails."""
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


def test_no_change_of_another_reporters_event(cluster: Cluster, own: Api, namespace: Namespace) -> None:
    theirs = event("theirs", namespace.name, reportingController="other.example")
    made = cluster.api.create(EVENTS, theirs, namespace.name)
    series = {"series": {"count": 99, "lastObservedTime": made["eventTime"]}}
    assert NOT_ITS_OWN in refusal(lambda: own.patch(EVENTS, "theirs", series, namespace.name))
    theft = {**series, "reportingController": DRIVER}
    with pytest.raises(RefusedError, match="reportingController: Invalid value: .* field is immutable"):
        own.patch(EVENTS, "theirs", theft, namespace.name)
    assert "series" not in cluster.api.get(EVENTS, "theirs", namespace.name)


def test_a_token_that_names_no_node_reports_nothing(cluster: Cluster, own: Api, namespace: Namespace) -> None:
    path = SERVICE_ACCOUNTS.path(cluster.identity().namespace, RELEASE, "token")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    nowhere = cluster.api.as_user(str(cluster.api.call("POST", path, body)["status"]["token"]))
    assert NOT_ITS_OWN in refusal(lambda: nowhere.create(EVENTS, event("forged", namespace.name), namespace.name))


def test_an_agent_impersonates_nobody_and_nobody_impersonates_a_node_by_the_account(
    cluster: Cluster, own: Api, namespace: Namespace
) -> None:
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
    # Who may impersonate the account, but not its node, is no agent of any node.
    as_account = replace(cluster.api, impersonate=(("Impersonate-User", account),))
    assert NOT_ITS_OWN in refusal(lambda: as_account.create(EVENTS, event("x", namespace.name), namespace.name))
    assert cluster.api.find(NAMESPACES, namespace.name) is not None

"""The order of evictions from a reclaimed node, as configured by users and administrators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLAIMS, DAEMON_SETS, NODES, PODS, Kind, Object
from cluster.kube.cluster import Cluster
from cluster.kube.drain_probe import (
    EXITS,
    KEY,
    History,
    all_released,
    announce,
    cancel,
    deployment,
    nodes_of,
    run_on,
    status,
    tainted,
    template,
)
from cluster.kube.process import until
from cluster.kube.workload import Namespace, container, cordon, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
AGENT_CONFIG = '[reclaim]\nevict = "auto"\ncordon = true\n'
CHART_VALUES = ("podEviction=evict", "cordon=true")
BUDGETS = Kind("policy/v1", "poddisruptionbudgets")
EXTENDED = {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}


@pytest.fixture
def reclaimed(agents: dict[str, Agent], cluster: Cluster) -> Iterator[Agent]:
    """The agent of node-a; node-b is cordoned until `uncordon_node_b`. Notices are cancelled at the end."""
    cordon(cluster, "node-b")
    yield agents["node-a"]
    cancel(agents["node-a"])
    until(lambda: not is_cordoned(cluster, "node-a"), "the node is uncordoned")


def uncordon_node_b(cluster: Cluster) -> None:
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


def is_cordoned(cluster: Cluster, node: str) -> bool:
    return bool(cluster.api.get(NODES, node)["spec"].get("unschedulable", False))


def is_cordoned_by_agent(cluster: Cluster, node: str) -> bool:
    """Return whether the API server has the agent as a field manager of unschedulable."""
    owners = cluster.api.get(NODES, node)["metadata"]["managedFields"]
    return any(
        one["manager"] == f"{DRIVER}-reclaim" and "f:unschedulable" in one["fieldsV1"].get("f:spec", {})
        for one in owners
    )


def create_tolerating_template(name: str, namespace: Namespace, **more: Any) -> None:
    """Create a template of claims that tolerate the taint. Kubernetes 1.37 requires the effect to be named."""
    toleration = {"key": KEY, "operator": "Exists", "effect": "NoExecute", **more}
    namespace.template(name, request("gpu", "gpu", tolerations=[toleration]))


def extended_resource_pod(app: str, grace: int = 2, **metadata: Any) -> Object:
    """Return the pod template of a workload with a GPU as an extended resource, which the taint does not evict."""
    pod = template(app, EXITS, grace, claims=[])
    pod["metadata"] |= metadata
    pod["spec"]["containers"] = [container("main", command=EXITS, resources=EXTENDED)]
    return pod


def uids(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def create_budget_of_zero(namespace: Namespace, app: str) -> None:
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": app}}}
    namespace.api.create(BUDGETS, {"metadata": {"name": app}, "spec": spec}, namespace.name)

    def is_observed() -> bool:
        found = namespace.api.get(BUDGETS, app, namespace.name).get("status", {})
        return bool(found.get("currentHealthy") == 1 and found.get("disruptionsAllowed") == 0)

    namespace.api.wait(is_observed, f"the budget of {app} is known to allow none")


def evictions(agent: Agent, mode: str, result: str) -> float:
    name = f'dra_agent_reclaim_fallback_evictions_total{{mode="{mode}",result="{result}"}}'
    return agent.metrics().get(name, 0.0)


def test_a_budget_that_allows_no_disruption_is_kept_until_late(
    reclaimed: Agent, cluster: Cluster, namespace: Namespace
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    pod_templates = {
        "claim": template("claim", EXITS, 2, claims=[OF_TEMPLATE]),
        "extended": extended_resource_pod("extended"),
    }
    for app, pod in pod_templates.items():
        kind, body = deployment(app, pod)
        namespace.api.create(kind, body, namespace.name)
    before = {app: run_on(namespace, app, "node-a") for app in pod_templates}
    for app in pod_templates:
        create_budget_of_zero(namespace, app)
    uncordon_node_b(cluster)
    deleted_before = evictions(reclaimed, "delete", "ok")
    notice = 16 * cluster.api.slowdown()
    with History(namespace) as history:
        noticed = announce(reclaimed, notice)
        all_released(reclaimed)
        elapsed = time.monotonic() - noticed
        for app in pod_templates:
            run_on(namespace, app, "node-b")
    # Taint eviction ignores budgets. The agent respects them until 5 s and the pod's own 2 s are left of the notice,
    # less 2 s.
    (claim_pod,), (extended_pod,) = uids(before["claim"]), uids(before["extended"])
    assert history.deleted(claim_pod).at - noticed < 4 * cluster.api.slowdown()
    assert 5 < history.deleted(extended_pod).at - noticed < notice
    assert elapsed < notice
    assert evictions(reclaimed, "evict", "budget") > 0
    assert evictions(reclaimed, "delete", "ok") == deleted_before + 1


def test_toleration_seconds_delay_the_eviction(reclaimed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    create_tolerating_template("patient", namespace, tolerationSeconds=6)
    patient = template("patient", EXITS, 2, claims=[{"name": "devices", "resourceClaimTemplateName": "patient"}])
    for app, pod in {"patient": patient, "hasty": template("hasty", EXITS, 2, claims=[OF_TEMPLATE])}.items():
        kind, body = deployment(app, pod)
        namespace.api.create(kind, body, namespace.name)
    before = {app: run_on(namespace, app, "node-a") for app in ("patient", "hasty")}
    uncordon_node_b(cluster)
    with History(namespace) as history:
        noticed = announce(reclaimed, 30)
        all_released(reclaimed)
        for app in before:
            run_on(namespace, app, "node-b")
    deletion_delays = {app: history.deleted(pods[0]["metadata"]["uid"]).at - noticed for app, pods in before.items()}
    # API times are whole seconds, and that of the notice is rounded down.
    slowdown = cluster.api.slowdown()
    assert deletion_delays["hasty"] < 4 * slowdown and 5 <= deletion_delays["patient"] < 5 + 4 * slowdown, (
        deletion_delays
    )


def test_pods_that_opt_out_stay_and_are_named(reclaimed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    create_tolerating_template("stays", namespace)
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.pod("tolerates", template="stays")
    kind, body = deployment("annotated", extended_resource_pod("annotated", annotations={KEY: "keep"}))
    namespace.api.create(kind, body, namespace.name)
    daemon = extended_resource_pod("daemon")
    daemon["spec"] |= {"restartPolicy": "Always", "nodeSelector": {"kubernetes.io/hostname": "node-a"}}
    spec = {"selector": {"matchLabels": {"app": "daemon"}}, "template": daemon}
    namespace.api.create(DAEMON_SETS, {"metadata": {"name": "daemon"}, "spec": spec}, namespace.name)
    kind, body = deployment("goes", extended_resource_pod("goes"))
    namespace.api.create(kind, body, namespace.name)
    stay = {app: run_on(namespace, app, "node-a") for app in ("tolerates", "annotated", "daemon")}
    run_on(namespace, "goes", "node-a")
    uncordon_node_b(cluster)
    noticed = announce(reclaimed, 8)
    run_on(namespace, "goes", "node-b")
    time.sleep(max(0.0, noticed + 9 - time.monotonic()))
    for app, pods in stay.items():
        assert uids(run_on(namespace, app, "node-a")) == uids(pods)
    current = status(reclaimed)
    kept = {pod for claim in current["claims"] if claim["state"] == "prepared" for pod in claim["pods"]}
    assert kept == {pod["metadata"]["name"] for pods in stay.values() for pod in pods}
    assert not current["complete"]

    def event_names_pods() -> bool:
        events = cluster.kubectl("get", "events", "-n", "default", "--field-selector", "involvedObject.name=node-a")
        lines = [line for line in events.splitlines() if "ClaimsNotReleased" in line]
        return any(all(name in line for name in kept) for line in lines)

    until(event_names_pods, f"an Event of the node names {kept}")


def test_a_cancelled_notice_evicts_nothing_and_uncordons(
    reclaimed: Agent, cluster: Cluster, namespace: Namespace
) -> None:
    create_tolerating_template("patient", namespace, tolerationSeconds=30)
    before = namespace.pod("patient", template="patient")
    namespace.running("patient")
    uncordon_node_b(cluster)
    noticed = announce(reclaimed, 60)
    tainted(reclaimed, "NoExecute")
    until(lambda: is_cordoned(cluster, "node-a"), "the node is cordoned")
    assert not is_cordoned(cluster, "node-b")
    cancel(reclaimed)
    until(lambda: not is_cordoned(cluster, "node-a"), "the node is uncordoned")
    # The eviction that Kubernetes had scheduled does not happen.
    time.sleep(max(0.0, noticed + 33 - time.monotonic()))
    after = namespace.running("patient")
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and "deletionTimestamp" not in after["metadata"]
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.pod("new", template="one-gpu", node="node-a")
    namespace.running("new")


def test_a_node_cordoned_by_an_administrator_stays_cordoned(reclaimed: Agent, cluster: Cluster) -> None:
    cluster.kubectl("cordon", "node-a")
    announce(reclaimed, 60)
    tainted(reclaimed, "NoExecute")
    until(lambda: is_cordoned_by_agent(cluster, "node-a"), "the agent cordons it, too")
    cancel(reclaimed)
    until(lambda: not is_cordoned_by_agent(cluster, "node-a"), "the agent does not cordon it any more")
    assert is_cordoned(cluster, "node-a")
    cluster.kubectl("uncordon", "node-a")
    assert not is_cordoned(cluster, "node-a")


def test_a_node_uncordoned_by_an_administrator_stays_open(reclaimed: Agent, cluster: Cluster) -> None:
    announce(reclaimed, 60)
    until(lambda: is_cordoned(cluster, "node-a"), "the node is cordoned")
    cluster.kubectl("uncordon", "node-a")
    time.sleep(2)
    assert not is_cordoned(cluster, "node-a")
    cancel(reclaimed)
    time.sleep(1)
    assert not is_cordoned(cluster, "node-a")


def test_claims_wait_while_the_other_node_is_full(reclaimed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.claim("shared", request("gpu", "gpu"))
    shared = [{"name": "devices", "resourceClaimName": "shared"}]
    apps = {"own": [OF_TEMPLATE], "shared": shared}
    for app, claims in apps.items():
        kind, body = deployment(app, template(app, EXITS, 2, claims=claims), replicas=2)
        namespace.api.create(kind, body, namespace.name)
    before = {app: run_on(namespace, app, "node-a", 2) for app in apps}
    uncordon_node_b(cluster)
    namespace.claim("everything", request("gpus", "gpu", count=8))
    namespace.pod("filler", claim="everything", node="node-b")
    namespace.running("filler")
    announce(reclaimed, 60)
    assert len(all_released(reclaimed)) == 3, "two claims from templates, and the shared one"

    def is_waiting() -> bool:
        claims = {one["metadata"]["name"]: one for one in namespace.api.list(CLAIMS, namespace.name)}
        unallocated = {name for name, one in claims.items() if not nodes_of(one)}
        return len(claims) == 4 and "shared" in unallocated and len(unallocated) == 3

    namespace.api.wait(is_waiting, "three claims wait, and none is lost")
    for app in apps:
        found = namespace.api.list(PODS, namespace.name, labels=f"app={app}")
        new = [pod for pod in found if "nodeName" not in pod["spec"]]
        assert len(new) == 2 and not uids(new) & uids(before[app])
    namespace.delete_pod("filler")
    for app in apps:
        run_on(namespace, app, "node-b", 2)

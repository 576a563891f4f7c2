"""Who is moved off a doomed node when, by what users and administrators have chosen."""

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
from cluster.kube.workload import Namespace, close, container, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
AGENT_CONFIG = '[reclaim]\nevict = "auto"\ncordon = true\n'
CHART_VALUES = ("podEviction=evict", "cordon=true")
BUDGETS = Kind("policy/v1", "poddisruptionbudgets")
EXTENDED = {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}


@pytest.fixture
def doomed(agents: dict[str, Agent], cluster: Cluster) -> Iterator[Agent]:
    """The agent of node-a; node-b is closed to pods until `open_node_b`. Announcements are taken back in the end."""
    close(cluster, "node-b")
    yield agents["node-a"]
    cancel(agents["node-a"])
    until(lambda: not closed(cluster, "node-a"), "the node is open again")


def open_node_b(cluster: Cluster) -> None:
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


def closed(cluster: Cluster, node: str) -> bool:
    return bool(cluster.api.get(NODES, node)["spec"].get("unschedulable", False))


def closed_by_agent(cluster: Cluster, node: str) -> bool:
    """Whether the API server has the agent among those who want the node closed."""
    owners = cluster.api.get(NODES, node)["metadata"]["managedFields"]
    return any(
        one["manager"] == f"{DRIVER}-reclaim" and "f:unschedulable" in one["fieldsV1"].get("f:spec", {})
        for one in owners
    )


def tolerating(name: str, namespace: Namespace, **more: Any) -> None:
    """A template of claims that tolerate the taint. Kubernetes 1.37 wants the effect to be named."""
    toleration = {"key": KEY, "operator": "Exists", "effect": "NoExecute", **more}
    namespace.template(name, request("gpu", "gpu", tolerations=[toleration]))


def extended(app: str, grace: int = 2, **metadata: Any) -> Object:
    """The pod template of a workload that asks for a GPU as an extended resource, which the taint does not move."""
    pod = template(app, EXITS, grace, claims=[])
    pod["metadata"] |= metadata
    pod["spec"]["containers"] = [container("main", command=EXITS, resources=EXTENDED)]
    return pod


def uids(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def budget_that_allows_none(namespace: Namespace, app: str) -> None:
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": app}}}
    namespace.api.create(BUDGETS, {"metadata": {"name": app}, "spec": spec}, namespace.name)

    def known() -> bool:
        found = namespace.api.get(BUDGETS, app, namespace.name).get("status", {})
        return bool(found.get("currentHealthy") == 1 and found.get("disruptionsAllowed") == 0)

    namespace.api.wait(known, f"the budget of {app} is known to allow none")


def evictions(agent: Agent, mode: str, result: str) -> float:
    name = f'dra_agent_reclaim_fallback_evictions_total{{mode="{mode}",result="{result}"}}'
    return agent.metrics().get(name, 0.0)


def test_a_budget_that_allows_none(doomed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    made = {"claim": template("claim", EXITS, 2, claims=[OF_TEMPLATE]), "extended": extended("extended")}
    for app, pod in made.items():
        kind, body = deployment(app, pod)
        namespace.api.create(kind, body, namespace.name)
    before = {app: run_on(namespace, app, "node-a") for app in made}
    for app in made:
        budget_that_allows_none(namespace, app)
    open_node_b(cluster)
    deleted_before = evictions(doomed, "delete", "ok")
    notice = 16 * cluster.api.pace()
    with History(namespace) as history:
        noticed = announce(doomed, notice)
        all_released(doomed)
        took = time.monotonic() - noticed
        for app in made:
            run_on(namespace, app, "node-b")
    # The taint asks no budget. The agent does, until 5 s and the pod's own 2 s are left before the deadline, less 2 s.
    (claim_pod,), (extended_pod,) = uids(before["claim"]), uids(before["extended"])
    assert history.deleted(claim_pod).at - noticed < 4 * cluster.api.pace()
    assert 5 < history.deleted(extended_pod).at - noticed < notice
    assert took < notice
    assert evictions(doomed, "evict", "budget") > 0
    assert evictions(doomed, "delete", "ok") == deleted_before + 1


def test_a_toleration_for_some_seconds(doomed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    tolerating("patient", namespace, tolerationSeconds=6)
    patient = template("patient", EXITS, 2, claims=[{"name": "devices", "resourceClaimTemplateName": "patient"}])
    for app, pod in {"patient": patient, "hasty": template("hasty", EXITS, 2, claims=[OF_TEMPLATE])}.items():
        kind, body = deployment(app, pod)
        namespace.api.create(kind, body, namespace.name)
    before = {app: run_on(namespace, app, "node-a") for app in ("patient", "hasty")}
    open_node_b(cluster)
    with History(namespace) as history:
        noticed = announce(doomed, 30)
        all_released(doomed)
        for app in before:
            run_on(namespace, app, "node-b")
    asked = {app: history.deleted(pods[0]["metadata"]["uid"]).at - noticed for app, pods in before.items()}
    # Times of the API are whole seconds, and the notice's is rounded down.
    pace = cluster.api.pace()
    assert asked["hasty"] < 4 * pace and 5 <= asked["patient"] < 5 + 4 * pace, asked


def test_who_opts_out_stays_to_the_end_and_is_named(doomed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    tolerating("stays", namespace)
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.pod("tolerates", template="stays")
    kind, body = deployment("annotated", extended("annotated", annotations={KEY: "keep"}))
    namespace.api.create(kind, body, namespace.name)
    daemon = extended("daemon")
    daemon["spec"] |= {"restartPolicy": "Always", "nodeSelector": {"kubernetes.io/hostname": "node-a"}}
    spec = {"selector": {"matchLabels": {"app": "daemon"}}, "template": daemon}
    namespace.api.create(DAEMON_SETS, {"metadata": {"name": "daemon"}, "spec": spec}, namespace.name)
    kind, body = deployment("goes", extended("goes"))
    namespace.api.create(kind, body, namespace.name)
    stay = {app: run_on(namespace, app, "node-a") for app in ("tolerates", "annotated", "daemon")}
    run_on(namespace, "goes", "node-a")
    open_node_b(cluster)
    noticed = announce(doomed, 8)
    run_on(namespace, "goes", "node-b")
    time.sleep(max(0.0, noticed + 9 - time.monotonic()))
    for app, pods in stay.items():
        assert uids(run_on(namespace, app, "node-a")) == uids(pods)
    now = status(doomed)
    kept = {pod for claim in now["claims"] if claim["state"] == "prepared" for pod in claim["pods"]}
    assert kept == {pod["metadata"]["name"] for pods in stay.values() for pod in pods}
    assert not now["complete"]

    def said() -> bool:
        events = cluster.kubectl("get", "events", "-n", "default", "--field-selector", "involvedObject.name=node-a")
        lines = [line for line in events.splitlines() if "ClaimsNotReleased" in line]
        return any(all(name in line for name in kept) for line in lines)

    until(said, f"an Event of the node names {kept}")


def test_a_notice_that_is_taken_back_in_time(doomed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    tolerating("patient", namespace, tolerationSeconds=30)
    before = namespace.pod("patient", template="patient")
    namespace.running("patient")
    open_node_b(cluster)
    noticed = announce(doomed, 60)
    tainted(doomed, "NoExecute")
    until(lambda: closed(cluster, "node-a"), "the node is closed to new pods")
    assert not closed(cluster, "node-b")
    cancel(doomed)
    until(lambda: not closed(cluster, "node-a"), "the node is open again")
    # What Kubernetes had in mind for later does not happen.
    time.sleep(max(0.0, noticed + 33 - time.monotonic()))
    after = namespace.running("patient")
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and "deletionTimestamp" not in after["metadata"]
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.pod("new", template="one-gpu", node="node-a")
    namespace.running("new")


def test_a_node_that_an_administrator_closed_stays_closed(doomed: Agent, cluster: Cluster) -> None:
    cluster.kubectl("cordon", "node-a")
    announce(doomed, 60)
    tainted(doomed, "NoExecute")
    until(lambda: closed_by_agent(cluster, "node-a"), "the agent wants it closed, too")
    cancel(doomed)
    until(lambda: not closed_by_agent(cluster, "node-a"), "the agent does not any more")
    assert closed(cluster, "node-a")
    cluster.kubectl("uncordon", "node-a")
    assert not closed(cluster, "node-a")


def test_a_node_that_an_administrator_opens_again_is_left_open(doomed: Agent, cluster: Cluster) -> None:
    announce(doomed, 60)
    until(lambda: closed(cluster, "node-a"), "the node is closed to new pods")
    cluster.kubectl("uncordon", "node-a")
    time.sleep(2)
    assert not closed(cluster, "node-a")
    cancel(doomed)
    time.sleep(1)
    assert not closed(cluster, "node-a")


def test_a_full_second_node(doomed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.claim("shared", request("gpu", "gpu"))
    shared = [{"name": "devices", "resourceClaimName": "shared"}]
    apps = {"own": [OF_TEMPLATE], "shared": shared}
    for app, claims in apps.items():
        kind, body = deployment(app, template(app, EXITS, 2, claims=claims), replicas=2)
        namespace.api.create(kind, body, namespace.name)
    before = {app: run_on(namespace, app, "node-a", 2) for app in apps}
    open_node_b(cluster)
    namespace.claim("everything", request("gpus", "gpu", count=8))
    namespace.pod("filler", claim="everything", node="node-b")
    namespace.running("filler")
    announce(doomed, 60)
    assert len(all_released(doomed)) == 3, "two claims of their own, and the shared one"

    def wait_for_room() -> bool:
        claims = {one["metadata"]["name"]: one for one in namespace.api.list(CLAIMS, namespace.name)}
        nowhere = {name for name, one in claims.items() if not nodes_of(one)}
        return len(claims) == 4 and "shared" in nowhere and len(nowhere) == 3

    namespace.api.wait(wait_for_room, "three claims wait, and none is lost")
    for app in apps:
        found = namespace.api.list(PODS, namespace.name, labels=f"app={app}")
        new = [pod for pod in found if "nodeName" not in pod["spec"]]
        assert len(new) == 2 and not uids(new) & uids(before[app])
    namespace.delete_pod("filler")
    for app in apps:
        run_on(namespace, app, "node-b", 2)

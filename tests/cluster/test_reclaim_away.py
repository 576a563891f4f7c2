"""A host is taken while the API server cannot be reached: what was announced is kept, and acted on when it is back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import NODES
from cluster.kube.cluster import Cluster
from cluster.kube.counting_proxy import Way
from cluster.kube.drain_probe import (
    EXITS,
    KEY,
    all_released,
    announce,
    cancel,
    deployment,
    effects,
    no_specs,
    run_on,
    status,
    tainted,
    taints,
    template,
)
from cluster.kube.process import until
from cluster.kube.workload import Namespace, close, request

AWAY = 30.0
TRIES = 6.0
"""Connections a second that are no hammering: two pools, watches, claims and the Node."""
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}

StartAgent = Callable[..., Agent]


@pytest.fixture
def way(cluster: Cluster) -> Iterator[Way]:
    with Way(cluster.api) as way:
        yield way


@pytest.fixture
def doomed(start_agent: StartAgent, cluster: Cluster, way: Way, tmp_path: Path) -> Agent:
    """The agent of node-a, which goes its own way to the API server; node-b has one, too, and is closed at first."""
    start_agent("node-b", "l40s")
    kubeconfig = way.kubeconfig(cluster.identity().kubeconfig("node-a"), tmp_path / "kubeconfig")
    agent = start_agent("node-a", "l40s", kubeconfig=kubeconfig)
    close(cluster, "node-b")
    return agent


def open_node_b(cluster: Cluster) -> None:
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


def make(namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    kind, body = deployment("serve", template("serve", EXITS, 2, claims=[OF_TEMPLATE]), replicas=2)
    namespace.api.create(kind, body, namespace.name)
    run_on(namespace, "serve", "node-a", 2)


def test_the_api_server_is_away_at_the_notice_and_for_long(
    doomed: Agent, cluster: Cluster, namespace: Namespace, way: Way
) -> None:
    make(namespace)
    open_node_b(cluster)
    plane = cluster.control_plane
    plane.apiserver.kill()
    away = time.monotonic()
    announce(doomed, 120)
    kept = json.loads((doomed.state_dir / "reclaim.json").read_text())["state"]
    assert [held["reading"]["kind"] for held in kept["held"]] == ["notice"], "before anything else"
    noticed = status(doomed)["noticed"]
    time.sleep(AWAY / 2)
    # Also the next agent knows, although it reaches nobody either.
    doomed.kill()
    doomed.start()
    doomed.wait_for_log("a reclaim goes on")
    until(lambda: status(doomed)["noticed"] == noticed, "the notice is the same")
    time.sleep(max(0.0, away + AWAY - time.monotonic()))
    now = status(doomed)
    assert not now["complete"] and now["tainted_after"] is None
    assert {(claim["state"], bool(claim["why"])) for claim in now["claims"]} == {("prepared", True)}
    tries = way.tried(away) / (time.monotonic() - away)

    plane.apiserver.start()
    plane.ready()
    back = time.monotonic()
    until(lambda: effects(doomed) == {"NoExecute"}, "every device is tainted", every=0.01)
    took = time.monotonic() - back
    print(f"\n{tries:.1f} tries a second; tainted {took:.2f} s after the API server was back")
    assert tries < TRIES
    assert took < 2.0 * doomed.node.api.pace()
    (added,) = {taint["timeAdded"] for found in taints(doomed).values() for taint in found}
    assert added[:19] == noticed[:19], "tolerations count from the notice"
    run_on(namespace, "serve", "node-b", 2)
    all_released(doomed)
    assert no_specs(doomed)
    complaints = [line for line in doomed.said().splitlines() if " warning " in line or " error " in line]
    lived = time.monotonic() - away
    assert len(complaints) < max(30.0, lived / 2), "\n".join(complaints)
    assert "Traceback" not in doomed.said(this_life=False)


def test_an_agent_that_alone_is_cut_off_takes_no_new_claims(
    doomed: Agent, cluster: Cluster, namespace: Namespace, way: Way
) -> None:
    toleration = {"key": KEY, "operator": "Exists", "effect": "NoExecute"}
    namespace.template("late", request("gpu", "gpu", tolerations=[toleration]))
    make(namespace)
    before = len(status(doomed)["claims"])
    way.close()
    announce(doomed, 120)
    # The scheduler knows nothing of it, and the kubelet neither.
    namespace.pod("late", template="late", node="node-a")
    namespace.api.wait(lambda: namespace.get_pod("late")["spec"].get("nodeName") == "node-a", "it is bound")
    namespace.api.wait(lambda: any("Prepare" in event for event in namespace.events("late")), "the kubelet is told")
    assert effects(doomed) == {""}
    assert len(status(doomed)["claims"]) == before + 2, "those that were prepared, and no other"

    open_node_b(cluster)
    way.open()
    tainted(doomed, "NoExecute")
    run_on(namespace, "serve", "node-b", 2)
    assert namespace.get_pod("late")["status"]["phase"] == "Pending"
    namespace.delete_pod("late")
    namespace.gone("late")
    all_released(doomed)
    cancel(doomed)

"""A reclaim notice while the API server is down: the notice is stored, and acted on once the server is back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import NODES
from cluster.kube.cluster import Cluster
from cluster.kube.counting_proxy import CountingProxy
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
from cluster.kube.workload import Namespace, cordon, request

DOWN_S = 30.0
MAX_ATTEMPTS_PER_S = 6.0
"""Allowed connections per second: two pools, watches, claims and the Node."""
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}

StartAgent = Callable[..., Agent]


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[CountingProxy]:
    with CountingProxy(cluster.api) as proxy:
        yield proxy


@pytest.fixture
def reclaimed(start_agent: StartAgent, cluster: Cluster, proxy: CountingProxy, tmp_path: Path) -> Agent:
    """The agent of node-a, which uses the proxy; node-b has an agent, too, and is cordoned at first."""
    start_agent("node-b", "l40s")
    kubeconfig = proxy.kubeconfig(cluster.identity().kubeconfig("node-a"), tmp_path / "kubeconfig")
    agent = start_agent("node-a", "l40s", kubeconfig=kubeconfig)
    cordon(cluster, "node-b")
    return agent


def uncordon_node_b(cluster: Cluster) -> None:
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


def create_workload(namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    kind, body = deployment("serve", template("serve", EXITS, 2, claims=[OF_TEMPLATE]), replicas=2)
    namespace.api.create(kind, body, namespace.name)
    run_on(namespace, "serve", "node-a", 2)


def test_notice_during_a_long_apiserver_outage(
    reclaimed: Agent, cluster: Cluster, namespace: Namespace, proxy: CountingProxy
) -> None:
    create_workload(namespace)
    uncordon_node_b(cluster)
    plane = cluster.control_plane
    plane.apiserver.kill()
    away = time.monotonic()
    announce(reclaimed, 120)
    stored = json.loads((reclaimed.state_dir / "reclaim.json").read_text())["state"]
    assert [held["reading"]["kind"] for held in stored["held"]] == ["notice"], "stored before any other action"
    noticed = status(reclaimed)["noticed"]
    time.sleep(DOWN_S / 2)
    # A restarted agent loads the notice, although it cannot reach the API server either.
    reclaimed.kill()
    reclaimed.start()
    reclaimed.wait_for_log("continue a reclaim")
    until(lambda: status(reclaimed)["noticed"] == noticed, "the notice is the same")
    time.sleep(max(0.0, away + DOWN_S - time.monotonic()))
    current = status(reclaimed)
    assert not current["complete"] and current["tainted_after"] is None
    assert {(claim["state"], bool(claim["why"])) for claim in current["claims"]} == {("prepared", True)}
    attempts_per_s = proxy.attempts_since(away) / (time.monotonic() - away)

    plane.apiserver.start()
    plane.ready()
    back = time.monotonic()
    until(lambda: effects(reclaimed) == {"NoExecute"}, "every device is tainted", every=0.01)
    delay = time.monotonic() - back
    print(f"\n{attempts_per_s:.1f} tries a second; tainted {delay:.2f} s after the API server was back")
    assert attempts_per_s < MAX_ATTEMPTS_PER_S
    assert delay < 2.0 * reclaimed.node.api.slowdown()
    (added,) = {taint["timeAdded"] for found in taints(reclaimed).values() for taint in found}
    assert added[:19] == noticed[:19], "tolerations count from the notice"
    run_on(namespace, "serve", "node-b", 2)
    all_released(reclaimed)
    assert no_specs(reclaimed)
    warnings = [line for line in reclaimed.read_log().splitlines() if " warning " in line or " error " in line]
    elapsed = time.monotonic() - away
    assert len(warnings) < max(30.0, elapsed / 2), "\n".join(warnings)
    assert "Traceback" not in reclaimed.read_log(current_run=False)


def test_a_disconnected_agent_prepares_no_new_claims(
    reclaimed: Agent, cluster: Cluster, namespace: Namespace, proxy: CountingProxy
) -> None:
    toleration = {"key": KEY, "operator": "Exists", "effect": "NoExecute"}
    namespace.template("late", request("gpu", "gpu", tolerations=[toleration]))
    create_workload(namespace)
    before = len(status(reclaimed)["claims"])
    proxy.close()
    announce(reclaimed, 120)
    # Neither the scheduler nor the kubelet knows of the notice.
    namespace.pod("late", template="late", node="node-a")
    namespace.api.wait(lambda: namespace.get_pod("late")["spec"].get("nodeName") == "node-a", "it is bound")
    namespace.api.wait(
        lambda: any("Prepare" in event for event in namespace.events("late")), "the kubelet gets the error"
    )
    assert effects(reclaimed) == {""}
    assert len(status(reclaimed)["claims"]) == before + 2, "only the claims that were prepared before"

    uncordon_node_b(cluster)
    proxy.open()
    tainted(reclaimed, "NoExecute")
    run_on(namespace, "serve", "node-b", 2)
    assert namespace.get_pod("late")["status"]["phase"] == "Pending"
    namespace.delete_pod("late")
    namespace.wait_until_deleted("late")
    all_released(reclaimed)
    cancel(reclaimed)

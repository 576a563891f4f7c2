"""The agent is killed in the middle of a drain."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import NODES, Object
from cluster.kube.cluster import Cluster
from cluster.kube.drain_probe import (
    EXITS,
    IGNORES_SIGTERM,
    History,
    all_released,
    announce,
    deployment,
    no_specs,
    run_on,
    status,
    tainted,
    taints,
    template,
)
from cluster.kube.process import until
from cluster.kube.workload import Namespace, container, cordon, request
from dra_agent.reclaim.progress_file import PROGRESS_FILE as FILE

AGENT_CONFIG = '[reclaim]\nevict = "auto"\ncordon = true\n'
CHART_VALUES = ("podEviction=evict", "cordon=true")
EXTENDED = {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}

NOTICE_S = 35.0
APPS = ("quick", "claim", "extended")

StartAgent = Callable[..., Agent]


def create_deployment(namespace: Namespace, app: str, pod: Object, replicas: int = 1) -> None:
    kind, body = deployment(app, pod, replicas)
    namespace.api.create(kind, body, namespace.name)


@pytest.fixture
def reclaimed(start_agent: StartAgent, cluster: Cluster, tmp_path: Path) -> Agent:
    """The agent of node-a; node-b has an agent, too, and is cordoned at first."""
    config = tmp_path / "config.toml"
    config.write_text(AGENT_CONFIG)
    identity = cluster.identity(DRIVER, *CHART_VALUES)
    for node in ("node-b", "node-a"):
        agent = start_agent(node, "l40s", "--config", str(config), kubeconfig=identity.kubeconfig(node))
    cordon(cluster, "node-b")
    return agent


def states(agent: Agent) -> list[str]:
    return [claim["state"] for claim in status(agent)["claims"]]


def is_stored(agent: Agent, uid: str) -> bool:
    """Return whether the stored progress has the taints, and this claim as released."""
    stored = json.loads((agent.state_dir / FILE).read_text())["kept"]
    return "tainted" in stored and any(claim["uid"] == uid and "released" in claim for claim in stored["claims"])


def uncordon_node_b(cluster: Cluster) -> None:
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


def test_an_agent_killed_during_a_drain_continues(reclaimed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    create_deployment(namespace, "claim", template("claim", IGNORES_SIGTERM, 25, claims=[OF_TEMPLATE]))
    create_deployment(namespace, "quick", template("quick", EXITS, 2, claims=[OF_TEMPLATE]))
    extended = template("extended", IGNORES_SIGTERM, 60, claims=[])
    extended["spec"]["containers"] = [container("main", command=IGNORES_SIGTERM, resources=EXTENDED)]
    create_deployment(namespace, "extended", extended)
    before = {app: run_on(namespace, app, "node-a")[0]["metadata"]["uid"] for app in APPS}
    uncordon_node_b(cluster)
    with History(namespace) as history:
        noticed = announce(reclaimed, NOTICE_S)
        tainted(reclaimed, "NoExecute")
        taints_before = taints(reclaimed)
        until(lambda: "released" in states(reclaimed), "the first claim is released")
        (released_claim,) = [claim for claim in status(reclaimed)["claims"] if claim["state"] == "released"]
        tainted_after = status(reclaimed)["tainted_after"]
        until(lambda: is_stored(reclaimed, released_claim["uid"]), "its progress is on disk")
        reclaimed.kill()
        time.sleep(2)
        reclaimed.start()
        reclaimed.wait_for_log("continue a reclaim")
        until(lambda: len(states(reclaimed)) == len(APPS), "it also tracks the claim released before")
        all_released(reclaimed)
        elapsed = time.monotonic() - noticed
        for app in before:
            run_on(namespace, app, "node-b")
    # 60 s of grace are cut to the remaining time; a busy machine takes some seconds more.
    grace = history.deleted(before["extended"]).object["metadata"]["deletionGracePeriodSeconds"]
    assert 1 <= grace < NOTICE_S and elapsed < 60 * cluster.api.slowdown()
    assert taints(reclaimed) == taints_before, "also timeAdded, from which tolerations count"
    assert status(reclaimed)["tainted_after"] == tainted_after, (
        "not the time at which the second agent observed the taints"
    )
    assert [claim for claim in status(reclaimed)["claims"] if claim["uid"] == released_claim["uid"]] == [released_claim]
    assert reclaimed.metrics()['dra_agent_reclaim_claims{state="released"}'] == len(APPS)

    def event_is_recorded() -> bool:
        events = cluster.kubectl("get", "events", "-n", "default", "--field-selector", "involvedObject.name=node-a")
        return f"{len(APPS)} of {len(APPS)} claims released" in events

    until(event_is_recorded, "one Event counts all claims")
    for app in ("claim", "extended"):
        uid = before[app]
        assert history.runs(app, "node-b").at < history.ended(uid).at, "its successor did not wait for it"
    assert no_specs(reclaimed)
    assert "Traceback" not in reclaimed.read_log(current_run=False)

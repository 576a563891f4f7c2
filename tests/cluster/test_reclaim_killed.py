"""A node is left while the agent is killed in the middle."""

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
from cluster.kube.workload import Namespace, close, container, request
from dra_agent.reclaim.state_file import PROGRESS_FILE as FILE

AGENT_CONFIG = '[reclaim]\nevict = "auto"\ncordon = true\n'
CHART_VALUES = ("podEviction=evict", "cordon=true")
EXTENDED = {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}

NOTICE = 35.0
APPS = ("quick", "claim", "extended")

StartAgent = Callable[..., Agent]


def make(namespace: Namespace, app: str, pod: Object, replicas: int = 1) -> None:
    kind, body = deployment(app, pod, replicas)
    namespace.api.create(kind, body, namespace.name)


@pytest.fixture
def doomed(start_agent: StartAgent, cluster: Cluster, tmp_path: Path) -> Agent:
    """The agent of node-a; node-b has one, too, and is closed to pods at first."""
    config = tmp_path / "config.toml"
    config.write_text(AGENT_CONFIG)
    identity = cluster.identity(DRIVER, *CHART_VALUES)
    for node in ("node-b", "node-a"):
        agent = start_agent(node, "l40s", "--config", str(config), kubeconfig=identity.kubeconfig(node))
    close(cluster, "node-b")
    return agent


def states(agent: Agent) -> list[str]:
    return [claim["state"] for claim in status(agent)["claims"]]


def is_kept(agent: Agent, uid: str) -> bool:
    """Whether the agent after it will know of the taints, and that this claim is released."""
    kept = json.loads((agent.state_dir / FILE).read_text())["kept"]
    return "tainted" in kept and any(claim["uid"] == uid and "released" in claim for claim in kept["claims"])


def open_node_b(cluster: Cluster) -> None:
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


def test_an_agent_that_is_killed_while_it_moves_pods(doomed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    make(namespace, "claim", template("claim", IGNORES_SIGTERM, 25, claims=[OF_TEMPLATE]))
    make(namespace, "quick", template("quick", EXITS, 2, claims=[OF_TEMPLATE]))
    extended = template("extended", IGNORES_SIGTERM, 60, claims=[])
    extended["spec"]["containers"] = [container("main", command=IGNORES_SIGTERM, resources=EXTENDED)]
    make(namespace, "extended", extended)
    before = {app: run_on(namespace, app, "node-a")[0]["metadata"]["uid"] for app in APPS}
    open_node_b(cluster)
    with History(namespace) as history:
        noticed = announce(doomed, NOTICE)
        tainted(doomed, "NoExecute")
        first = taints(doomed)
        until(lambda: "released" in states(doomed), "the first claim is released")
        (left,) = [claim for claim in status(doomed)["claims"] if claim["state"] == "released"]
        tainted_after = status(doomed)["tainted_after"]
        until(lambda: is_kept(doomed, left["uid"]), "what it knows is on disk")
        doomed.kill()
        time.sleep(2)
        doomed.start()
        doomed.wait_for_log("a reclaim goes on")
        until(lambda: len(states(doomed)) == len(APPS), "it also knows the claim that left before")
        all_released(doomed)
        took = time.monotonic() - noticed
        for app in before:
            run_on(namespace, app, "node-b")
    # 60 s of grace are cut to what the host has; a busy machine takes some seconds more to carry it out.
    grace = history.deleted(before["extended"]).object["metadata"]["deletionGracePeriodSeconds"]
    assert 1 <= grace < NOTICE and took < 60 * cluster.api.pace()
    assert taints(doomed) == first, "also the time from which tolerations count"
    assert status(doomed)["tainted_after"] == tainted_after, "not when the second agent has found them tainted"
    assert [claim for claim in status(doomed)["claims"] if claim["uid"] == left["uid"]] == [left]
    assert doomed.metrics()['dra_agent_reclaim_claims{state="released"}'] == len(APPS)

    def told() -> bool:
        events = cluster.kubectl("get", "events", "-n", "default", "--field-selector", "involvedObject.name=node-a")
        return f"{len(APPS)} of {len(APPS)} claims released" in events

    until(told, "one Event tells of all claims")
    for app in ("claim", "extended"):
        uid = before[app]
        assert history.runs(app, "node-b").at < history.over(uid).at, "its successor did not wait for it"
    assert no_specs(doomed)
    assert "Traceback" not in doomed.said(this_life=False)

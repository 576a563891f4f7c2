"""`dra-agent reclaim status` on a doomed node: how far each claim is, and which pod keeps it, live and for programs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import NODES
from cluster.kube.cluster import Cluster
from cluster.kube.drain_probe import EXITS, IGNORES_SIGTERM, announce, cancel, deployment, run_on, tainted, template
from cluster.kube.process import LONG
from cluster.kube.workload import Namespace, close, request
from reclaim.pty_command import Terminal

HARDWARE = {"node-a": "l40s", "node-b": "l40s"}
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}


@pytest.fixture
def doomed(agents: dict[str, Agent], cluster: Cluster) -> Iterator[Agent]:
    close(cluster, "node-b")
    yield agents["node-a"]
    cancel(agents["node-a"])


def test_a_release_is_watched_and_the_pod_that_keeps_a_claim_is_named(
    doomed: Agent,
    cluster: Cluster,
    namespace: Namespace,
    agent_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    apps = {"prompt": (EXITS, 2), "stubborn": (IGNORES_SIGTERM, 40)}
    names = {}
    for app, (command, grace) in apps.items():
        kind, body = deployment(app, template(app, command, grace, claims=[OF_TEMPLATE]))
        namespace.api.create(kind, body, namespace.name)
        (pod,) = run_on(namespace, app, "node-a")
        names[app] = pod["metadata"]["name"]
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
    where = ("reclaim", "status", "--state-dir", str(doomed.state_dir))
    announce(doomed, 60)
    with Terminal(*where, "--watch") as terminal:
        terminal.wait_for(rf"claims released .* 1/2 .*\d s left, waits for {names['stubborn']}(?! and| ,)")
        blocked = agent_command(*where, "-o", "json")
        table = agent_command(*where)
        code, said = terminal.end(LONG)
    now = json.loads(blocked.stdout)
    assert (now["phase"], now["complete"]) == ("notice", False) and now["tainted_after"] < 5 * cluster.api.pace()
    records = {(claim["pods"] or [""])[0]: claim for claim in now["claims"]}
    assert records[names["stubborn"]]["state"] == "prepared" and records[names["stubborn"]]["seconds"] is None
    assert records[""]["state"] == "released" and records[""]["seconds"] > 0
    (row,) = [line for line in table.stdout.splitlines() if names["stubborn"] in line]
    assert "prepared" in row and row.startswith(f"{namespace.name}/")
    assert code == 0 and said.count(" released ") == 2 and "notice: the node is being reclaimed in" in said
    run_on(namespace, "stubborn", "node-b")
    tainted(doomed, "NoExecute")

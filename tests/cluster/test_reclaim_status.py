"""`dra-agent reclaim status` on a reclaimed node: the state of each claim and its pod, live and as JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import NODES
from cluster.kube.cluster import Cluster
from cluster.kube.drain_probe import EXITS, IGNORES_SIGTERM, announce, cancel, deployment, run_on, tainted, template
from cluster.kube.process import LONG_TIMEOUT_S
from cluster.kube.workload import Namespace, cordon, request
from reclaim.pty_command import Terminal

HARDWARE = {"node-a": "l40s", "node-b": "l40s"}
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}


@pytest.fixture
def reclaimed(agents: dict[str, Agent], cluster: Cluster) -> Iterator[Agent]:
    cordon(cluster, "node-b")
    yield agents["node-a"]
    cancel(agents["node-a"])


def test_watch_shows_the_release_and_the_pod_that_blocks_it(
    reclaimed: Agent,
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
    command_line = ("reclaim", "status", "--state-dir", str(reclaimed.state_dir))
    announce(reclaimed, 60)
    with Terminal(*command_line, "--watch") as terminal:
        terminal.wait_for(rf"claims released .* 1/2 .*\d s left, waits for {names['stubborn']}(?! and| ,)")
        blocked = agent_command(*command_line, "-o", "json")
        table = agent_command(*command_line)
        code, output = terminal.end(LONG_TIMEOUT_S)
    current = json.loads(blocked.stdout)
    assert (current["phase"], current["complete"]) == ("notice", False) and current[
        "tainted_after"
    ] < 5 * cluster.api.slowdown()
    records = {(claim["pods"] or [""])[0]: claim for claim in current["claims"]}
    assert records[names["stubborn"]]["state"] == "prepared" and records[names["stubborn"]]["seconds"] is None
    assert records[""]["state"] == "released" and records[""]["seconds"] > 0
    (row,) = [line for line in table.stdout.splitlines() if names["stubborn"] in line]
    assert "prepared" in row and row.startswith(f"{namespace.name}/")
    assert code == 0 and output.count(" released ") == 2 and "notice: the node is being reclaimed in" in output
    run_on(namespace, "stubborn", "node-b")
    tainted(reclaimed, "NoExecute")

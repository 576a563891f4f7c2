"""`dra-agent top --all-nodes` on a real cluster: metrics of agents through the API server, and its claims."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import Agent
from cluster.kube.api import DAEMON_SETS, PODS
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, container, pod_spec, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
CONFIG = '[telemetry]\ninterval = 1\nclaim_labels = "on"\n'


@pytest.fixture
def agents(start_agent: StartAgent, namespace: Namespace, tmp_path: Path) -> dict[str, Agent]:
    """Agents, and a pod of a DaemonSet for each in the network of its node."""
    config = tmp_path / "agent.toml"
    config.write_text(CONFIG)
    agents = {}
    for node, profile in HARDWARE.items():
        agent = start_agent(node, profile, "--config", str(config), "--metrics-address", "0.0.0.0:0")
        environment = {"DRA_AGENT_NODE_NAME": node, "DRA_AGENT_DRIVER_NAME": agent.driver}
        main = container(
            "dra-agent",
            env=[{"name": name, "value": value} for name, value in environment.items()],
            ports=[{"name": "metrics", "containerPort": int(agent.wait_for_log(r"port=(\d+)")[1])}],
        )
        labels = {"app.kubernetes.io/name": "dra-agent", "node": node}
        spec = pod_spec(containers=[main], node=node, hostNetwork=True, restartPolicy="Always")
        body = {
            "metadata": {"name": f"agent-{node}"},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
        }
        namespace.api.create(DAEMON_SETS, body, namespace.name)
        agents[node] = agent

    def pods_run() -> bool:
        pods = namespace.api.list(PODS, namespace.name, labels="app.kubernetes.io/name=dra-agent")
        return [pod["status"].get("phase") for pod in pods] == ["Running"] * len(agents)

    until(pods_run, "the pods of the agents run")
    return agents


def test_a_cluster_is_read_through_the_api_server(
    cluster: Cluster,
    agents: dict[str, Agent],
    namespace: Namespace,
    agent_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    def top() -> dict[str, Any]:
        flags = ("--kubeconfig", str(cluster.kubeconfig), "--agent-namespace", namespace.name)
        result = agent_command("top", "--all-nodes", *flags, "-o", "json")
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    namespace.claim("own", request("gpu", "gpu"))
    namespace.pod("user", claim="own", node="node-a")
    namespace.running("user")

    def has_values() -> bool:
        document = top()
        assert document["responded"] == document["agents"] == 2, document["failures"]
        (claim,) = [one for one in document["claims"] if one["name"] == "own"]
        device = next(one for one in document["devices"] if one["device"] == claim["device"])
        assert device["claims"] == [f"{namespace.name}/own"]
        watts = claim["values"].get("power_watts")
        return watts is not None and watts == device["values"].get("power_watts")

    until(has_values, "the values of the claim are those of its GPU")
    assert {node["node"] for node in top()["nodes"]} == set(HARDWARE)
    agents["node-b"].kill()
    document = top()
    assert (document["responded"], document["agents"]) == (1, 2)
    (failure,) = document["failures"]
    assert re.search(rf"{namespace.name}/agent-node-b-\w+: .*error trying to reach service", failure)

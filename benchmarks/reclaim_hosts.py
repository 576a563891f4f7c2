"""Two nodes with simulated spot interruptions: an agent on each node, and an EC2 metadata service that announces them.

The agents use credentials of the chart, bound to the pods of a DaemonSet as in any cluster. A drain does not evict
these pods, so the agents keep their permissions.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cluster.kube import image
from cluster.kube.agent import Agent
from cluster.kube.api import DAEMON_SETS, NODES, PODS
from cluster.kube.cluster import Cluster
from cluster.kube.identity import RELEASE
from cluster.kube.node import Node
from cluster.kube.process import Process, until
from dra_agent.reclaim.control import Cancel, Status, send_request

ROOT = Path(__file__).resolve().parent.parent
PROFILE = "dgx-h100"
SPOT = "/latest/meta-data/spot/instance-action"
NOTICE_S = 120.0
"""Seconds from AWS's notice to the interruption."""
CLASSES = ROOT / "examples" / "classes"


class Metadata:
    """The metadata service of one host, in a separate process."""

    def __init__(self, node: Node) -> None:
        command = [sys.executable, "-P", "-m", "reclaim.metadata", "aws"]
        log, owner = node.directory / "metadata.log", node.cluster_dir.directory
        path = {"PYTHONPATH": str(ROOT / "tests")}
        self._process = Process(f"{node.name} metadata", command, log, owner, environment=path)
        self._process.start()
        until(lambda: self._process.read_log().endswith("\n"), "the metadata service prints its address", 20)
        self.endpoint = self._process.read_log().strip()

    def take(self) -> float:
        """Announce an interruption; return the Unix time of the announcement."""
        ends = datetime.now(UTC) + timedelta(seconds=NOTICE_S)
        return float(self.control(spot={"action": "terminate", "time": f"{ends:%Y-%m-%dT%H:%M:%SZ}"})["t0"])

    def leave(self) -> None:
        """Withdraw the announcement, and wait until the agent has read this."""
        since = float(self.control(spot=None)["t0"])
        # The first request may have been in progress; the agent sends the second one after the response to the first.
        until(lambda: len(self.requests_since(since)) > 1, "the agent polls its metadata service", 30)

    def requests_since(self, since: float) -> list[float]:
        """Return the times of requests for an interruption since that time."""
        return [one["at"] for one in self.control()["requests"] if one["path"] == SPOT and one["at"] >= since]

    def close(self) -> None:
        self._process.end()

    def control(self, **values: object) -> dict[str, Any]:
        """Change what the service announces; return its state, with the Unix time of the change as `t0`."""
        body = json.dumps({"set": values} if values else {}).encode()
        with urllib.request.urlopen(f"{self.endpoint}/control", data=body, timeout=10) as response:
            state: dict[str, Any] = json.loads(response.read())
        return state


class Host:
    """A node, its agent, and its metadata service."""

    def __init__(self, cluster: Cluster, name: str, *, more: str = "") -> None:
        """`more`: further lines of the agent's configuration."""
        self.name = name
        node = cluster.node(name)
        self.metadata = Metadata(node)
        config = node.directory / "agent.toml"
        config.write_text(f'[reclaim]\ncloud = "aws"\nendpoint = "{self.metadata.endpoint}"\nlogind = "off"\n{more}')
        token = cluster.identity().token(name, pod=_observer(cluster, name))
        kubeconfig = cluster.control_plane.kubeconfig("agent", node.directory / "agent.kubeconfig", token=token)
        flags = ("--config", str(config), "--log-level", "info")
        self.agent = Agent(node, PROFILE, kubeconfig, flags=flags)

    def forget(self) -> None:
        """Cancel the notice as an operator, because AWS cannot cancel it; then withdraw it at the source."""
        send_request(self.agent.state_dir, Cancel(everything=True))
        self.metadata.leave()
        until(lambda: not self.tainted(), f"no device of {self.name} is tainted", 60)
        until(lambda: not self.closed(), f"{self.name} takes pods again", 30)
        phase = self.status()["phase"]
        assert phase != "notice", f"{self.name} is still in {phase}"

    def status(self) -> dict[str, Any]:
        """Return the output of `dra-agent reclaim status`."""
        answer: dict[str, Any] = send_request(self.agent.state_dir, Status())
        return answer

    def closed(self) -> bool:
        """Return whether the node is cordoned."""
        return bool(self.agent.node.api.get(NODES, self.name)["spec"].get("unschedulable", False))

    def tainted(self) -> bool:
        """Return whether any device is tainted."""
        return any(device.get("taints") for device in self.agent.devices().values())

    def close(self) -> None:
        self.agent.end()
        self.metadata.close()


def prepare(cluster: Cluster) -> None:
    """Create the classes, and the DaemonSet with the pods to which the agents' credentials are bound."""
    for file in sorted(CLASSES.glob("*.yaml")):
        cluster.kubectl("apply", "-f", str(file))
    labels = {"app": "observer"}
    pod = {
        "serviceAccountName": RELEASE,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "observer", "image": image.NAME, "imagePullPolicy": "Never"}],
    }
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    namespace = cluster.identity().namespace
    cluster.api.create(DAEMON_SETS, {"metadata": {"name": "observer"}, "spec": spec}, namespace)
    names = [node.name for node in cluster.nodes]
    cluster.api.wait(lambda: all(_observer(cluster, name) for name in names), "an observer pod on each node", 60)


def _observer(cluster: Cluster, node: str) -> str:
    found = cluster.api.list(PODS, cluster.identity().namespace, labels="app=observer")
    here = [pod for pod in found if pod["spec"].get("nodeName") == node]
    assert here, f"no observer pod on {node}"
    return str(here[0]["metadata"]["name"])

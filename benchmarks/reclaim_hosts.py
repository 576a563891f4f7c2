"""Two nodes whose hosts can be taken: an agent on each, and beside it an EC2 metadata service that can say so.

The agents' credentials are those of the chart, bound to the pods of a DaemonSet as in any cluster: a drain leaves those
pods alone, and so the agents keep their rights.
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
from dra_agent.reclaim.client import send_request
from dra_agent.reclaim.wire import Cancel, Status

ROOT = Path(__file__).resolve().parent.parent
PROFILE = "dgx-h100"
SPOT = "/latest/meta-data/spot/instance-action"
NOTICE = 120.0
"""Seconds from AWS's notice to the end."""
CLASSES = ROOT / "examples" / "classes"


class Metadata:
    """One host's metadata service, a process of its own."""

    def __init__(self, node: Node) -> None:
        command = [sys.executable, "-P", "-m", "reclaim.metadata", "aws"]
        log, owner = node.directory / "metadata.log", node.place.directory
        path = {"PYTHONPATH": str(ROOT / "tests")}
        self._process = Process(f"{node.name} metadata", command, log, owner, environment=path)
        self._process.start()
        until(lambda: self._process.said().endswith("\n"), "the metadata service says where it is", 20)
        self.endpoint = self._process.said().strip()

    def take(self) -> float:
        """Say that the host is taken; the moment of it, as unix time."""
        ends = datetime.now(UTC) + timedelta(seconds=NOTICE)
        return float(self._control(spot={"action": "terminate", "time": f"{ends:%Y-%m-%dT%H:%M:%SZ}"})["t0"])

    def leave(self) -> None:
        """Say nothing any more, and wait until that was heard."""
        since = float(self._control(spot=None)["t0"])
        # The first question may have been under way; the second one is asked after the first was answered.
        until(lambda: len(self.asked(since)) > 1, "the agent asks its metadata service", 30)

    def asked(self, since: float) -> list[float]:
        """When an interruption was asked for, from that moment on."""
        return [one["at"] for one in self._control()["requests"] if one["path"] == SPOT and one["at"] >= since]

    def close(self) -> None:
        self._process.end()

    def _control(self, **values: object) -> dict[str, Any]:
        body = json.dumps({"set": values} if values else {}).encode()
        with urllib.request.urlopen(f"{self.endpoint}/control", data=body, timeout=10) as answer:
            said: dict[str, Any] = json.loads(answer.read())
        return said


class Host:
    """A node, its agent, and what tells the agent that the host is taken."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        node = cluster.node(name)
        self.metadata = Metadata(node)
        config = node.directory / "agent.toml"
        config.write_text(f'[reclaim]\ncloud = "aws"\nendpoint = "{self.metadata.endpoint}"\nlogind = "off"\n')
        token = cluster.identity().token(name, pod=_stand_in(cluster, name))
        kubeconfig = cluster.control_plane.kubeconfig("agent", node.directory / "agent.kubeconfig", token=token)
        flags = ("--config", str(config), "--log-level", "info")
        self.agent = Agent(node, PROFILE, kubeconfig, flags=flags)

    def forget(self) -> None:
        """Have the notice gone: AWS takes none back, so the operator does; then its source falls silent."""
        send_request(self.agent.state_dir, Cancel(everything=True))
        self.metadata.leave()
        until(lambda: not self.tainted(), f"no device of {self.name} is tainted", 60)
        until(lambda: not self.closed(), f"{self.name} takes pods again", 30)
        phase = self.status()["phase"]
        assert phase != "notice", f"{self.name} is still in {phase}"

    def status(self) -> dict[str, Any]:
        """What `dra-agent reclaim status` shows."""
        answer: dict[str, Any] = send_request(self.agent.state_dir, Status())
        return answer

    def closed(self) -> bool:
        """Whether the node takes no pods."""
        return bool(self.agent.node.api.get(NODES, self.name)["spec"].get("unschedulable", False))

    def tainted(self) -> bool:
        """Whether any device is."""
        return any(device.get("taints") for device in self.agent.devices().values())

    def close(self) -> None:
        self.agent.end()
        self.metadata.close()


def prepare(cluster: Cluster) -> None:
    """Make the classes, and the DaemonSet whose pods stand for the agents."""
    for file in sorted(CLASSES.glob("*.yaml")):
        cluster.kubectl("apply", "-f", str(file))
    labels = {"app": "stand-in"}
    pod = {
        "serviceAccountName": RELEASE,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "stand-in", "image": image.NAME, "imagePullPolicy": "Never"}],
    }
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    namespace = cluster.identity().namespace
    cluster.api.create(DAEMON_SETS, {"metadata": {"name": "stand-in"}, "spec": spec}, namespace)
    names = [node.name for node in cluster.nodes]
    cluster.api.wait(lambda: all(_stand_in(cluster, name) for name in names), "a stand-in on each node", 60)


def _stand_in(cluster: Cluster, node: str) -> str:
    found = cluster.api.list(PODS, cluster.identity().namespace, labels="app=stand-in")
    here = [pod for pod in found if pod["spec"].get("nodeName") == node]
    assert here, f"no stand-in on {node}"
    return str(here[0]["metadata"]["name"])

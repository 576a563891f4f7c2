"""The chart's DaemonSet: the agent in a pod, with the chart's permissions, mounts and security settings."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.kube import agent_image
from cluster.kube.agent import DRIVER
from cluster.kube.api import DAEMON_SETS, NAMESPACES, PODS, SLICES, Object
from cluster.kube.cluster import Cluster
from cluster.kube.identity import CHART
from cluster.kube.node import Node
from cluster.kube.process import LONG_TIMEOUT_S, until
from cluster.kube.workload import Namespace, request

HOME = "agents"
IMAGE = f"{agent_image.NAME}:{agent_image.TAG}"


class Deployment:
    """A release of the chart for each node: the two nodes of this machine have different directories."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.values: dict[str, dict[str, Any]] = {node.name: self._values(node) for node in cluster.nodes}

    def apply(self, **changes: Any) -> None:
        """Install or upgrade it, and wait until every agent is ready and no old one is left."""
        for node, values in self.values.items():
            self.cluster.kubectl("apply", "-n", HOME, "-f", "-", input=self.rendered(node, {**values, **changes}))
        for node in self.values:
            self.cluster.kubectl(
                "rollout", "status", "-n", HOME, f"daemonset/{self.release(node)}", f"--timeout={LONG_TIMEOUT_S:.0f}s"
            )
            self.cluster.api.wait(partial(self.has_one_pod, node), f"one agent on {node}")

    def rendered(self, node: str, values: dict[str, Any]) -> str:
        return self.cluster.helm_template(self.release(node), CHART, namespace=HOME, values=values)

    def remove(self) -> None:
        """Uninstall it, with its slices."""
        for node in self.values:
            self.cluster.api.delete(DAEMON_SETS, self.release(node), HOME)
        self.cluster.api.wait(lambda: not self.cluster.api.list(PODS, HOME), "the agents are gone")
        for found in self.cluster.api.list(SLICES, fields={"spec.driver": DRIVER}):
            self.cluster.api.delete(SLICES, found["metadata"]["name"])
        for node in self.values:
            self.cluster.remove_cluster_wide(self.release(node))

    def release(self, node: str) -> str:
        return f"{node}-dra-agent"

    def pods(self, node: str) -> list[Object]:
        """Return the agent's pods on a node, terminating ones included."""
        return self.cluster.api.list(
            PODS, HOME, fields={"spec.nodeName": node}, labels=f"app.kubernetes.io/instance={self.release(node)}"
        )

    def pod(self, node: str) -> Object:
        (found,) = self.pods(node)
        return found

    def execute(self, node: str, command: str) -> str:
        """Run a shell command in the agent's container."""
        name = self.pod(node)["metadata"]["name"]
        return self.cluster.kubectl("exec", "-n", HOME, name, "--", "/bin/sh", "-c", command, check=False)

    def read_log(self, node: str) -> str:
        """Return the agent's log."""
        return self.cluster.api.log(self.pod(node)["metadata"]["name"], HOME)

    def slices(self, node: str) -> list[Object]:
        fields = {"spec.driver": DRIVER, "spec.nodeName": node}
        return sorted(self.cluster.api.list(SLICES, fields=fields), key=lambda item: item["metadata"]["name"])

    def has_one_pod(self, node: str) -> bool:
        return len(self.pods(node)) == 1

    def published(self, node: str) -> bool:
        """Return whether every pool of the node is complete."""
        found = self.slices(node)
        return bool(found) and len({item["spec"]["pool"]["name"] for item in found}) == 2

    def _values(self, node: Node) -> dict[str, Any]:
        return {
            "image": {"repository": agent_image.NAME, "tag": agent_image.TAG, "pullPolicy": "Never"},
            "simulate": "dgx-h100",
            "kubeletDir": str(node.kubelet_dir),
            "cdiDir": str(node.cdi_dir),
            "stateDir": str(node.directory / "daemonset"),
            "staticCdiDir": "",
            "nodeSelector": {"kubernetes.io/hostname": node.name},
            "deviceClasses": {"create": False},
            "claimStatus": "all",
            "logFormat": "text",
        }


@pytest.fixture(scope="module")
def image(session_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The agent's image, in every node's containerd."""
    archive = session_cluster.directory / "agent.tar"
    if not archive.exists():
        agent_image.write(archive, tmp_path_factory.mktemp("image"))
    for node in session_cluster.nodes:
        node.ctr("images", "import", str(archive))
    return IMAGE


@pytest.fixture(scope="module")
def deployed(session_cluster: Cluster, image: str) -> Iterator[Deployment]:
    """The chart on both nodes, for all tests of this module."""
    if session_cluster.api.find(NAMESPACES, HOME) is None:
        labels = {"pod-security.kubernetes.io/enforce": "privileged"}
        session_cluster.api.create(NAMESPACES, {"metadata": {"name": HOME, "labels": labels}})
    deployment = Deployment(session_cluster)
    try:
        deployment.apply()
        for node in session_cluster.nodes:
            session_cluster.api.wait(partial(deployment.published, node.name), f"slices of {node.name}")
        yield deployment
    except BaseException:
        print(session_cluster.kubectl("describe", "pods", "-n", HOME, check=False))
        for node in session_cluster.nodes:
            for pod in deployment.pods(node.name):
                print(session_cluster.kubectl("logs", "-n", HOME, pod["metadata"]["name"], check=False))
        raise
    finally:
        deployment.remove()


def test_a_pod_with_a_claim_runs_with_the_daemonset(
    cluster: Cluster, deployed: Deployment, namespace: Namespace
) -> None:
    namespace.template("gpu", request("gpu", "gpu"))
    for node in deployed.values:
        namespace.pod(f"user-{node}", template="gpu", node=node)
    namespace.running(*(f"user-{node}" for node in deployed.values))
    for node in deployed.values:
        (result,) = namespace.results(namespace.claim_of(f"user-{node}"))
        assert (result["driver"], result["pool"]) == (DRIVER, f"{node}/gpu")
        variable = "DRA_AGENT_DEVICE_" + result["device"].upper().replace("-", "_")
        assert variable in namespace.environment(f"user-{node}")
    # The token of the pod names its node: the agent needs that to write this.
    claim = namespace.claim_of("user-node-a")["metadata"]["name"]
    cluster.api.wait(lambda: namespace.get_claim(claim)["status"].get("devices"), "the claim's status has the device")
    (reported,) = namespace.get_claim(claim)["status"]["devices"]
    assert reported["driver"] == DRIVER
    for node in deployed.values:
        namespace.delete_pod(f"user-{node}")
    namespace.wait_until_deleted(*(f"user-{node}" for node in deployed.values))


def test_agent_container_is_unprivileged(deployed: Deployment) -> None:
    status = deployed.execute("node-a", "cat /proc/1/status")
    for kind in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"):
        assert re.search(rf"^{kind}:\s+0+$", status, re.MULTILINE), status
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE), status
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE), status
    for path in ("/", "/usr/local/lib/dra-agent", "/dev", "/sys", "/etc/dra-agent"):
        assert "Read-only file system" in deployed.execute("node-a", f"touch {path}/written"), path
    mounts = [line.split() for line in deployed.execute("node-a", "cat /proc/1/mounts").splitlines()]
    # The runtime mounts a tmpfs over the hierarchies of cgroup v1.
    below = [fields for fields in mounts if re.match(r"(/sys|/run/host-net)(/|$)", fields[1]) and fields[2] != "tmpfs"]
    assert below and all("ro" in fields[3].split(",") for fields in below), below
    log = deployed.read_log("node-a")
    assert "error" not in log.lower() and "Traceback" not in log, log


def test_agent_sees_the_network_of_the_node_from_its_own(deployed: Deployment) -> None:
    routes_of_container = deployed.execute("node-a", "cat /proc/net/route")
    routes = Path("/proc/1/net/route")
    # Every pod of this machine adds and removes a route, those of other clusters, too.
    until(lambda: deployed.execute("node-a", "cat /run/host-net/route") == routes.read_text(), "it sees the routes")
    assert routes.read_text() != routes_of_container
    assert set(deployed.execute("node-a", "ls /sys/class/net").split()) >= {"lo", *(name for name in hardware())}


def hardware() -> list[str]:
    return [path.name for path in Path("/sys/class/net").iterdir() if (path / "device").exists()]


def test_agent_memory_stays_below_its_request(deployed: Deployment) -> None:
    status = deployed.execute("node-a", "cat /proc/1/status")
    routes_of_container = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert routes_of_container is not None
    resident = int(routes_of_container[1]) / 1024
    requested = deployed.pod("node-a")["spec"]["containers"][0]["resources"]["requests"]["memory"]
    kinds = re.findall(r"^(Rss\w+):\s+(\d+) kB", status, re.MULTILINE)
    print(
        f"resident: {resident:.1f} MiB, asked for: {requested};",
        *(f"{kind} {int(size) // 1024}" for kind, size in kinds),
    )
    assert resident < int(requested.removesuffix("Mi"))


def test_rolling_update_keeps_slices_and_claims(cluster: Cluster, deployed: Deployment, namespace: Namespace) -> None:
    namespace.claim("held", request("gpu", "gpu"))
    namespace.pod("holder", claim="held", node="node-a")
    namespace.running("holder")
    before = {node: deployed.slices(node) for node in deployed.values}
    pods = {node: deployed.pod(node)["metadata"]["uid"] for node in deployed.values}
    specs = cluster.node("node-a").cdi_files()

    deployed.apply(podAnnotations={"restarted": str(time.time())})
    assert {node: deployed.pod(node)["metadata"]["uid"] for node in deployed.values} != pods
    time.sleep(2)
    for node in deployed.values:
        assert deployed.slices(node) == before[node], f"{node}: slices were written"
    assert cluster.node("node-a").cdi_files() == specs
    # The kubelet asks the new agent to release what the old one prepared.
    namespace.pod("second", claim="held", node="node-a")
    namespace.running("second")
    for name in ("holder", "second"):
        namespace.delete_pod(name)
    namespace.wait_until_deleted("holder", "second")
    cluster.api.wait(lambda: not cluster.node("node-a").cdi_files(), "the claim is released")
    sockets = [path.name for path in cluster.node("node-a").kubelet_dir.glob("plugins_registry/*")]
    assert len([name for name in sockets if DRIVER in name]) == 1, f"sockets of agents that are gone: {sockets}"


def test_nodes_of_a_device_plugin_run_no_agent(cluster: Cluster, deployed: Deployment) -> None:
    cluster.kubectl("label", "node", "node-b", "dra-agent.internal/manager=device-plugin")
    try:
        cluster.api.wait(lambda: not deployed.pods("node-b"), "no agent is left on node-b")
        assert len(deployed.pods("node-a")) == 1
    finally:
        cluster.kubectl("label", "node", "node-b", "dra-agent.internal/manager-")
    cluster.api.wait(lambda: len(deployed.pods("node-b")) == 1, "the agent is back on node-b")
    deployed.apply()

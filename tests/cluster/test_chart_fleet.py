"""The chart on a cluster: server-side validation, updates with a dead node, pools, and a bad configuration."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.kube import agent_image
from cluster.kube.agent import DRIVER
from cluster.kube.api import DAEMON_SETS, NAMESPACES, NODES, PODS, SLICES, Object
from cluster.kube.cluster import Cluster
from cluster.kube.identity import CHART
from cluster.kube.node import Node
from cluster.kube.workload import Namespace, container, request

HOME = "fleet"
RELEASE = "fleet"
POOL = {"name": "gpu", "nodeSelector": {"example.com/pool": "gpu"}, "runtimeClassName": "nvidia", "mig": "read"}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "updates": {"updateStrategy": {"maxSurge": 0, "maxUnavailable": 3}, "minReadySeconds": 0},
    "by hand": {"updateStrategy": {"type": "OnDelete"}, "hostNetwork": True},
    "pools": {"pools": [POOL, {**POOL, "name": "b", "nodeSelector": {"example.com/pool": "b"}, "hostNetwork": True}]},
    "quota": {"criticalPodsQuota": {"create": True}},
    "nodes": {"nodes": "accelerators", "flowControl": {"create": True}, "apiServer": {"host": "api.example.com"}},
    "classes": {"deviceClasses": {"prefix": "x-", "labels": {"a": "b"}, "extendedResourceNames": {"gpu": "a.com/gpu"}}},
}


@pytest.fixture(scope="module")
def home(session_cluster: Cluster) -> Iterator[str]:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    session_cluster.api.create(NAMESPACES, {"metadata": {"name": HOME, "labels": labels}})
    yield HOME
    for found in session_cluster.api.list(DAEMON_SETS, HOME):
        session_cluster.api.delete(DAEMON_SETS, found["metadata"]["name"], HOME)
    session_cluster.api.wait(lambda: not session_cluster.api.list(PODS, HOME), "the agents have ended")
    for found in session_cluster.api.list(SLICES, fields={"spec.driver": DRIVER}):
        session_cluster.api.delete(SLICES, found["metadata"]["name"])
    session_cluster.remove_cluster_wide(RELEASE)


def rendered(cluster: Cluster, values: dict[str, Any]) -> list[Object]:
    text = cluster.helm_template(RELEASE, CHART, namespace=HOME, values=values)
    return [found for found in yaml.safe_load_all(text) if found]


def apply(cluster: Cluster, objects: list[Object], *flags: str) -> None:
    cluster.kubectl("apply", "-n", HOME, *flags, "-f", "-", input=yaml.safe_dump_all(objects))


def pods(cluster: Cluster, node: str) -> list[Object]:
    return cluster.api.list(PODS, HOME, fields={"spec.nodeName": node})


def ready_pods(cluster: Cluster, node: str) -> list[Object]:
    """Return the pods of a node that are ready and not terminating."""
    return [
        pod
        for pod in pods(cluster, node)
        if "deletionTimestamp" not in pod["metadata"]
        and {"type": "Ready", "status": "True"}.items()
        <= next((one for one in pod["status"].get("conditions", []) if one["type"] == "Ready"), {}).items()
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_api_server_accepts_the_rendered_chart(cluster: Cluster, home: str, variant: str) -> None:
    apply(cluster, rendered(cluster, VARIANTS[variant]), "--dry-run=server", "--validate=strict")


@pytest.mark.parametrize(
    "strategy",
    [{"maxSurge": "10%"}, {"maxSurge": 0, "maxUnavailable": 2}],
    ids=["surge", "unavailable"],
)
def test_a_dead_node_does_not_stop_an_update(cluster: Cluster, home: str, strategy: dict[str, Any]) -> None:
    """The DaemonSet of the chart with an idle container: its agents cannot run on two nodes of one machine."""
    values = {"updateStrategy": strategy, "minReadySeconds": 0}
    (daemonset,) = [found for found in rendered(cluster, values) if found["kind"] == "DaemonSet"]
    name = daemonset["metadata"]["name"]
    spec = daemonset["spec"]["template"]["spec"]
    for key in ("containers", "initContainers", "volumes", "serviceAccountName"):
        spec.pop(key, None)
    spec["containers"] = [container("idle")]

    def update(version: str, *nodes: str) -> None:
        daemonset["spec"]["template"]["metadata"]["labels"]["version"] = version
        apply(cluster, [daemonset])

        def updated(node: str) -> bool:
            return [pod["metadata"]["labels"]["version"] for pod in ready_pods(cluster, node)] == [version]

        for node in nodes:
            cluster.api.wait(partial(updated, node), f"{node} has version {version}")

    try:
        update("1", "node-a", "node-b")
        cluster.node("node-b").kubelet.kill()

        def dead() -> bool:
            conditions = cluster.api.get(NODES, "node-b")["status"]["conditions"]
            return any(one["type"] == "Ready" and one["status"] == "Unknown" for one in conditions)

        cluster.api.wait(dead, "node-b is NotReady")
        update("2", "node-a")
        update("3", "node-a")
        cluster.node("node-b").kubelet.start()
        update("3", "node-a", "node-b")
    finally:
        if not cluster.node("node-b").kubelet.running:
            cluster.node("node-b").kubelet.start()
        cluster.api.delete(DAEMON_SETS, name, HOME)
        cluster.api.wait(lambda: not pods(cluster, "node-a") + pods(cluster, "node-b"), "no pod is left")


def pool_of(node: Node, config: str) -> dict[str, Any]:
    """Return a pool for a node: the two nodes of this machine have different directories."""
    return {
        "name": node.name,
        "nodeSelector": {"kubernetes.io/hostname": node.name},
        "kubeletDir": str(node.kubelet_dir),
        "cdiDir": str(node.cdi_dir),
        "stateDir": str(node.directory / "fleet"),
        "config": config,
    }


def test_a_bad_configuration_of_a_pool_leaves_its_agents_running(
    cluster: Cluster, home: str, namespace: Namespace, tmp_path: Path
) -> None:
    archive = cluster.directory / "agent.tar"
    if not archive.exists():
        agent_image.write(archive, tmp_path)
    for node in cluster.nodes:
        node.ctr("images", "import", str(archive))

    def install(config: str) -> None:
        values = {
            "image": {"repository": agent_image.NAME, "tag": agent_image.TAG, "pullPolicy": "Never"},
            "simulate": "l40s",
            "staticCdiDir": "",
            "deviceClasses": {"create": False},
            "minReadySeconds": 0,
            "defaultPool": {"create": False},
            "pools": [pool_of(node, config if node.name == "node-a" else "") for node in cluster.nodes],
        }
        apply(cluster, rendered(cluster, values))

    install("")
    for node in cluster.nodes:
        fields = {"spec.driver": DRIVER, "spec.nodeName": node.name}
        cluster.api.wait(partial(cluster.api.list, SLICES, fields=fields), f"slices of {node.name}")
        cluster.api.wait(partial(ready_pods, cluster, node.name), f"the agent of {node.name} is ready")
    before = {node.name: ready_pods(cluster, node.name) for node in cluster.nodes}
    assert {name: len(found) for name, found in before.items()} == {"node-a": 1, "node-b": 1}

    install("[[inventory.partition]]\nmode = 'amd'\nwhen = 'device.nonsense('\n")  # Helm cannot compile rules.

    def failed() -> bool:
        statuses = [
            status
            for pod in pods(cluster, "node-a")
            for kind in ("initContainerStatuses", "containerStatuses")
            for status in pod["status"].get(kind, [])
        ]
        return any(status.get("lastState", {}).get("terminated", {}).get("exitCode") for status in statuses)

    cluster.api.wait(failed, "the new agent of node-a rejects its configuration")
    for node in cluster.nodes:
        running = [pod["metadata"]["uid"] for pod in ready_pods(cluster, node.name)]
        assert running == [pod["metadata"]["uid"] for pod in before[node.name]], f"{node.name} keeps its agent"
    namespace.template("gpu", request("gpu", "gpu"))
    namespace.pod("user", template="gpu", node="node-a")
    namespace.running("user")
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")

    install("")
    cluster.api.wait(lambda: len(pods(cluster, "node-a")) == 1, "the update of node-a has ended")


def test_the_hook_keeps_an_invalid_configuration_out_of_the_cluster(
    cluster: Cluster, home: str, tmp_path: Path
) -> None:
    """The release has no agent: the nodes of this machine have other directories than the default ones."""
    archive = cluster.directory / "agent.tar"
    if not archive.exists():
        agent_image.write(archive, tmp_path)
    for node in cluster.nodes:
        node.ctr("images", "import", str(archive))
    values = {
        "image": {"repository": agent_image.NAME, "tag": agent_image.TAG, "pullPolicy": "Never"},
        "fullnameOverride": "hooked",
        "configCheck": {"hook": True},
        "nodeSelector": {"example.com/none": "true"},
        "deviceClasses": {"create": False},
    }

    def helm(*command: str, **changed: Any) -> subprocess.CompletedProcess[str]:
        program = [
            str(cluster.programs / "helm"),
            *command,
            "--namespace",
            HOME,
            "--kubeconfig",
            str(cluster.kubeconfig),
        ]
        text = json.dumps({**values, **changed})
        return subprocess.run(program, input=text, capture_output=True, text=True, check=False)

    def upgrade(config: str) -> subprocess.CompletedProcess[str]:
        return helm("upgrade", "--install", "hooked", str(CHART), "--values", "-", "--timeout", "15m", config=config)

    def installed() -> str:
        return cluster.kubectl("get", "configmap", "hooked", "-n", HOME, "-o", "jsonpath={.data}")

    def jobs() -> str:
        return cluster.kubectl("get", "jobs", "-n", HOME, "-o", "name").strip()

    try:
        done = upgrade("[inventory]\nhost_uplink = 'exclude'\n")
        assert done.returncode == 0, done.stderr
        assert jobs() == "", "Helm removes a Job that succeeded"
        before = installed()
        done = upgrade("[[inventory.partition]]\nmode = 'amd'\nwhen = 'device.nonsense('\n")
        assert done.returncode != 0 and installed() == before
        assert "inventory.partition" in done.stdout + done.stderr, "Helm prints the log of the Job"
        assert jobs() == "job.batch/hooked-config-check"
        done = upgrade("")
        assert done.returncode == 0, done.stderr
        assert jobs() == "" and installed() != before
    finally:
        helm("uninstall", "hooked")

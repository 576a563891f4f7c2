"""Cluster Autoscaler as a process on the host, installed with the objects of its chart.

It is Cluster Autoscaler with its own provider of simulated nodes (pkg/cloudprovider/kwok), which creates Node objects
without kubelets. The template nodes of that provider have no ResourceSlices: `main.go` of the module adds those of the
output of `dra-agent slices template`, as the cloud provider of a real cluster has to.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from . import build, go_chart, prerequisites
from .api import NAMESPACES, NODES, Kind, Object
from .cluster import Cluster
from .process import LONG_TIMEOUT_S, Process

MODULE = build.Module("cluster-autoscaler", "sigs.k8s.io/cluster-autoscaler", {"cluster-autoscaler": "."})
UNRELEASED = ("sigs.k8s.io/cluster-autoscaler", "k8s.io/autoscaler/cluster-autoscaler/apis")
"""Modules of which only commits are published. Not every module proxy has them."""
NAMESPACE = "cluster-autoscaler"
ACCOUNT = "cluster-autoscaler"
INSTALLED = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
"""The process replaces the Deployment; the ConfigMaps of the chart have node groups of its own tests."""
NODE_GROUP_LABEL = "node-group"
MAX_NODES = 3
"""Of one node group."""
METRICS_PORT = 8085
SCALE_DOWN_UNNEEDED_S = 5
CONFIG_MAPS = Kind("v1", "configmaps")


class NotDownloadedError(Exception):
    """Go does not download a module of UNRELEASED; the message names the module and the reason."""


def program() -> tuple[Path, Path]:
    """Return the program and the chart; builds what is missing.

    The first build takes about 5 minutes on two cores.

    Raises:
        prerequisites.MissingError: There is no Go.
        NotDownloadedError: Go does not download a module of UNRELEASED.
    """
    where = build.directory(MODULE)
    built = (where / "cluster-autoscaler").exists()
    prerequisites.check(go=not built)
    if not built:
        _download()
    build.build(MODULE, "cluster-autoscaler", where)
    return where / "cluster-autoscaler", go_chart.chart_of(MODULE, "kwok/charts")


def _download() -> None:
    command = ["go", "mod", "download", *UNRELEASED]
    done = subprocess.run(command, cwd=MODULE.source, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = " ".join(done.stderr.split())
        raise NotDownloadedError(f"Go does not download what Cluster Autoscaler is built from: {reason}")


def node_template(group: str) -> Object:
    """Return the Node of which the nodes of a group are copies."""
    resources = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    annotations = {
        "cluster-autoscaler.kwok.nodegroup/min-count": "0",
        "cluster-autoscaler.kwok.nodegroup/max-count": str(MAX_NODES),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": group, "labels": {NODE_GROUP_LABEL: group}, "annotations": annotations},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "False", "reason": "Created"}],
        },
    }


class ClusterAutoscaler:
    """The controller with its provider of simulated nodes."""

    def __init__(self, cluster: Cluster, slices: Mapping[str, str]) -> None:
        """Install its objects; `slices` are outputs of `slices template` by node group, empty for none."""
        self.cluster = cluster
        self._program, self._chart = program()
        self._address = cluster.cluster_dir.webhook_address
        directory = cluster.directory / "cluster-autoscaler"
        directory.mkdir()
        documents = directory / "template-slices"
        documents.mkdir()
        for group, document in slices.items():
            if document:
                (documents / f"{group}.yaml").write_text(document)
        self._install([node_template(group) for group in slices])
        kubeconfig = go_chart.write_kubeconfig(cluster, NAMESPACE, ACCOUNT, directory / "kubeconfig")
        self.process = Process(
            "cluster-autoscaler",
            [
                str(self._program),
                "--cloud-provider=kwok-with-devices",
                f"--kubeconfig={kubeconfig}",
                f"--namespace={NAMESPACE}",
                f"--address={self._address}:{METRICS_PORT}",
                "--scan-interval=1s",
                "--scale-down-delay-after-add=1s",
                f"--scale-down-unneeded-time={SCALE_DOWN_UNNEEDED_S}s",
                "--unremovable-node-recheck-timeout=1s",
                "--node-delete-delay-after-taint=0s",
                "--record-duplicated-events",
                "-v=4",
            ],
            directory / "cluster-autoscaler.log",
            cluster.directory,
            environment={
                "KUBECONFIG": str(kubeconfig),
                "KWOK_PROVIDER_MODE": "local",
                "POD_NAMESPACE": NAMESPACE,
                "TEMPLATE_SLICES_DIRECTORY": str(documents),
            },
        )

    def _install(self, nodes: list[Object]) -> None:
        api = self.cluster.api
        api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        rendered = go_chart.render(self.cluster, ACCOUNT, self._chart, NAMESPACE, {})
        go_chart.apply(self.cluster, [found for found in rendered if found["kind"] in INSTALLED])
        config = {
            "apiVersion": "v1alpha1",
            "readNodesFrom": "configmap",
            "configmap": {"name": "node-templates"},
            "nodegroups": {"fromNodeLabelKey": NODE_GROUP_LABEL},
            "nodes": {"skipTaint": True},
        }
        templates = {"apiVersion": "v1", "kind": "List", "items": nodes}
        for name, key, value in (
            ("kwok-provider-config", "config", config),
            ("node-templates", "templates", templates),
        ):
            api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {key: json.dumps(value)}}, NAMESPACE)

    def add_node(self, group: str, name: str) -> None:
        """Create a node of a group, as its cloud would after a change of the size of the group."""
        node = node_template(group)
        node["metadata"]["name"] = name
        node["metadata"]["annotations"] |= {
            "cluster-autoscaler.kwok.nodegroup/name": group,
            "kwok.x-k8s.io/node": "fake",
        }
        self.cluster.api.create(NODES, {**node, "spec": {"providerID": f"kwok:{name}"}})

    def nodes(self, group: str) -> list[str]:
        """Return the names of the nodes of a group."""
        listed = self.cluster.api.list(NODES, labels=f"{NODE_GROUP_LABEL}={group}")
        return sorted(str(node["metadata"]["name"]) for node in listed)

    def starting_nodes(self) -> int:
        """Return how many nodes Cluster Autoscaler regards as new and not ready: also ready ones without slices."""
        found = self.cluster.api.get(CONFIG_MAPS, "cluster-autoscaler-status", NAMESPACE)
        health = yaml.safe_load(found["data"]["status"])["clusterWide"]["health"]
        return int(health["nodeCounts"]["registered"]["notStarted"])

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric with these labels; LookupError if there is none."""
        connection = http.client.HTTPConnection(self._address, METRICS_PORT, timeout=LONG_TIMEOUT_S)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        for found in re.finditer(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE):
            if dict(re.findall(r'(\w+)="([^"]*)"', found[1])) == labels:
                return float(found[2])
        raise LookupError(f"there is no metric {name} with {labels}")

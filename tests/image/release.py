"""A release of the packed chart with a built image, on one node of a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.kube.agent import DRIVER
from cluster.kube.api import NAMESPACES, SLICES
from cluster.kube.cluster import Cluster
from cluster.kube.node import Node

from .conftest import Image

RELEASE = "dra-agent"
HOME = "dra-agent"
PROFILE = "dgx-h100"


class Helm:
    """Helm with the credentials of the administrator, and separate files."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._program = cluster.programs / "helm"
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "HELM_CACHE_HOME": str(folder / "cache"),
            "HELM_CONFIG_HOME": str(folder / "config"),
            "HELM_DATA_HOME": str(folder / "data"),
        }

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run a command in the namespace of the release, with values, and return its output."""
        done = subprocess.run(
            [self._program, *arguments, "--namespace", HOME, *([] if values is None else ["--values", "-"])],
            input=json.dumps(values or {}),
            capture_output=True,
            text=True,
            check=False,
            env=self._environment,
            timeout=900,
        )
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout


@dataclass(frozen=True)
class Release:
    """An installed release, whose agent is ready and has published."""

    cluster: Cluster
    node: Node
    helm: Helm
    image: Image
    chart: Path

    def wait_for_rollout(self) -> None:
        """Wait until the agent of the current revision is ready."""
        self.cluster.kubectl("rollout", "status", "-n", HOME, f"daemonset/{RELEASE}", "--timeout=600s")


@contextmanager
def installed(cluster: Cluster, image: Image, chart: Path, folder: Path) -> Iterator[Release]:
    """Install the packed chart with simulated hardware on node-a during the block; the namespace remains."""
    node = cluster.node("node-a")
    repository, _, tag = image.name.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "simulate": PROFILE,
        "kubeletDir": str(node.kubelet_dir),
        "cdiDir": str(node.cdi_dir),
        "stateDir": str(node.directory / "image-state"),
        "staticCdiDir": "",
        "nodeSelector": {"kubernetes.io/hostname": node.name},
    }
    if not cluster.api.find(NAMESPACES, HOME):
        labels = {"pod-security.kubernetes.io/enforce": "privileged"}
        cluster.api.create(NAMESPACES, {"metadata": {"name": HOME, "labels": labels}})
    release = Release(cluster, node, Helm(cluster, folder), image, chart)
    release.helm.run("install", RELEASE, str(chart), values=values)
    try:
        release.wait_for_rollout()
        cluster.api.wait(lambda: cluster.api.list(SLICES, fields={"spec.driver": DRIVER}), "the agent publishes slices")
        yield release
    except BaseException:
        print(cluster.kubectl("describe", "pods", "-n", HOME, check=False))
        print(cluster.kubectl("logs", "-n", HOME, "-l", f"app.kubernetes.io/instance={RELEASE}", check=False))
        raise
    finally:
        release.helm.run("uninstall", RELEASE, "--wait", "--timeout", "300s")

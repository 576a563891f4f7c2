"""The Kubernetes quickstart of README.md, line by line, on one node that has an image of the agent."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import quickstart

from . import image
from .agent import DRIVER
from .api import PODS, SLICES
from .cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
CHART = "deploy/helm/dra-agent"
NAMESPACE = "quickstart"
"""In place of dra-agent, the namespace of the cluster's own agents, which other scenarios on this cluster use."""


def run(
    cluster: Cluster, repository: str, tag: str, directory: Path, *, report: str, chart: Path | None = None
) -> None:
    """Run the lines after the build of the image, and remove everything.

    `report` is the heading of the report. A packed `chart` replaces that of the checkout.
    """
    commands = quickstart.lines("Kubernetes")
    # Nothing is pushed: the node has the image, and the pod's image is the cluster's own.
    assert commands[0].startswith("podman build ")
    node = cluster.nodes[0]
    values = directory / "values.json"
    values.write_text(
        json.dumps(
            {
                "image": {"tag": tag, "pullPolicy": "Never"},
                "kubeletDir": str(node.kubelet_dir),
                "cdiDir": str(node.cdi_dir),
                "stateDir": str(node.directory / "quickstart"),
                "staticCdiDir": "",
                "nodeSelector": {"kubernetes.io/hostname": node.name},
            }
        )
    )
    pod = directory / "pod.yaml"
    text = (ROOT / "examples/pods/pod.yaml").read_text()
    pod.write_text(text.replace("image: busybox:1.37", f"image: {image.NAME}\n    imagePullPolicy: Never"))
    times = directory / "times"
    assert sum(CHART in command for command in commands) == 1
    script = (
        "\n".join(["set -e", *quickstart.timed(commands[1:], times)])
        .replace(CHART, CHART if chart is None else str(chart))
        .replace("helm install", f"helm install --values {values}")
        .replace(quickstart.IMAGE, repository)
        .replace("examples/pods/pod.yaml", str(pod))
        .replace("namespace dra-agent", f"namespace {NAMESPACE}")
        .replace("-n dra-agent", f"-n {NAMESPACE}")
        .replace("--timeout=120s", "--timeout=600s")
        # A pod is ready before its first output is in the log.
        .replace(
            "kubectl logs one-gpu", "timeout 600 sh -c 'until kubectl logs one-gpu | grep DRA_; do sleep 0.2; done'"
        )
    )
    environment = {
        **os.environ,
        "KUBECACHEDIR": str(cluster.directory / "kubectl"),
        "PATH": f"{cluster.programs}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
    }
    # The chart creates the classes, and refuses to adopt those of this cluster.
    classes = str(ROOT / "examples/classes")
    has_classes = bool(cluster.kubectl("get", "--ignore-not-found", "-o", "name", "-f", classes).strip())
    cluster.kubectl("delete", "--ignore-not-found", "-f", classes)
    try:
        result = subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert "DRA_AGENT_DEVICE_GPU_" in result.stdout
        quickstart.record(report, commands[1:], times, left_out="podman build and push, and pulls of images")
    finally:
        for command in (
            ["kubectl", "delete", "--ignore-not-found", "-f", str(pod)],
            ["helm", "uninstall", "--ignore-not-found", "-n", NAMESPACE, "dra-agent", "--wait"],
            ["kubectl", "delete", "--ignore-not-found", "namespace", NAMESPACE],
        ):
            subprocess.run(command, env=environment, check=False)
        if has_classes:
            cluster.kubectl("apply", "-f", classes)
        for found in cluster.api.list(SLICES, fields={"spec.driver": DRIVER}):
            cluster.api.delete(SLICES, found["metadata"]["name"])
    assert not cluster.api.list(PODS, "default")

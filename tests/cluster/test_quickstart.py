"""The Kubernetes quickstart of README.md, on one node of the test cluster."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import quickstart
from cluster.kube import agent_image, image
from cluster.kube.agent import DRIVER
from cluster.kube.api import PODS, SLICES
from cluster.kube.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "quickstart"
"""In place of dra-agent, the namespace of the cluster's own agents, which other scenarios on this cluster use."""


def test_quickstart_on_kubernetes_runs_a_pod_with_a_gpu(cluster: Cluster, tmp_path: Path) -> None:
    commands = quickstart.lines("Kubernetes")
    # Nothing is pushed: the nodes import the image, and the pod's image is the cluster's own.
    assert commands[0].startswith("podman build ")
    archive = cluster.directory / "agent.tar"
    if not archive.exists():
        agent_image.write(archive, tmp_path / "image")
    node = cluster.nodes[0]
    node.ctr("images", "import", str(archive))
    values = tmp_path / "values.json"
    values.write_text(
        json.dumps(
            {
                "image": {"tag": agent_image.TAG, "pullPolicy": "Never"},
                "kubeletDir": str(node.kubelet_dir),
                "cdiDir": str(node.cdi_dir),
                "stateDir": str(node.directory / "quickstart"),
                "staticCdiDir": "",
                "nodeSelector": {"kubernetes.io/hostname": node.name},
            }
        )
    )
    pod = tmp_path / "pod.yaml"
    text = (ROOT / "examples/pods/pod.yaml").read_text()
    pod.write_text(text.replace("image: busybox:1.37", f"image: {image.NAME}\n    imagePullPolicy: Never"))
    times = tmp_path / "times"
    script = (
        "\n".join(["set -e", *quickstart.timed(commands[1:], times)])
        .replace("helm install", f"helm install --values {values}")
        .replace(quickstart.IMAGE, agent_image.NAME)
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
    cluster.kubectl("delete", "--ignore-not-found", "-f", str(ROOT / "examples/classes"))
    try:
        result = subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert "DRA_AGENT_DEVICE_GPU_" in result.stdout
        quickstart.record("Kubernetes", commands[1:], times, left_out="podman build and push, and pulls of images")
    finally:
        for command in (
            ["kubectl", "delete", "--ignore-not-found", "-f", str(pod)],
            ["helm", "uninstall", "--ignore-not-found", "-n", NAMESPACE, "dra-agent", "--wait"],
            ["kubectl", "delete", "--ignore-not-found", "namespace", NAMESPACE],
        ):
            subprocess.run(command, env=environment, check=False)
        cluster.kubectl("apply", "-f", str(ROOT / "examples/classes"))
        for found in cluster.api.list(SLICES, fields={"spec.driver": DRIVER}):
            cluster.api.delete(SLICES, found["metadata"]["name"])
    assert not cluster.api.list(PODS, "default")

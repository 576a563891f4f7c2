"""The built image in a real cluster: imported into containerd, installed with helm, and removed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.kube import build as programs
from cluster.kube import prerequisites, readme
from cluster.kube.agent import DRIVER
from cluster.kube.api import NAMESPACES, SLICES
from cluster.kube.cluster import Cluster, running
from cluster.kube.identity import CHART
from cluster.kube.node import Node
from cluster.kube.workload import Namespace, request

from .conftest import Image

RELEASE = "dra-agent"
HOME = "dra-agent"
PROFILE = "dgx-h100"


@pytest.fixture(scope="module")
def cluster(plain: Image, debug: Image) -> Iterator[Cluster]:
    """A cluster whose nodes have both images."""
    try:
        programs.programs()
    except prerequisites.MissingError as missing:
        pytest.skip(str(missing))
    with running() as started:
        for node in started.nodes:
            for image in (plain, debug):
                node.ctr("images", "import", str(image.archive))
        yield started


def execute(node: Node, image: Image, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the agent in a container, without Kubernetes."""
    command = [str(node.programs / "ctr"), "--address", str(node.containerd_socket), "--namespace", "k8s.io"]
    command += ["run", "--rm", "--read-only", "--mount", "type=tmpfs,dst=/tmp,options=mode=1777", image.name]
    return subprocess.run(
        [*command, f"image-test-{os.getpid()}", "/usr/local/bin/dra-agent", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_a_container_names_version_and_revision(cluster: Cluster, plain: Image) -> None:
    done = execute(cluster.nodes[0], plain, "--version")
    labels = plain.config["config"]["Labels"]
    commit = labels["org.opencontainers.image.revision"]
    assert labels["org.opencontainers.image.version"] in done.stdout, done.stderr
    assert commit[:12] in done.stdout


def test_the_plain_image_names_the_variant_with_simulated_hardware(cluster: Cluster, plain: Image) -> None:
    done = execute(cluster.nodes[0], plain, "devices", "--simulate", PROFILE)
    assert done.returncode == 1
    assert "simulated NVML library" in done.stderr
    assert "debug variant" in done.stderr


def test_the_debug_variant_simulates_hardware(cluster: Cluster, debug: Image) -> None:
    done = execute(cluster.nodes[0], debug, "devices", "--simulate", PROFILE, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert len([device for device in json.loads(done.stdout)["devices"] if "gpu" in device["name"]]) >= 8


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

    def run(self, *arguments: str, values: dict[str, Any] | None = None) -> str:
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


def test_a_pod_gets_its_claim_from_the_image_and_helm_removes_it(
    cluster: Cluster, debug: Image, tmp_path: Path
) -> None:
    node = cluster.node("node-a")
    repository, _, tag = debug.name.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "simulate": PROFILE,
        "kubeletDir": str(node.kubelet_dir),
        "cdiDir": str(node.cdi_dir),
        "stateDir": str(node.directory / "image-state"),
        "staticCdiDir": "",
        "nodeSelector": {"kubernetes.io/hostname": node.name},
    }
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    cluster.api.create(NAMESPACES, {"metadata": {"name": HOME, "labels": labels}})
    helm = Helm(cluster, tmp_path)
    helm.run("install", RELEASE, str(CHART), values=values)
    try:
        cluster.kubectl("rollout", "status", "-n", HOME, f"daemonset/{RELEASE}", "--timeout=600s")
        slices = {"spec.driver": DRIVER}
        cluster.api.wait(lambda: cluster.api.list(SLICES, fields=slices), "the agent publishes slices")
        namespace = Namespace(cluster, "quickstart")
        namespace.claim("one", request("gpu", "gpu"))
        namespace.pod("user", claim="one", node=node.name)
        namespace.running("user")
        (device,) = [result["device"] for result in namespace.results("one")]
        assert namespace.environment("user")["DRA_AGENT_REQUEST_GPU"] == device
        namespace.delete_pod("user")
        namespace.wait_until_deleted("user")
        namespace.remove()
    except BaseException:
        print(cluster.kubectl("describe", "pods", "-n", HOME, check=False))
        print(cluster.kubectl("logs", "-n", HOME, "-l", f"app.kubernetes.io/instance={RELEASE}", check=False))
        raise
    finally:
        helm.run("uninstall", RELEASE, "--wait", "--timeout", "300s")
    # helm waits for the DaemonSet, and the pod ends after it.
    cluster.api.wait(lambda: not objects_of_the_release(cluster), "no object of the release remains")
    # The kubelet removes slices of a driver that is gone after 30 s.
    cluster.api.wait(lambda: not cluster.api.list(SLICES, fields=slices), "no slice remains")
    assert not node.cdi_files(), "specs of claims"
    # What remains on a node (docs/how-to/install/image.md).
    assert (node.directory / "image-state").is_dir()


def test_the_quickstart_runs_a_pod_with_the_image(cluster: Cluster, debug: Image, tmp_path: Path) -> None:
    repository, _, tag = debug.name.rpartition(":")
    readme.run(cluster, repository, tag, tmp_path, report="Kubernetes with the built image")


def objects_of_the_release(cluster: Cluster) -> list[str]:
    """Return every object with the release's label, in all namespaces and of all kinds that can be listed."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    found = cluster.kubectl(
        "get", ",".join(kinds), "-A", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name", check=False
    )
    return [line for line in found.splitlines() if "/" in line and not line.startswith(("Warning", "error"))]

"""The built image in a real cluster: imported into containerd, installed with helm, and removed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from cluster.kube import readme
from cluster.kube.agent import DRIVER
from cluster.kube.api import SLICES
from cluster.kube.cluster import Cluster
from cluster.kube.node import Node
from cluster.kube.workload import Namespace, request

from .conftest import Image
from .release import PROFILE, RELEASE, installed


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
    assert "needs the package dra-agent-simulate" in done.stderr
    assert "debug variant" in done.stderr


def test_the_debug_variant_simulates_hardware(cluster: Cluster, debug: Image) -> None:
    done = execute(cluster.nodes[0], debug, "devices", "--simulate", PROFILE, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert len([device for device in json.loads(done.stdout)["devices"] if "gpu" in device["name"]]) >= 8


def test_a_pod_gets_its_claim_from_the_image_and_helm_removes_it(
    cluster: Cluster, debug: Image, chart: Path, tmp_path: Path
) -> None:
    with installed(cluster, debug, chart, tmp_path) as release:
        node = release.node
        namespace = Namespace(cluster, "claims")
        namespace.claim("one", request("gpu", "gpu"))
        namespace.pod("user", claim="one", node=node.name)
        namespace.running("user")
        (device,) = [result["device"] for result in namespace.results("one")]
        assert namespace.environment("user")["DRA_AGENT_REQUEST_GPU"] == device
        namespace.delete_pod("user")
        namespace.wait_until_deleted("user")
        namespace.remove()
    # helm waits for the DaemonSet, and the pod ends after it.
    cluster.api.wait(lambda: not objects_of_the_release(cluster), "no object of the release remains")
    # The kubelet removes slices of a driver that is gone after 30 s.
    cluster.api.wait(lambda: not cluster.api.list(SLICES, fields={"spec.driver": DRIVER}), "no slice remains")
    assert not node.cdi_files(), "specs of claims"
    # What remains on a node (docs/how-to/install/image.md).
    assert (node.directory / "image-state").is_dir()


def test_the_quickstart_runs_a_pod_with_the_image(cluster: Cluster, debug: Image, chart: Path, tmp_path: Path) -> None:
    repository, _, tag = debug.name.rpartition(":")
    readme.run(cluster, repository, tag, tmp_path, report="Kubernetes with the built image", chart=chart)


def objects_of_the_release(cluster: Cluster) -> list[str]:
    """Return every object with the release's label, in all namespaces and of all kinds that can be listed."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    found = cluster.kubectl(
        "get", ",".join(kinds), "-A", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name", check=False
    )
    return [line for line in found.splitlines() if "/" in line and not line.startswith(("Warning", "error"))]

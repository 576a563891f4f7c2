"""The Kubernetes quickstart of README.md, on one node of the test cluster; tests/image runs it with the built image."""

from __future__ import annotations

from pathlib import Path

from cluster.kube import agent_image, readme
from cluster.kube.cluster import Cluster


def test_quickstart_on_kubernetes_runs_a_pod_with_a_gpu(cluster: Cluster, tmp_path: Path) -> None:
    archive = cluster.directory / "agent.tar"
    if not archive.exists():
        agent_image.write(archive, tmp_path / "image")
    cluster.nodes[0].ctr("images", "import", str(archive))
    readme.run(cluster, agent_image.NAME, agent_image.TAG, tmp_path, report="Kubernetes")

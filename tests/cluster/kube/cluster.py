"""A complete cluster: started in a few seconds and removed completely."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster.kube.cluster_dir import ClusterDir

from . import build, image
from .agent import DRIVER
from .api import Api, Object
from .control_plane import ControlPlane
from .identity import Identity
from .node import Node
from .process import Process

NODE_NAMES = ("node-a", "node-b")
CLUSTER_WIDE = (
    "clusterroles,clusterrolebindings,priorityclasses,flowschemas,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
"""What the chart creates outside of its namespace."""


class Cluster:
    """The control plane and its nodes."""

    def __init__(
        self,
        cluster_dir: ClusterDir,
        programs: Path,
        *,
        nodes: tuple[str, ...] = NODE_NAMES,
        gates: Mapping[str, bool] | None = None,
        runtime_config: Mapping[str, bool] | None = None,
        flags: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self.cluster_dir = cluster_dir
        self.programs = programs
        self.directory = cluster_dir.directory
        cluster_dir.add_addresses()
        image.write(self.directory / "image.tar")
        self.control_plane = ControlPlane(cluster_dir, programs, nodes, gates or {}, runtime_config or {}, flags or {})
        self.kubeconfig = self.control_plane.kubeconfig("admin", self.directory / "kubeconfig")
        self.namespaces: list[str] = []
        """All namespaces that tests created."""
        self._identities: dict[tuple[str, ...], Identity] = {}
        self.nodes = tuple(
            Node(
                name,
                index,
                cluster_dir,
                programs,
                self.control_plane.kubeconfig(f"kubelet:{name}"),
                self.control_plane.api,
                gates or {},
            )
            for index, name in enumerate(nodes)
        )

    @property
    def api(self) -> Api:
        """The API server, as an administrator."""
        return self.control_plane.api

    def node(self, name: str) -> Node:
        """Return the node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def start(self) -> None:
        """Start everything and return when every node is Ready."""
        runtimes = [threading.Thread(target=node.start_containerd) for node in self.nodes]
        for thread in runtimes:
            thread.start()
        try:
            self.control_plane.start()
        finally:
            for thread in runtimes:
                thread.join()
        for node in self.nodes:
            node.containerd.check_running()
            node.kubelet.start()
        for node in self.nodes:
            node.ready()

    def identity(self, driver: str = DRIVER, *values: str) -> Identity:
        """Return the identity of this driver's agents; `values` of the chart as "podEviction=delete"."""
        key = (driver, *values)
        if key not in self._identities:
            self._identities[key] = Identity(self, driver, DRIVER, values)
        return self._identities[key]

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:
        """Run kubectl as the administrator; return its output, with `check=False` also its errors."""
        command = [str(self.programs / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        # The default of its discovery cache is in the home directory.
        environment = {**os.environ, "KUBECACHEDIR": str(self.directory / "kubectl")}
        result = subprocess.run(command, input=input, capture_output=True, text=True, check=False, env=environment)
        assert not check or result.returncode == 0, f"kubectl {' '.join(arguments)}: {result.stderr}"
        return result.stdout if check else result.stdout + result.stderr

    def helm_template(
        self, release: str, chart: Path, *flags: str, namespace: str = "default", values: Object | None = None
    ) -> str:
        """Render a chart for the cluster's version of Kubernetes."""
        command = [str(self.programs / "helm"), "template", release, str(chart), "--namespace", namespace]
        command += ["--kube-version", build.kubernetes_version(), "--values", "-", *flags]
        text = json.dumps(values or {})
        result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{' '.join(command)}: {result.stderr}"
        return result.stdout

    def remove_cluster_wide(self, release: str) -> None:
        """Delete what a release of the chart created outside of its namespace.

        Its policies would change what later scenarios can apply.
        """
        self.kubectl("delete", CLUSTER_WIDE, "--selector", f"app.kubernetes.io/instance={release}")

    def configuration_policies(self) -> list[str]:
        """Return the installed policies that refuse invalid device configuration."""
        names = self.kubectl("get", "validatingadmissionpolicies", "-o", "name").split()
        return [name for name in names if name.endswith("-configuration")]

    def processes(self) -> list[Process]:
        """Return every process whose log can explain a failure."""
        return [*self.control_plane.processes, *(p for node in self.nodes for p in (node.containerd, node.kubelet))]

    def logs(self, lines: int = 40) -> str:
        """Return the end of every log."""
        return "\n".join(f"--- {process.name}: {process.log}\n{process.tail(lines)}" for process in self.processes())

    def stop(self) -> None:
        """Stop its processes; `ClusterDir.clear` removes the rest."""
        for node in self.nodes:
            node.kubelet.kill()
        self.control_plane.stop()
        for node in self.nodes:
            node.containerd.kill()


@contextmanager
def running(
    *,
    nodes: tuple[str, ...] = NODE_NAMES,
    gates: Mapping[str, bool] | None = None,
    runtime_config: Mapping[str, bool] | None = None,
    flags: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[Cluster]:
    """Run a cluster during the block; it is removed completely afterwards."""
    programs = build.programs()
    cluster_dir = ClusterDir.acquire()
    try:
        cluster = Cluster(cluster_dir, programs, nodes=nodes, gates=gates, runtime_config=runtime_config, flags=flags)
        try:
            cluster.start()
        except BaseException:
            print(cluster.logs())
            cluster.stop()
            raise
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        cluster_dir.clear()
        cluster_dir.release()

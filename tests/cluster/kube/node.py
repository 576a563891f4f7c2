"""A node: containerd and kubelet with separate directories, sockets and addresses."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.kube.cluster_dir import ClusterDir

from . import image
from .api import NODES, Api
from .prerequisites import CNI_PLUGINS
from .process import LONG_TIMEOUT_S, Process, until

KUBELET_PORT = 10250
CDI_SUFFIXES = (".json", ".yaml")


@dataclass
class Node:
    """One node of the cluster. containerd and kubelet can be stopped and started separately."""

    name: str
    index: int
    cluster_dir: ClusterDir
    programs: Path
    kubeconfig: Path
    api: Api
    gates: Mapping[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Short, because the sockets below are limited to 107 bytes.
        self.directory = self.cluster_dir.directory / self.name.removeprefix("node-")
        self.kubelet_dir = self.directory / "kubelet"
        self.cdi_dir = self.directory / "cdi"
        self.containerd_socket = self.directory / "c" / "containerd.sock"
        for path in (self.kubelet_dir, self.cdi_dir, self.containerd_socket.parent):
            path.mkdir(parents=True)
        self._write_cni()
        log = self.directory
        search = {"PATH": f"{self.programs}:{os.environ.get('PATH', '')}"}
        self.containerd = Process(
            f"{self.name} containerd",
            [str(self.programs / "containerd"), "--config", str(self._write_containerd())],
            log / "containerd.log",
            self.cluster_dir.directory,
            environment=search,
        )
        self.kubelet = Process(
            f"{self.name} kubelet",
            [str(self.programs / "kubelet"), *self._kubelet_flags()],
            log / "kubelet.log",
            self.cluster_dir.directory,
            environment=search,
        )

    def start(self) -> None:
        """Start both and import the test image; does not wait until the node is Ready."""
        self.start_containerd()
        self.kubelet.start()

    def start_containerd(self) -> None:
        """Start containerd, wait until it serves, and import the test image."""
        self.containerd.start()
        self._wait_for_containerd()
        archive = self.cluster_dir.directory / "image.tar"
        self.ctr("images", "import", str(archive))

    def ready(self) -> None:
        """Wait until the node is Ready: seconds, or minutes if several clusters start at once."""
        self.api.wait(self.is_ready, f"{self.name} is Ready")

    def is_ready(self) -> bool:
        """Return whether its Ready condition is True now."""
        self.kubelet.check_running()
        self.containerd.check_running()
        # The condition outlives a kubelet that was killed; an open port shows that the current kubelet has started.
        with socket.create_connection((self.cluster_dir.node_address(self.index), KUBELET_PORT), timeout=5):
            pass
        node = self.api.get(NODES, self.name)
        conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")

    def restart_kubelet(self) -> None:
        """Restart the kubelet; its pods continue. It deletes the node's slices when it starts."""
        self.kubelet.end()
        self.kubelet.start()

    def stop(self) -> None:
        """Stop both; containers are ended with the cluster's cgroup."""
        self.kubelet.kill()
        self.containerd.kill()

    def ctr(self, *arguments: str) -> str:
        """Run ctr in the kubelet's namespace of this node's containerd; return its output."""
        address = ["--address", str(self.containerd_socket), "--namespace", "k8s.io"]
        command = [str(self.programs / "ctr"), *address, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG_TIMEOUT_S)
        assert result.returncode == 0, f"ctr {' '.join(arguments)}: {result.stderr}"
        return result.stdout

    def cdi_files(self) -> dict[str, bytes]:
        """Return the CDI specs of the node, by file name: the files that a container runtime reads.

        An agent that is killed leaves a temporary file, which has another suffix.
        """
        return {path.name: path.read_bytes() for path in sorted(self.cdi_dir.iterdir()) if path.suffix in CDI_SUFFIXES}

    def _wait_for_containerd(self) -> None:
        def serves() -> bool:
            self.containerd.check_running()
            return bool(self.containerd_socket.is_socket() and self.ctr("version"))

        until(serves, f"{self.name}'s containerd serves")

    def _write_cni(self) -> None:
        directory = self.directory / "cni"
        directory.mkdir()
        ranges = [[{"subnet": self.cluster_dir.pod_network(self.index)}]]
        addresses = {"type": "host-local", "dataDir": str(directory / "addresses"), "ranges": ranges}
        plugin = {"type": "ptp", "ipam": addresses | {"routes": [{"dst": "0.0.0.0/0"}]}}
        content = {"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}
        (directory / "10-pods.conflist").write_text(json.dumps(content))

    def _write_containerd(self) -> Path:
        file = self.directory / "containerd.toml"
        # JSON numbers, booleans, strings and lists are valid TOML.
        file.write_text(f"""\
version = 3
root = {json.dumps(str(self.directory / "containerd"))}
state = {json.dumps(str(self.containerd_socket.parent))}
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = {json.dumps(str(self.containerd_socket))}
[plugins."io.containerd.cri.v1.images"]
use_local_image_pull = true
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = {json.dumps(image.NAME)}
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = {json.dumps([str(self.cdi_dir)])}
restrict_oom_score_adj = {json.dumps(not _may_lower_oom_score())}
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = {json.dumps([str(CNI_PLUGINS)])}
conf_dir = {json.dumps(str(self.directory / "cni"))}
use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = {json.dumps(shutil.which("runc"))}
Root = {json.dumps(str(self.directory / "runc"))}
[plugins."io.containerd.metadata.v1.bolt"]
no_sync = true
""")
        return file

    def _kubelet_flags(self) -> list[str]:
        file = self.directory / "kubelet.json"
        authority = self.cluster_dir.directory / "control-plane" / "pki" / "ca.crt"
        content = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.cluster_dir.node_address(self.index),
            "port": KUBELET_PORT,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(authority)}},
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.containerd_socket}",
            "podLogsDir": str(self.directory / "pods"),
            "volumePluginDir": str(self.kubelet_dir / "volumeplugins"),
            # For hosts with cgroup v1, which the kubelet rejects by default, and hosts with foreign cgroups.
            "failCgroupV1": False,
            "cgroupsPerQOS": False,
            "cgroupDriver": "cgroupfs",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "evictionHard": {},
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "clusterDNS": [self.cluster_dir.dns_address],
            "clusterDomain": "cluster.local",
            "eventRecordQPS": 0,
            "maxPods": 200,
            "imageGCHighThresholdPercent": 100,
            "featureGates": dict(self.gates),
        }
        file.write_text(json.dumps(content, indent=2))
        flags = {
            "config": file,
            "kubeconfig": self.kubeconfig,
            "root-dir": self.kubelet_dir,
            "cert-dir": self.directory / "kubelet-pki",
            "hostname-override": self.name,
            "node-ip": self.cluster_dir.node_address(self.index),
            "v": 2,
        }
        return [f"--{name}={value}" for name, value in flags.items()]


def _may_lower_oom_score() -> bool:
    """Return whether runc can set the negative oom_score_adj that the kubelet requests for a container."""
    attempt = "echo -998 > /proc/self/oom_score_adj"
    return subprocess.run(["/bin/sh", "-c", attempt], capture_output=True, check=False).returncode == 0

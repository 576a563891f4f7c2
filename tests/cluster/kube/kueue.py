"""Kueue as a process on the host, installed with the objects of its chart.

The API server reaches its webhooks at the cluster IP of their Service, where the process itself listens: no kube-proxy
is needed. Its permissions, configuration, webhooks and certificates are those of the chart.
"""

from __future__ import annotations

import base64
import http.client
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from . import build, go_chart, prerequisites
from .api import NAMESPACES, Kind, Object
from .cluster import Cluster
from .process import LONG_TIMEOUT_S, Process, until

MODULE = build.Module("kueue", "sigs.k8s.io/kueue", {"kueue": "sigs.k8s.io/kueue/cmd/kueue"})
NAMESPACE = "kueue-system"
ACCOUNT = "kueue-controller-manager"
SECRETS = Kind("v1", "secrets")
HEALTH_PORT = 8081
NOT_INSTALLED = ("Deployment", "APIService")
"""The process replaces the Deployment. The API of pending workloads is not served, and an unserved one blocks the
deletion of namespaces."""
CERTIFICATE_FILES = ("tls.crt", "tls.key", "ca.crt")


def program() -> tuple[Path, Path]:
    """Return the program and the chart; builds what is missing.

    MissingError without Go. The first build takes about 10 minutes on two cores.
    """
    where = build.directory(MODULE)
    prerequisites.check(go=not (where / "kueue").exists())
    build.build(MODULE, "kueue", where)
    return where / "kueue", go_chart.chart_of(MODULE, "charts/kueue")


class Kueue:
    """Kueue's manager with one integration, batch/v1 Jobs."""

    def __init__(
        self,
        cluster: Cluster,
        mappings: Mapping[str, Sequence[str]],
        sources: Mapping[str, Sequence[Object]] | None = None,
    ) -> None:
        """Install its objects; `mappings` are the DeviceClasses of each resource that it counts.

        A resource that `sources` has counts counters or capacity of the devices instead of their number.
        """
        self.cluster = cluster
        self._program, self._chart = program()
        self._directory = cluster.directory / "kueue"
        self._directory.mkdir()
        self._certificates = self._directory / "certificates"
        self._certificates.mkdir(mode=0o700)
        self.address = cluster.cluster_dir.webhook_address
        self._install(mappings, sources or {})
        kubeconfig = go_chart.write_kubeconfig(cluster, NAMESPACE, ACCOUNT, self._directory / "kubeconfig")
        self.process = Process(
            "kueue",
            [str(self._program), f"--config={self._directory / 'config.yaml'}", "--zap-log-level=2"],
            self._directory / "kueue.log",
            cluster.directory,
            environment={"KUBECONFIG": str(kubeconfig)},
        )

    def start(self) -> None:
        """Start it; return when it admits workloads and its webhooks respond."""
        self.process.start()
        until(self._store_certificates, "Kueue has created the certificates of its webhooks")
        until(self._is_ready, "Kueue is ready")

    def _install(self, mappings: Mapping[str, Sequence[str]], sources: Mapping[str, Sequence[Object]]) -> None:
        api = self.cluster.api
        api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        configuration = yaml.safe_dump(self._configuration(mappings, sources))
        values = {"managerConfig": {"controllerManagerConfigYaml": configuration}}
        rendered = go_chart.render(self.cluster, "kueue", self._chart, NAMESPACE, values)
        objects = [found for found in rendered if found["kind"] not in NOT_INSTALLED]
        for found in objects:
            if found["kind"] == "ConfigMap":
                (self._directory / "config.yaml").write_text(found["data"]["controller_manager_config.yaml"])
            elif found["kind"] == "Service" and found["metadata"]["name"] == "kueue-webhook-service":
                found["spec"]["clusterIP"] = self.address
        go_chart.apply(self.cluster, objects)

    def _configuration(self, mappings: Mapping[str, Sequence[str]], sources: Mapping[str, Sequence[Object]]) -> Object:
        listed = [
            {"name": resource, "deviceClassNames": list(classes), "sources": list(sources.get(resource, ()))}
            for resource, classes in mappings.items()
        ]
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"{self.address}:{HEALTH_PORT}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": self.address, "port": 443, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "integrations": {"frameworks": ["batch/job"]},
            "resources": {"deviceClassMappings": listed},
            "featureGates": {"VisibilityOnDemand": False},
        }

    def _store_certificates(self) -> bool:
        """Write the files that the kubelet would mount from the Secret; return whether it has them."""
        self.process.check_running()
        data = self.cluster.api.get(SECRETS, "kueue-webhook-server-cert", NAMESPACE).get("data") or {}
        if not all(data.get(name) for name in CERTIFICATE_FILES):
            return False
        for name in CERTIFICATE_FILES:
            (self._certificates / name).write_bytes(base64.b64decode(data[name]))
        return True

    def _is_ready(self) -> bool:
        self.process.check_running()
        connection = http.client.HTTPConnection(self.address, HEALTH_PORT, timeout=LONG_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        finally:
            connection.close()

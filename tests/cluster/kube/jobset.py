"""JobSet's controller as a process on the host, installed with the objects of its chart.

The API server reaches its webhooks at the cluster IP of their Service, where the process itself listens. Its
certificate is signed by the authority of the cluster: JobSet's own one is written to a directory that all clusters of
the host would share.
"""

from __future__ import annotations

import base64
import http.client
import shutil
from pathlib import Path

import yaml

from . import build, go_chart, pki, prerequisites
from .api import NAMESPACES, Object
from .cluster import Cluster
from .process import LONG_TIMEOUT_S, Process, until

MODULE = build.Module("jobset", "sigs.k8s.io/jobset", {"jobset": "sigs.k8s.io/jobset"})
NAMESPACE = "jobset-system"
ACCOUNT, SERVICE = "jobset-controller", "jobset-webhook-service"
HEALTH_PORT = 8081
NOT_INSTALLED = ("Deployment", "Certificate", "Issuer", "ConfigMap")
"""The process replaces the Deployment and its configuration."""


def program() -> tuple[Path, Path]:
    """Return the program and the chart; builds what is missing. MissingError without Go."""
    where = build.directory(MODULE)
    prerequisites.check(go=not (where / "jobset").exists())
    build.build(MODULE, "jobset", where)
    return where / "jobset", go_chart.chart_of(MODULE, "charts/jobset")


class JobSetController:
    """The controller with its webhooks."""

    def __init__(self, cluster: Cluster) -> None:
        """Install its objects."""
        self.cluster = cluster
        self._program, self._chart = program()
        self._directory = cluster.directory / "jobset"
        self._directory.mkdir()
        self.address = cluster.cluster_dir.webhook_address
        certificates = self._create_certificate()
        self._install()
        configuration = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"{self.address}:{HEALTH_PORT}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": self.address, "port": 443, "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
        }
        (self._directory / "config.yaml").write_text(yaml.safe_dump(configuration))
        kubeconfig = go_chart.write_kubeconfig(cluster, NAMESPACE, ACCOUNT, self._directory / "kubeconfig")
        self.process = Process(
            "jobset",
            [str(self._program), f"--config={self._directory / 'config.yaml'}", "--zap-log-level=2"],
            self._directory / "jobset.log",
            cluster.directory,
            environment={"KUBECONFIG": str(kubeconfig)},
        )

    def start(self) -> None:
        """Start it; return when its webhooks respond."""
        self.process.start()
        until(self._is_ready, "JobSet's controller is ready")

    def _create_certificate(self) -> Path:
        """Return the directory of the certificate and key, under the names that controller-runtime expects."""
        certificates = self._directory / "certificates"
        certificates.mkdir(mode=0o700)
        authority = self.cluster.control_plane.keys.authority.parent
        certificate, key = pki.sign_service(authority, SERVICE, NAMESPACE)
        shutil.copy(certificate, certificates / "tls.crt")
        shutil.copy(key, certificates / "tls.key")
        return certificates

    def _install(self) -> None:
        self.cluster.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        values: Object = {"certManager": {"enable": True}}  # otherwise the controller creates certificates
        rendered = go_chart.render(self.cluster, "jobset", self._chart, NAMESPACE, values)
        objects = [*self._definitions(), *(found for found in rendered if found["kind"] not in NOT_INSTALLED)]
        authority = base64.b64encode(self.cluster.control_plane.keys.authority.read_bytes()).decode()
        for found in objects:
            if found["kind"] == "Service" and found["metadata"]["name"] == SERVICE:
                found["spec"]["clusterIP"] = self.address
            for webhook in found.get("webhooks", []):
                webhook["clientConfig"]["caBundle"] = authority
        go_chart.apply(self.cluster, objects)

    def _definitions(self) -> list[Object]:
        """Return the custom resource definitions, which `helm template` does not render."""
        return [yaml.safe_load(file.read_text()) for file in sorted((self._chart / "crds").glob("*.yaml"))]

    def _is_ready(self) -> bool:
        self.process.check_running()
        connection = http.client.HTTPConnection(self.address, HEALTH_PORT, timeout=LONG_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        finally:
            connection.close()

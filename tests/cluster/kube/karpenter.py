"""Karpenter as a process on the host, installed with the objects of its chart.

It is Karpenter with its own provider of simulated nodes (sigs.k8s.io/karpenter/kwok), which creates Node objects
without kubelets. The instance types of that provider have no devices: `main.go` of the module fills them in from the
output of `dra-agent slices template --form karpenter`, as the cloud provider of a real cluster has to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from . import build, go_chart, prerequisites
from .api import NAMESPACES, Object
from .cluster import Cluster
from .process import Process

MODULE = build.Module("karpenter", "sigs.k8s.io/karpenter", {"karpenter": "."}, unpacked=True)
NAMESPACE = "karpenter"
ACCOUNT = "karpenter"
NOT_INSTALLED = ("Deployment", "PodDisruptionBudget", "Service")
"""The process replaces the Deployment."""
RULES_FOR_CLAIMS = {
    "apiGroups": ["resource.k8s.io"],
    "resources": ["deviceclasses", "resourceclaims", "resourceslices"],
    "verbs": ["get", "list", "watch"],
}
"""The chart of 1.15.0 has no permissions for DRA."""
ZONE = "zone-a"


def program() -> tuple[Path, Path]:
    """Return the program and the chart; builds what is missing.

    MissingError without Go. The first build takes about 5 minutes on two cores.
    """
    where = build.directory(MODULE)
    prerequisites.check(go=not (where / "karpenter").exists())
    build.build(MODULE, "karpenter", where)
    return where / "karpenter", go_chart.chart_of(MODULE, "kwok/charts")


def instance_type(name: str, price: float) -> Object:
    """Return an instance type of the provider, with one offering."""
    requirements = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": ZONE}
    offering = {
        "Price": price,
        "Available": True,
        "Requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in requirements.items()],
    }
    return {
        "name": name,
        "offerings": [offering],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "64", "memory": "256Gi"},
    }


class Karpenter:
    """The controller with its provider of simulated nodes."""

    def __init__(self, cluster: Cluster, instance_types: list[Object], devices: Mapping[str, str]) -> None:
        """Install its objects; `devices` are documents of `--form karpenter` by the name of an instance type."""
        self.cluster = cluster
        self._program, self._chart = program()
        directory = cluster.directory / "karpenter"
        directory.mkdir()
        types = directory / "instance-types.json"
        types.write_text(json.dumps(instance_types))
        documents = directory / "dynamic-resources"
        documents.mkdir()
        for name, document in devices.items():
            (documents / f"{name}.yaml").write_text(document)
        self._install()
        kubeconfig = go_chart.write_kubeconfig(cluster, NAMESPACE, ACCOUNT, directory / "kubeconfig")
        self.process = Process(
            "karpenter",
            [
                str(self._program),
                "--ignore-dra-requests=false",
                "--disable-leader-election",
                f"--instance-types-file-path={types}",
                # It listens on all addresses: a free port, as several clusters can run.
                "--metrics-port=0",
                "--health-probe-port=0",
            ],
            directory / "karpenter.log",
            cluster.directory,
            environment={
                "KUBECONFIG": str(kubeconfig),
                "SYSTEM_NAMESPACE": NAMESPACE,
                "DYNAMIC_RESOURCES_DIRECTORY": str(documents),
            },
        )

    def _install(self) -> None:
        self.cluster.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        definitions = [*(self._chart / "crds").glob("*.yaml"), self._definition_of_node_class()]
        for file in sorted(definitions):
            self.cluster.kubectl("apply", "--server-side", "-f", str(file))
        self.cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=10m")
        values: Object = {"additionalClusterRoleRules": [RULES_FOR_CLAIMS]}
        rendered = go_chart.render(self.cluster, "karpenter", self._chart, NAMESPACE, values)
        go_chart.apply(self.cluster, [found for found in rendered if found["kind"] not in NOT_INSTALLED])

    @staticmethod
    def _definition_of_node_class() -> Path:
        return build.unpacked_source(MODULE) / "kwok" / "apis" / "crds" / "karpenter.kwok.sh_kwoknodeclasses.yaml"

"""Volcano's scheduler and controllers as processes on the host, installed with the objects of its chart.

Its webhooks are not installed: they fill in defaults of Volcano's Jobs and validate them. The API of Volcano has no
module of version 1.15. That of 1.14 has the same definitions, without one constant, which the build adds.
"""

from __future__ import annotations

import http.client
from functools import partial
from pathlib import Path

import yaml

from . import build, go_chart, prerequisites
from .api import NAMESPACES, Object
from .cluster import Cluster
from .process import LONG_TIMEOUT_S, Process, until

PROGRAMS = ("scheduler", "controller-manager")
MODULE = build.Module(
    "volcano",
    "volcano.sh/volcano",
    {f"vc-{name}": f"volcano.sh/volcano/cmd/{name}" for name in PROGRAMS},
    completed="volcano.sh/apis",
)
RELEASE = "volcano"
NAMESPACE = "volcano-system"
SCHEDULER = "volcano"
"""The scheduler's name in the specs of pods."""
ACCOUNTS = {"scheduler": "volcano-scheduler", "controller-manager": "volcano-controllers"}
HEALTH_PORTS = {"scheduler": 11251, "controller-manager": 11252}
CONFIGURATION = {
    # Not preempt and reclaim: Volcano 1.15.0 reserves the claim of a pod for which it tries to preempt others, and does
    # not release it, so that the gang never starts ("is in the process of being allocated").
    "actions": "enqueue, allocate, backfill",
    "tiers": [
        {"plugins": [{"name": "priority"}, {"name": "gang"}, {"name": "conformance"}]},
        {
            "plugins": [
                {"name": "predicates", "arguments": {"predicate.DynamicResourceAllocationEnable": True}},
                {"name": "capacity", "arguments": {"capacity.DynamicResourceAllocationEnable": True}},
                {"name": "nodeorder"},
                {"name": "network-topology-aware"},
            ]
        },
    ],
}
"""The chart's, with quota of DeviceClasses and topology, and without the plugins that only order nodes."""


def program() -> tuple[Path, Path]:
    """Return the directory of the programs, and the chart; builds what is missing. MissingError without Go."""
    where = build.directory(MODULE)
    prerequisites.check(go=any(not (where / name).exists() for name in MODULE.programs))
    for name in MODULE.programs:
        build.build(MODULE, name, where)
    return where, go_chart.chart_of(MODULE, "installer/helm/chart/volcano")


class Volcano:
    """The scheduler and the controllers."""

    def __init__(self, cluster: Cluster) -> None:
        """Install the objects of the chart."""
        self.cluster = cluster
        self._programs, self._chart = program()
        self._directory = cluster.directory / "volcano"
        self._directory.mkdir()
        self.address = cluster.cluster_dir.webhook_address
        self._install()
        # The scheduler loads it again whenever a file of its directory changes, such as a log.
        configuration = self._directory / "configuration" / "scheduler.yaml"
        configuration.parent.mkdir()
        configuration.write_text(yaml.safe_dump(CONFIGURATION))
        self.scheduler = self._process("scheduler", f"--scheduler-conf={configuration}", "--cache-dumper=false")
        self.controllers = self._process("controller-manager")

    def start(self) -> None:
        """Start both; return when they are ready."""
        for name, process in {"scheduler": self.scheduler, "controller-manager": self.controllers}.items():
            process.start()
            until(partial(self._is_ready, name, process), f"Volcano's {name} is ready")

    def kill(self) -> None:
        """End both."""
        self.scheduler.kill()
        self.controllers.kill()

    def tail(self, lines: int) -> str:
        """Return the last lines of both logs."""
        return f"{self.scheduler.tail(lines)}\n{self.controllers.tail(lines)}"

    def _process(self, name: str, *flags: str) -> Process:
        account = ACCOUNTS[name]
        kubeconfig = go_chart.write_kubeconfig(self.cluster, NAMESPACE, account, self._directory / f"{name}.kubeconfig")
        command = [
            str(self._programs / f"vc-{name}"),
            f"--kubeconfig={kubeconfig}",
            f"--scheduler-name={SCHEDULER}",
            "--leader-elect=false",
            "--enable-healthz=true",
            f"--healthz-address={self.address}:{HEALTH_PORTS[name]}",
            "--v=3",
            *flags,
        ]
        return Process(f"volcano-{name}", command, self._directory / f"{name}.log", self.cluster.directory)

    def _install(self) -> None:
        self.cluster.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        values: Object = {"custom": {"admission_enable": False}}
        rendered = go_chart.render(self.cluster, RELEASE, self._chart, NAMESPACE, values)
        definitions = [found for found in rendered if found["kind"] == "CustomResourceDefinition"]
        accounts = [
            found
            for found in rendered
            if found["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        ]
        go_chart.apply(self.cluster, definitions)
        self.cluster.kubectl(
            "wait",
            "--for=condition=Established",
            "--timeout=600s",
            *(f"crd/{found['metadata']['name']}" for found in definitions),
        )
        go_chart.apply(self.cluster, accounts)

    def _is_ready(self, name: str, process: Process) -> bool:
        process.check_running()
        connection = http.client.HTTPConnection(self.address, HEALTH_PORTS[name], timeout=LONG_TIMEOUT_S)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        finally:
            connection.close()

"""The control plane of a fleet: that of `drivers_plane.py`, with the permissions of the chart and a restart."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from drivers_plane import ControlPlane
from fleet_counts import Scrape

USER = "system:serviceaccount:dra-agent:dra-agent"
"""All agents of a DaemonSet share one service account, and so one flow of API priority and fairness."""
RBAC = Path(__file__).resolve().parent.parent / "deploy" / "kustomize" / "base" / "rbac.yaml"
STOP_TIMEOUT_S = 30.0
"""Until SIGKILL: the default terminationGracePeriodSeconds of a pod, such as a static pod of the control plane."""
API_SERVER = "kube-apiserver"


class FleetPlane(ControlPlane):
    """etcd and kube-apiserver for agents with the permissions of the deployment."""

    user_groups = "system:serviceaccounts,system:serviceaccounts:dra-agent"

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._arguments: tuple[Path, str] | None = None
        super().__init__(binaries, folder, [USER])

    @property
    def port(self) -> int:
        """The port of the API server."""
        return self._port

    @property
    def audit(self) -> Path:
        """The audit log, with the requests of the agents."""
        return self._audit

    @property
    def pids(self) -> dict[str, int]:
        """The running processes by name."""
        return {name: process.pid for name, process in self._processes.items()}

    def metrics(self) -> Scrape:
        """Read the metrics of the API server."""
        return Scrape(self._http.get("/metrics").text)

    def etcd_bytes(self) -> int:
        """Return the bytes that etcd uses for its data."""
        import httpx2

        assert self._arguments is not None
        found = Scrape(httpx2.get(f"{self._arguments[1]}/metrics").text)
        return round(found.total("etcd_mvcc_db_total_size_in_use_in_bytes"))

    def slices(self, version: str = "") -> tuple[float, int, list[dict[str, Any]]]:
        """List all slices; return seconds, bytes of the response, and the slices. `version` "0": from the cache."""
        path = "/apis/resource.k8s.io/v1/resourceslices" + (f"?resourceVersion={version}" if version else "")
        began = time.monotonic()
        response = self._http.get(path)
        seconds = time.monotonic() - began
        items: list[dict[str, Any]] = response.json()["items"]
        return seconds, len(response.content), items

    def stop_server(self) -> None:
        """Stop the API server as the kubelet does, with SIGTERM and then SIGKILL."""
        process = self._processes.pop(API_SERVER)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_server(self) -> None:
        """Start the API server again, with the same address and certificate; returns when it is ready."""
        assert self._arguments is not None
        self._start_apiserver(*self._arguments)
        self._wait_ready()

    def _start_apiserver(self, binaries: Path, etcd: str) -> None:
        self._arguments = (binaries, etcd)
        super()._start_apiserver(binaries, etcd)

    def _allow(self, users: list[str]) -> None:
        import yaml

        group = "rbac.authorization.k8s.io"
        documents = list(yaml.safe_load_all(RBAC.read_text()))
        role = next(one for one in documents if one["kind"] == "ClusterRole")
        self.ask("POST", f"/apis/{group}/v1/clusterroles", {"metadata": {"name": "agent"}, "rules": role["rules"]})
        subjects = [{"apiGroup": group, "kind": "User", "name": user} for user in users]
        refers = {"apiGroup": group, "kind": "ClusterRole", "name": "agent"}
        body = {"metadata": {"name": "agents"}, "subjects": subjects, "roleRef": refers}
        self.ask("POST", f"/apis/{group}/v1/clusterrolebindings", body)

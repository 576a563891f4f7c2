"""kube-scheduler for `slices.py`: measures the allocation of one claim for each of many existing pods.

The scheduler is stopped (SIGSTOP) while nodes, claims and pods are created, so that their creation is not part of the
measurement. No kubelet runs: a bound pod does not change.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drivers_claims import GROUP, NAMESPACE, Claim
from drivers_plane import ADMIN, ControlPlane

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"{GROUP}/namespaces/{NAMESPACE}/resourceclaims"
BIND_TIMEOUT_S = 300.0
_ROOM = {"cpu": "64", "memory": "256Gi", "pods": "1000"}
READY = {"capacity": _ROOM, "allocatable": _ROOM, "conditions": [{"type": "Ready", "status": "True"}]}
"""The status of a node to which pods are scheduled; no kubelet sets it."""


@contextmanager
def scheduling(binaries: Path, plane: ControlPlane, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a scheduler with administrator permissions and no client-side limit on requests."""
    folder.mkdir()
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig(ADMIN)), "qps": 1000, "burst": 1000},
        "leaderElection": {"leaderElect": False},
    }
    (folder / "scheduler.json").write_text(json.dumps(config))
    with (folder / "log").open("wb") as log:
        command = [str(binaries / "kube-scheduler"), f"--config={folder / 'scheduler.json'}", "--secure-port=0"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(20)


def make_ready(plane: ControlPlane, node: str) -> None:
    """Set the status of a node so that pods are scheduled to it, because no kubelet does."""
    path = f"/api/v1/nodes/{node}"
    body = plane.ask("GET", path)
    body["spec"]["taints"] = []
    body = plane.ask("PUT", path, body)
    body["status"] = READY
    plane.ask("PUT", f"{path}/status", body)


def make_class(plane: ControlPlane, name: str, expression: str) -> None:
    """Create a DeviceClass with one CEL selector."""
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    plane.ask("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": name}, "spec": spec})


def make_pods(plane: ControlPlane, start: str, count: int, device_class: str, node: str = "") -> None:
    """Create pods with a claim for one device each; with `node`, only for that node."""
    exactly = {"deviceClassName": device_class}
    claim = {"devices": {"requests": [{"name": "device", "exactly": exactly}]}}
    for number in range(count):
        name = f"{start}-{number}"
        plane.ask("POST", CLAIMS, {"metadata": {"name": name}, "spec": claim})
        pod = {
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "device", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "device"}]}}],
        }
        plane.ask("POST", PODS, {"metadata": {"name": name}, "spec": pod})


def allocate(plane: ControlPlane, process: subprocess.Popen[bytes], count: int) -> float:
    """Resume the scheduler, wait until this number of pods is bound, and return the seconds."""
    began = time.monotonic()
    process.send_signal(signal.SIGCONT)
    while True:
        bound = sum("nodeName" in pod["spec"] for pod in plane.ask("GET", PODS)["items"])
        took = time.monotonic() - began
        if bound >= count:
            return took
        if took > BIND_TIMEOUT_S:
            raise RuntimeError(f"{bound} of {count} pods were bound within {BIND_TIMEOUT_S:.0f} s")
        time.sleep(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the scheduler."""
    process.send_signal(signal.SIGSTOP)


def allocated(plane: ControlPlane) -> dict[str, list[Claim]]:
    """Return the claims by the name of their allocated device."""
    found: dict[str, list[Claim]] = {}
    for item in plane.ask("GET", CLAIMS)["items"]:
        results: Sequence[dict[str, Any]] = item["status"]["allocation"]["devices"]["results"]
        meta = item["metadata"]
        for result in results:
            found.setdefault(result["device"], []).append(Claim(NAMESPACE, meta["name"], meta["uid"]))
    return found

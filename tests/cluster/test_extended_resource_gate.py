"""Extended resources of DeviceClasses where kube-scheduler, or the API server too, has their feature gate off.

In 1.37 the gate cannot be switched off (kube_features.go: LockToDefault), so these processes emulate Kubernetes 1.36.
The slices are written by hand, for a Node without a kubelet: no pod reaches it that such a kubelet would see.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.conftest import Explain
from cluster.kube.api import CLASSES, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.hand_written import ANYWHERE, node_with_devices
from cluster.kube.workload import Namespace, container, pod_spec

GATE = "DRAExtendedResource"
DRIVER = "plain.example.com"
NODE = "node-of-devices"
CLASS = "plain"
EXPLICIT, IMPLICIT = "vendor.example/gpu", f"deviceclass.resource.kubernetes.io/{CLASS}"
OFF = {"emulated-version": "1.36", "feature-gates": f"{GATE}=false"}

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", params=["everywhere", "scheduler"])
def session_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A control plane whose gate is off, or whose scheduler is older than the API server, with the gate off."""
    everywhere = {"kube-apiserver": OFF, "kube-controller-manager": OFF, "kube-scheduler": OFF}
    flags = everywhere if request.param == "everywhere" else {"kube-scheduler": OFF}
    with running(nodes=(), flags=flags) as cluster:
        yield cluster


@pytest.fixture
def devices(cluster: Cluster, namespace: Namespace) -> Iterator[None]:
    """A Node with two devices, and their class."""
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}], "extendedResourceName": EXPLICIT}
    cluster.api.create(CLASSES, {"metadata": {"name": CLASS}, "spec": spec})
    with node_with_devices(cluster, NODE, DRIVER, [{"name": "first"}, {"name": "second"}]):
        yield
    cluster.api.delete(CLASSES, CLASS)


def capacity(namespace: Namespace, agent_command: Command, directory: Path, resource: str) -> Object:
    """Return the answer of `dra-agent capacity` for a pod that requests one of the resource."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": namespace.name},
        "spec": pod_spec(containers=[container("main", resources={"limits": {resource: "1"}})], **ANYWHERE),
    }
    file = directory / "workload.json"
    file.write_text(json.dumps(pod))
    where = ("-n", namespace.name, "--kubeconfig", str(namespace.cluster.kubeconfig), "-o", "json")
    result = agent_command("capacity", "-f", str(file), *where, check=False)
    assert result.returncode in (0, 1) and result.stdout, result.stderr
    answer: Object = json.loads(result.stdout)
    return answer


def test_a_pod_waits_and_is_explained(
    cluster: Cluster,
    namespace: Namespace,
    devices: None,
    explain: Explain,
    agent_command: Command,
    tmp_path: Path,
) -> None:
    is_dropped = "extendedResourceName" not in cluster.api.get(CLASSES, CLASS)["spec"]
    assert is_dropped == bool(cluster.control_plane.flags.get("kube-apiserver"))
    for name, resource in (("explicit", EXPLICIT), ("implicit", IMPLICIT)):
        namespace.pod(name, containers=[container("main", resources={"limits": {resource: "1"}})], **ANYWHERE)
        namespace.wait_for_scheduling_failure(name, f"Insufficient {resource}")
        answer = explain(f"pod/{name}")
        counted = capacity(namespace, agent_command, tmp_path, resource)
        if resource == EXPLICIT and is_dropped:
            assert not answer["fits"] and "no DeviceClass provides it" in answer["summary"]
            assert not counted["fits"] and "no DeviceClass provides it" in counted["unlimited"]
            continue
        # The gate of a scheduler cannot be queried; its message about the pod shows it.
        assert answer["fits"] and any(GATE in note and f"class {CLASS}" in note for note in answer["notes"])
        assert counted["total"] == 2 and any(GATE in note for note in counted["notes"])

"""Overhead of CPU and huge pages (KEP-5517, alpha in Kubernetes 1.37): a real kube-scheduler counts it.

The slices are written by hand, for a Node without a kubelet. `test_alpha_gates_scheduled.py` has the memory that the
agent publishes, and a kubelet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.conftest import Explain
from cluster.kube.api import CLASSES, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.hand_written import ANYWHERE, node_with_devices
from cluster.kube.workload import Namespace, container, request
from dra_agent.explain.gates import OVERHEAD_NOTE

GATE = "DRANodeAllocatableResources"
DRIVER = "cards.example.com"
NODE = "node-of-cards"
CLASS = "card"
HUGE = "hugepages-2Mi"
ROOM = {"cpu": "4", HUGE: "64Mi"}


@pytest.fixture(scope="module", params=[True, False], ids=["on", "off"])
def session_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A control plane for each state of the gate, which is set when a process starts."""
    with running(nodes=(), gates={GATE: True} if request.param else {}) as cluster:
        yield cluster


@pytest.fixture
def has_gate(cluster: Cluster) -> bool:
    """Whether the gate is on."""
    return bool(cluster.control_plane.gates)


@pytest.fixture
def cards(cluster: Cluster, namespace: Namespace) -> Iterator[None]:
    """A Node with two devices: one costs CPU, the other huge pages."""
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    cluster.api.create(CLASSES, {"metadata": {"name": CLASS}, "spec": spec})
    amounts: dict[str, Object] = {
        "cpu": {"cpu": {"overhead": {"perPod": "1", "perContainer": "250m"}}},
        "huge": {HUGE: {"overhead": {"perPod": "16Mi", "perContainer": "8Mi"}}},
    }
    devices = [
        {"name": name, "attributes": {"name": {"string": name}}, "nodeAllocatableResources": amount}
        for name, amount in amounts.items()
    ]
    declared = [GATE] if cluster.control_plane.gates else []
    with node_with_devices(cluster, NODE, DRIVER, devices, room=ROOM, declared_features=declared):
        yield
    cluster.api.delete(CLASSES, CLASS)


def needing(name: str, **amounts: str) -> Object:
    """Return a container with these requests, and equal limits, that uses the claim."""
    created = container(name, "devices")
    created["resources"] |= {"requests": amounts, "limits": amounts}
    return created


def use(namespace: Namespace, name: str, device: str, *containers: Object) -> None:
    """Create a claim for this device, and a pod, both of this name."""
    namespace.claim(name, request("card", CLASS, f'device.attributes["{DRIVER}"].name == "{device}"'))
    namespace.pod(name, claim=name, containers=containers, **ANYWHERE)


def recorded(namespace: Namespace, pod: str) -> list[Any]:
    """Return the overhead that the scheduler has recorded, once the pod is bound."""
    namespace.api.wait(lambda: namespace.get_pod(pod)["spec"]["nodeName"] == NODE, f"the scheduler binds pod {pod}")
    found = namespace.get_pod(pod)["status"].get("nodeAllocatableResourceClaimStatuses") or []
    return [entry["overhead"] for entry in found]


@pytest.mark.parametrize(
    ("device", "resource", "fits", "too_much", "overhead"),
    [
        # 4 CPUs less 1 for the pod, and 250m for each of two containers.
        ("cpu", "cpu", ("2", "500m"), ("2", "501m"), {"name": "cpu", "perPod": "1", "perContainer": "250m"}),
        (
            "huge",
            HUGE,
            ("16Mi", "16Mi"),
            ("16Mi", "18Mi"),
            {"name": HUGE, "perPod": "16Mi", "perContainer": "8Mi"},
        ),
    ],
    ids=["cpu", "huge"],
)
def test_a_pod_that_fits_only_without_the_overhead_waits(
    namespace: Namespace,
    has_gate: bool,
    cards: None,
    explain: Explain,
    device: str,
    resource: str,
    fits: tuple[str, str],
    too_much: tuple[str, str],
    overhead: Object,
) -> None:
    def containers(amounts: tuple[str, str]) -> list[Object]:
        # A pod with huge pages has to request CPU or memory, too.
        other = {"memory": "16Mi"} if resource != "cpu" else {}
        return [needing(name, **{resource: amount}, **other) for name, amount in zip(("a", "b"), amounts, strict=True)]

    use(namespace, "large", device, *containers(too_much))
    if not has_gate:
        assert recorded(namespace, "large") == []
        return
    namespace.wait_for_scheduling_failure("large", f"Insufficient {resource}")
    answer = explain("pod/large")
    assert answer["fits"] and OVERHEAD_NOTE in answer["notes"], "the devices are free"
    assert f"Insufficient {resource}" in answer["pods"][0]["scheduler"]
    namespace.delete_pod("large", grace=0)
    use(namespace, "fits", device, *containers(fits))
    assert recorded(namespace, "fits") == [[overhead]]

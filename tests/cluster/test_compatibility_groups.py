"""Compatibility groups (KEP-5963, alpha in Kubernetes 1.37): `explain` and `capacity` do not evaluate such a pool.

The agent publishes no groups: these slices are written by hand, for a Node without a kubelet. The scenario runs on a
control plane with the gate on, and on one with the default, where it is off.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import Explain
from cluster.kube.api import CLASSES, NODES, PODS, SLICES, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.hand_written import ANYWHERE, ROOM
from cluster.kube.workload import Namespace, pod_spec, request

GATE = "DRADeviceCompatibilityGroups"
CARDS = "cards.example.com"
NODE = "node-of-cards"
NO_DEVICES = "cannot allocate all claims"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", params=[True, False], ids=["on", "off"])
def session_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A control plane for each state of the gate, which is set when a process starts."""
    with running(nodes=(), gates={GATE: True} if request.param else {}) as cluster:
        yield cluster


@pytest.fixture
def has_gate(cluster: Cluster) -> bool:
    """Whether the gate is on."""
    return bool(cluster.control_plane.gates)


def card_device(name: str, *groups: str) -> Object:
    """Return a device that uses one slot of the card, with its groups."""
    consumption: Object = {"counterSet": "card", "counters": {"slots": {"value": "1"}}}
    if groups:
        consumption["compatibilityGroups"] = list(groups)
    return {"name": name, "attributes": {"name": {"string": name}}, "consumesCounters": [consumption]}


@pytest.fixture
def card(cluster: Cluster, namespace: Namespace) -> Iterator[None]:
    """A Node with a card, and a class for its devices."""
    sets = [{"name": "card", "counters": {"slots": {"value": "8"}}}]
    devices = [
        card_device("a", "mig"),
        card_device("b", "vgpu"),
        card_device("c", "mig", "vgpu"),
        card_device("d"),
        card_device("e", "mig"),
    ]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 2}
    slices = {"card-counters": {"sharedCounters": sets}, "card-devices": {"devices": devices}}
    api = cluster.api
    status = {"capacity": ROOM, "allocatable": ROOM, "conditions": [{"type": "Ready", "status": "True"}]}
    api.create(NODES, {"kind": "Node", "metadata": {"name": NODE}, "status": status})
    of_class = {"selectors": [{"cel": {"expression": f'device.driver == "{CARDS}"'}}]}
    api.create(CLASSES, {"kind": "DeviceClass", "metadata": {"name": "card"}, "spec": of_class})
    for name, content in slices.items():
        spec = {"driver": CARDS, "pool": pool, "nodeName": NODE, **content}
        api.create(SLICES, {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
    yield
    for pod in api.list(PODS, namespace.name):
        api.delete(PODS, pod["metadata"]["name"], namespace.name, grace=0)
    for name in slices:
        api.delete(SLICES, name)
    api.delete(CLASSES, "card")
    api.delete(NODES, NODE)


def predicted(
    cluster: Cluster,
    namespace: Namespace,
    agent_command: Command,
    directory: Path,
    device_class: str = "card",
    *selectors: str,
    **fields: Any,
) -> tuple[int, dict[str, Any]]:
    """Return how many pods with one device fit, and the whole answer of `dra-agent capacity`.

    `fields` are further fields of the request.
    """
    devices = {"requests": [request("device", device_class, *selectors, **fields)]}
    version, metadata = "resource.k8s.io/v1", {"name": "one", "namespace": namespace.name}
    template = {
        "apiVersion": version,
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": {"devices": devices}},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(template="one", **ANYWHERE)}
    file = directory / "workload.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [template, pod]}))
    where = ("-n", namespace.name, "--kubeconfig", str(cluster.kubeconfig), "-o", "json")
    result = agent_command("capacity", "-f", str(file), *where, check=False)
    assert result.returncode in (0, 1) and result.stdout, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer["total"], answer


def use(namespace: Namespace, name: str, *selectors: str) -> None:
    """Create a claim for one device, and its pod, both of this name."""
    namespace.claim(name, request("device", "card", *selectors))
    namespace.pod(name, claim=name, **ANYWHERE)


def device_of(namespace: Namespace, claim: str) -> str:
    """Return the device of a claim, once the scheduler has bound its pod."""
    api = namespace.api
    api.wait(lambda: namespace.get_pod(claim)["spec"]["nodeName"] == NODE, f"the scheduler binds pod {claim}")
    (result,) = namespace.results(claim)
    return str(result["device"])


def test_a_pool_with_groups_is_allocated_and_not_evaluated(
    cluster: Cluster,
    namespace: Namespace,
    has_gate: bool,
    card: None,
    explain: Explain,
    agent_command: Command,
    tmp_path: Path,
) -> None:
    stored = cluster.api.get(SLICES, "card-devices")["spec"]["devices"]
    assert ["compatibilityGroups" in one["consumesCounters"][0] for one in stored] == (
        [True, True, True, False, True] if has_gate else [False] * 5
    )
    total, answer = predicted(cluster, namespace, agent_command, tmp_path)
    if has_gate:
        assert (answer["fits"], total, answer["total_is_partial"]) == (None, 0, True)
        assert {cause for row in answer["nodes"] for cause in row["causes"]} == {"not_evaluated"}
    else:
        assert total == 5, answer
    for device in "ace" if has_gate else "abcde":
        use(namespace, f"user-{device}")
        assert device_of(namespace, f"user-{device}") == device
    use(namespace, "waiter")
    namespace.wait_for_scheduling_failure("waiter", NO_DEVICES)
    refusal = explain("claim/waiter")
    assert not refusal["fits"]
    assert (f"is not evaluated: it has compatibilityGroups ({GATE})" in refusal["summary"]) is has_gate
    assert refusal["unexamined"] == ([NODE] if has_gate else [])

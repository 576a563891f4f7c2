"""The claim for the extended resources of a pod."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cases import device, slice_of
from dra_cluster.explain.capacity import capacity, copy_of_pod
from dra_cluster.explain.claim_explanation import explain_pod
from dra_cluster.explain.extended_resources import claim_of_extended_resources, resources_of
from dra_cluster.explain.snapshot import Snapshot

Json = dict[str, Any]
GPU = "example.com/gpu"
CLASS: Json = {"metadata": {"name": "any"}, "spec": {"extendedResourceName": GPU}}


def container(amount: str | None = None, **fields: Any) -> Json:
    requests = {"cpu": "1"} if amount is None else {"cpu": "1", GPU: amount}
    return {"name": "c", "resources": {"requests": requests}, **fields}


def sidecar(amount: str) -> Json:
    return container(amount, restartPolicy="Always")


def pod(main: list[Json], init: list[Json] | None = None) -> Json:
    spec = {"containers": main, "initContainers": init or []}
    return {"metadata": {"name": "train", "namespace": "default"}, "spec": spec}


def slices(name: str, count: int) -> Json:
    return slice_of(*(device(f"d{number}") for number in range(count)), name=name, pool=name, nodeName=name)


def node(name: str, **allocatable: str) -> Json:
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "8", **allocatable}}}


def cluster(*nodes: Json, count: int) -> Snapshot:
    entries = [slices(one["metadata"]["name"], count) for one in nodes]
    return Snapshot("default", entries, [CLASS], templates=[], pods=[], nodes=list(nodes))


@pytest.mark.parametrize(
    ("init", "main", "requests", "of_pod"),
    [
        # An init container that ends uses the devices of containers that start later.
        (["1"], ["1"], {1: 1}, 1),
        (["3"], ["1", "1"], {0: 1, 1: 1, 2: 1}, 3),
        (["1", "4", "3"], ["1"], {1: 3, 3: 1}, 4),
        (["2"], [], {0: 2}, 2),
        # A sidecar keeps its devices: only init containers before it can use them.
        (["2", sidecar("1")], ["1"], {1: 1, 2: 1}, 2),
        ([sidecar("1"), "2"], ["1"], {0: 1, 1: 1, 2: 1}, 3),
        ([sidecar("1")], ["2"], {0: 1, 1: 2}, 3),
        ([], ["1", "2"], {0: 1, 1: 2}, 3),
        ([], ["1k"], {0: 1000}, 1000),
        ([], ["0"], {}, 0),
        ([], ["500m"], {}, 0),
    ],
)
def test_containers_share_devices_as_in_kube_scheduler(
    init: list[str | Json], main: list[str], requests: dict[int, int], of_pod: int
) -> None:
    asked = pod([container(one) for one in main], [container(one) if isinstance(one, str) else one for one in init])
    claim = claim_of_extended_resources(asked, "default", [CLASS])
    found = {} if claim is None else {one["name"]: one["exactly"] for one in claim["spec"]["devices"]["requests"]}
    assert {name: one["count"] for name, one in found.items()} == {
        f"container-{index}-request-1": count for index, count in requests.items()
    }
    assert resources_of(asked, [CLASS]) == ({GPU: of_pod} if of_pod else {})


def test_requests_are_in_the_order_of_their_names() -> None:
    claim = claim_of_extended_resources(pod([container("1") for _ in range(11)]), "default", [CLASS])
    assert claim is not None
    names = [one["name"] for one in claim["spec"]["devices"]["requests"]]
    assert names[:3] == ["container-0-request-1", "container-1-request-1", "container-10-request-1"]


def test_the_capacity_of_a_pod_with_an_init_container_is_that_of_its_longest_phase() -> None:
    asked = pod([container("1")], [container("1")])
    snapshot = cluster(node("n1"), count=4)
    assert capacity(snapshot, copy_of_pod(snapshot, asked))["total"] == 4


@pytest.mark.parametrize(
    ("reasons", "is_unused"),
    [
        (f"1 Insufficient {GPU}.", True),
        (f"1 Insufficient {GPU}, 2 Insufficient cpu.", True),
        (f"1 Insufficient {GPU}", True),
        # A resource with a longer name, and devices that are not free.
        (f"1 Insufficient {GPU}.other.", False),
        (f"1 Insufficient {GPU}-other.", False),
        ("1 cannot allocate all claims.", False),
        ("", False),
    ],
)
def test_a_class_that_kube_scheduler_does_not_use_is_noted(reasons: str, is_unused: bool) -> None:
    asked = pod([container("1")])
    message = f"0/1 nodes are available: {reasons}"
    asked["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    answer = explain_pod(cluster(node("n1"), count=1), asked)
    notes = [note for note in answer["notes"] if "DRAExtendedResource" in note]
    assert answer["fits"] and bool(notes) is is_unused
    assert all(f"class any, which provides {GPU}" in note for note in notes)
    # There, the device plugin has too little.
    served = explain_pod(cluster(node("n1"), node("n2", **{GPU: "1"}), count=1), asked)
    assert not [note for note in served["notes"] if "DRAExtendedResource" in note]


def test_capacity_states_the_gate_that_it_assumes() -> None:
    snapshot = cluster(node("n1"), count=4)
    assert any("DRAExtendedResource" in note for note in copy_of_pod(snapshot, pod([container("1")])).notes)
    assert not any("DRAExtendedResource" in note for note in copy_of_pod(snapshot, pod([container()])).notes)

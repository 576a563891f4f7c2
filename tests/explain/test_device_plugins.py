"""Nodes whose device plugin serves extended resources of a pod: it may run there without a claim."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import claim, device, make_request, slice_of
from dra_agent.cli.main import main
from dra_cluster.explain.capacity import capacity, copy_of_pod
from dra_cluster.explain.claim_explanation import explain_claim, explain_pod
from dra_cluster.explain.gang import gang_of_workload
from dra_cluster.explain.gang_explanation import explain_gang
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.explain.workloads import PodSet
from fake_apiserver.fake import FakeApi

Json = dict[str, Any]
GPU, NIC = "example.com/gpu", "example.com/nic"
CLASSES: list[Json] = [
    {"metadata": {"name": "any"}, "spec": {"extendedResourceName": GPU}},
    {"metadata": {"name": "nic"}, "spec": {"extendedResourceName": NIC}},
]


def pod(name: str = "train", *, namespace: str = "default", node: str | None = None, **amounts: str) -> Json:
    """Return a pod with extended resources, `gpu` and `nic`."""
    requests = {f"example.com/{key}": value for key, value in amounts.items()}
    spec: Json = {"containers": [{"name": "c", "resources": {"requests": requests, "limits": requests}}]}
    if node is not None:
        spec["nodeName"] = node
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": {"phase": "Pending"}}


def node(name: str, **allocatable: str) -> Json:
    amounts = {f"example.com/{key}": value for key, value in allocatable.items()}
    return {"metadata": {"name": name}, "spec": {}, "status": {"allocatable": {"cpu": "8", **amounts}}}


def published(name: str, count: int) -> Json:
    return slice_of(*(device(f"d{number}") for number in range(count)), name=name, pool=name, nodeName=name)


def cluster(nodes: Sequence[Json], slices: Sequence[Json] = (), placed: Sequence[Json] | None = ()) -> Snapshot:
    return Snapshot(
        "default",
        list(slices),
        CLASSES,
        templates=[],
        pods=[],
        placed_pods=None if placed is None else list(placed),
        nodes=list(nodes),
    )


def devices_of(answer: Json) -> dict[str, str]:
    return {entry["node"]: entry["devices"] for entry in answer["nodes"]}


def test_a_pod_fits_where_the_device_plugin_has_enough_left() -> None:
    nodes = [node("n1"), node("n2", gpu="4")]
    placed = [
        pod("one", namespace="other", node="n2", gpu="2"),
        # A pod that has ended uses nothing, and one on another node does not use this one.
        {**pod("ended", node="n2", gpu="2"), "status": {"phase": "Succeeded"}},
        pod("elsewhere", node="n1", gpu="2"),
    ]
    snapshot = cluster(nodes, [published("n1", 1)], placed)
    answer = explain_pod(snapshot, pod(gpu="2"))
    assert answer["fits"] and "node n2" in answer["summary"] and answer["unexamined"] == []
    assert devices_of(answer)["n2"] == f"fits: its device plugin serves {GPU}"
    assert not devices_of(answer)["n1"].startswith("fits")
    answer = explain_pod(snapshot, pod(gpu="3"))
    assert not answer["fits"]
    assert devices_of(answer)["n2"] == f"its device plugin serves {GPU}: 3 needed, 2 of 4 free"
    assert answer["notes"] == []


@pytest.mark.parametrize("slices", [[], None])
def test_a_device_plugin_needs_no_slices(slices: list[Json] | None) -> None:
    snapshot = cluster([node("n1"), node("n2", gpu="1")])
    snapshot.slices = slices
    assert explain_pod(snapshot, pod(gpu="1"))["fits"]
    answer = explain_pod(snapshot, pod(gpu="2"))
    assert not answer["fits"]
    if slices is None:
        assert answer["unexamined"] == ["n1"]
        assert devices_of(answer)["n1"] == "not evaluated: ResourceSlices are not known"
    else:
        assert answer["unexamined"] == []


def test_a_pod_that_may_not_be_on_the_node_does_not_fit() -> None:
    plugged = {**node("n1", gpu="4"), "spec": {"unschedulable": True}}
    answer = explain_pod(cluster([plugged]), pod(gpu="1"))
    assert not answer["fits"] and "the node is cordoned" in answer["summary"]


def test_free_devices_are_not_guessed_without_the_pods_of_the_node() -> None:
    snapshot = cluster([node("n1"), node("n2", gpu="4")], [published("n1", 1)], placed=None)
    answer = explain_pod(snapshot, pod(gpu="2"))
    unknown = f"its device plugin serves {GPU}, and the pods of the node are not known"
    assert (answer["fits"], answer["unexamined"]) == (False, ["n2"])
    assert devices_of(answer)["n2"] == f"not evaluated: {unknown}"
    assert answer["summary"].endswith("1 node is not evaluated")
    assert explain_pod(snapshot, pod(gpu="1"))["fits"], "on the other node"
    found = capacity(snapshot, copy_of_pod(snapshot, pod(gpu="1")))
    rows = {row["node"]: row for row in found["nodes"]}
    assert (found["total"], found["total_is_partial"], rows["n1"]["copies"]) == (1, True, 1)
    assert (rows["n2"]["causes"], rows["n2"]["reason"]) == (["device_plugin"], f"not counted: {unknown}")


@pytest.mark.parametrize(("gpu", "nic", "fits"), [("1", "2", True), ("1", "3", False), ("5", "1", False)])
def test_the_claim_has_what_the_device_plugin_does_not_serve(gpu: str, nic: str, *, fits: bool) -> None:
    """The plugin of the node serves the GPUs, and devices of a driver are the NICs."""
    snapshot = cluster([node("n1", gpu="4")], [published("n1", 2)])
    answer = explain_pod(snapshot, pod(gpu=gpu, nic=nic))
    assert answer["fits"] is fits
    if gpu == "1":
        (explained,) = answer["nodes"][0]["explanation"]["claims"]
        assert [request["needed"] for request in explained["requests"]] == [int(nic)]
    copies = capacity(snapshot, copy_of_pod(snapshot, pod(gpu=gpu, nic=nic)))
    assert copies["total"] == int(fits)


def test_other_claims_of_the_pod_are_still_needed() -> None:
    own = claim(make_request(count=2), name="own")
    asked = pod(gpu="1")
    asked["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimName": "own"}]
    snapshot = cluster([node("n1", gpu="1"), node("n2", gpu="1")], [published("n1", 1), published("n2", 2)])
    snapshot.claims, snapshot.pods = [own], [asked]
    for answer in (explain_pod(snapshot, asked), explain_claim(snapshot, own)):
        assert answer["fits"] and devices_of(answer)["n2"] == "fits"
        assert not devices_of(answer)["n1"].startswith("fits")
    snapshot.placed_pods = [pod("one", node="n2", gpu="1")]
    for answer in (explain_pod(snapshot, asked), explain_claim(snapshot, own)):
        assert not answer["fits"]
        assert devices_of(answer)["n2"] == f"its device plugin serves {GPU}: 1 needed, 0 of 1 free"


def test_copies_are_those_of_device_plugins_and_of_claims() -> None:
    nodes = [node("n1"), node("n2", gpu="7"), node("n3", gpu="1"), node("n4", gpu="0")]
    slices = [published("n1", 4), published("n2", 9), published("n4", 2)]
    snapshot = cluster(nodes, slices, [pod("one", node="n2", gpu="1")])
    found = capacity(snapshot, copy_of_pod(snapshot, pod(gpu="2")))
    rows = {row["node"]: row for row in found["nodes"]}
    assert {name: row["copies"] for name, row in rows.items()} == {"n1": 2, "n2": 3, "n3": 0, "n4": 1}
    assert (found["total"], found["total_is_partial"], found["largest_on_one_node"]) == (6, False, 3)
    assert (rows["n2"]["causes"], rows["n2"]["at_limit"]) == (["device_plugin"], False)
    assert rows["n2"]["reason"] == f"its device plugin serves {GPU}, and has enough for 3 more"
    assert rows["n3"]["reason"] == f"its device plugin serves {GPU}: 2 needed, 1 of 1 free"
    found = capacity(snapshot, copy_of_pod(snapshot, pod(gpu="2")), limit=2)
    rows = {row["node"]: row for row in found["nodes"]}
    assert (rows["n2"]["copies"], rows["n2"]["at_limit"], found["total_is_partial"]) == (2, True, True)


def test_a_copy_of_a_pod_with_a_claim_may_be_on_a_device_plugins_node() -> None:
    """kube-scheduler created a claim for the pod that runs; a further pod needs none on the other node."""
    running = pod(node="n1", gpu="1")
    running["status"] = {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "train-x"}}
    snapshot = cluster([node("n1"), node("n2", gpu="2")], [published("n1", 1)], [running])
    snapshot.claims = [claim(make_request(), name="train-x")]
    assert capacity(snapshot, copy_of_pod(snapshot, running))["total"] == 3


def test_an_implicit_resource_is_not_that_of_the_device_plugin() -> None:
    implicit = "deviceclass.resource.kubernetes.io/any"
    asked = pod()
    asked["spec"]["containers"][0]["resources"]["requests"] = {implicit: "1"}
    snapshot = cluster([node("n1", gpu="4")], [published("n1", 2)], placed=None)
    found = capacity(snapshot, copy_of_pod(snapshot, asked))
    assert (found["total"], found["total_is_partial"]) == (2, False)


def test_a_pod_that_a_device_plugin_serves_needs_no_claim() -> None:
    running = pod(node="n2", gpu="1")
    snapshot = cluster([node("n1"), node("n2", gpu="4")], [published("n1", 2)], [running])
    answer = explain_pod(snapshot, running)
    assert answer["fits"] and answer["claims"] == [] and "uses no claim" in answer["summary"]
    assert capacity(snapshot, copy_of_pod(snapshot, running))["total"] == 5


def test_a_resource_without_a_class_is_served_by_device_plugins_only() -> None:
    snapshot = cluster([node("n1"), node("n2", gpu="2")], [published("n1", 4)], [pod("one", node="n2", gpu="1")])
    snapshot.classes = []
    answer = explain_pod(snapshot, pod(gpu="1"))
    assert answer["fits"] and f"device plugins have enough of {GPU} on node n2" in answer["summary"]
    answer = explain_pod(snapshot, pod(gpu="2"))
    assert not answer["fits"]
    assert f"n2: its device plugin serves {GPU}: 2 needed, 1 of 2 free" in answer["summary"]
    obstacles = {entry["node"]: entry["obstacles"] for entry in answer["nodes"]}
    assert obstacles["n1"] == [f"no device plugin serves {GPU} on it, and no DeviceClass provides it"]
    snapshot.placed_pods = None
    answer = explain_pod(snapshot, pod(gpu="1"))
    assert (answer["fits"], answer["unexamined"]) == (False, ["n2"])
    assert answer["summary"].endswith("1 node is not evaluated")
    # What classes provide is not known, or the pod requests nothing like it.
    snapshot.classes = None
    assert "devices are not the reason" in explain_pod(snapshot, pod(gpu="1"))["summary"]
    assert "devices are not the reason" in explain_pod(cluster([node("n1")]), pod())["summary"]
    unlimited = copy_of_pod(cluster([node("n1")]), pod(fpga="1")).unlimited
    assert unlimited is not None and unlimited.endswith("example.com/fpga: not counted, as no DeviceClass provides it")


@pytest.mark.parametrize("placed", [(), None])
def test_a_pod_with_a_claim_needs_the_resources_without_a_class_too(placed: tuple[Json, ...] | None) -> None:
    asked = pod(fpga="2")
    asked["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimName": "own"}]
    nodes = [node("n1"), node("n2", fpga="2"), node("n3", fpga="1")]
    snapshot = cluster(nodes, [published(one["metadata"]["name"], 1) for one in nodes], placed)
    snapshot.claims, snapshot.pods = [claim(make_request(), name="own")], [asked]
    answer = explain_pod(snapshot, asked)
    obstacles = {entry["node"]: entry["obstacles"] for entry in answer["nodes"]}
    assert answer["fits"] and obstacles["n1"] and not obstacles["n2"]
    lacking = ["its device plugin serves example.com/fpga: 2 needed, 1 of 1 free"]
    assert obstacles["n3"] == (lacking if placed is not None else []), "only what is known is an obstacle"
    note = "not considered: example.com/fpga, which no DeviceClass provides"
    assert note in capacity(snapshot, copy_of_pod(snapshot, asked))["notes"]


def explained_gang(snapshot: Snapshot, **counts: tuple[Json, int]) -> Json:
    """Explain a gang with these numbers of pods, by the names of its pod sets."""
    sets = [PodSet(name, asked, number) for name, (asked, number) in counts.items()]
    return explain_gang(snapshot, gang_of_workload(snapshot, "Job default/train", "train", sets), deadline=600)


def test_a_gang_uses_what_device_plugins_have_left() -> None:
    snapshot = cluster([node("n1"), node("n2", gpu="4")], [published("n1", 2)], [pod("one", node="n2", gpu="1")])
    answer = explained_gang(snapshot, ring=(pod(gpu="1"), 5))
    assert answer["fits"] and answer["kinds"][0]["nodes"] == {"n1": 2, "n2": 3}
    assert sorted(len(one["devices"]) for one in answer["placements"]) == [0, 0, 0, 1, 1]
    answer = explained_gang(snapshot, ring=(pod(gpu="1"), 6))
    assert not answer["fits"] and answer["placed"] == 5
    assert answer["search"]["impossible"] is None and answer["search"]["complete"]
    snapshot.slices, snapshot.nodes = [], [node("n2", gpu="4")]
    failure = explained_gang(snapshot, ring=(pod(gpu="2"), 2))["failure"]
    assert failure["reason"] == f"its device plugin serves {GPU}: 2 needed, 1 of 4 free"


def test_another_order_leaves_a_device_plugin_to_the_pods_that_need_it() -> None:
    snapshot = cluster([node("n1", gpu="4"), node("n2")], [published("n2", 1)])
    answer = explained_gang(snapshot, coordinator=(pod(gpu="1"), 1), workers=(pod(gpu="4"), 1))
    assert not answer["fits"] and answer["failure"]["kind"] == "workers"
    assert answer["search"]["found"] and answer["search"]["differs"] == ["order"]
    assert [kind["nodes"] for kind in answer["search"]["kinds"]] == [{"n2": 1}, {"n1": 1}]


def test_members_of_a_gang_need_claims_for_what_the_device_plugin_does_not_serve() -> None:
    snapshot = cluster([node("n1", gpu="8")], [published("n1", 3)])
    answer = explained_gang(snapshot, ring=(pod(gpu="1", nic="1"), 4))
    assert (answer["fits"], answer["placed"]) == (False, 3)
    requests = [device["request"] for one in answer["placements"] for device in one["devices"]]
    assert requests == ["container-0-request-1"] * 3
    (explained,) = answer["failure"]["explanation"]["claims"]
    assert [request["request"] for request in explained["requests"]] == ["container-0-request-1"]


def test_a_gang_is_not_placed_where_the_pods_of_the_node_are_not_known() -> None:
    snapshot = cluster([node("n1"), node("n2", gpu="4")], [published("n1", 2)], placed=None)
    assert explained_gang(snapshot, ring=(pod(gpu="1"), 2))["kinds"][0]["nodes"] == {"n1": 2}
    answer = explained_gang(snapshot, ring=(pod(gpu="1"), 3))
    note = f"node n2: not evaluated: its device plugin serves {GPU}, and the pods of the node are not known"
    assert not answer["fits"] and answer["search"] is None and note in answer["notes"]


@pytest.mark.parametrize("seed", range(12))
def test_what_a_device_plugin_has_left_counts_as_many_free_devices(seed: int) -> None:
    """A node with as many devices of a driver has the same pods, whether they come alone, in a gang or as copies."""
    choose = random.Random(seed)
    free = {f"n{number}": choose.randint(1, 4) for number in range(3)}
    used = {name: choose.randint(0, 2) for name in free}
    with_plugins = cluster(
        [node(name, gpu=str(count + used[name])) for name, count in free.items()],
        [],
        [pod(f"on-{name}", node=name, gpu=str(count)) for name, count in used.items() if count],
    )
    with_claims = cluster([node(name) for name in free], [published(name, count) for name, count in free.items()])
    small, large = pod(gpu=str(choose.randint(1, 2))), pod(gpu=str(choose.randint(2, 4)))
    counts = choose.randint(1, 3), choose.randint(1, 2)

    def outcome(snapshot: Snapshot) -> Json:
        gang = explained_gang(snapshot, small=(small, counts[0]), large=(large, counts[1]))
        is_found = bool((gang["search"] or {}).get("found"))
        found = capacity(snapshot, copy_of_pod(snapshot, small))
        return {
            "pod": {entry["node"]: entry["fits"] for entry in explain_pod(snapshot, large)["nodes"]},
            "gang": (gang["fits"], [kind["nodes"] for kind in gang["kinds"]], is_found),
            "copies": (found["total"], {row["node"]: row["copies"] for row in found["nodes"]}),
        }

    assert outcome(with_plugins) == outcome(with_claims)


@pytest.fixture
def mixed_cluster(fake_api: FakeApi) -> FakeApi:
    """A node whose device plugin has one device left, and a pod that waits for two."""
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    for entry in CLASSES:
        fake_api.put("deviceclasses", entry)
    for entry in (node("n1"), node("n2", gpu="2")):
        fake_api.put("nodes", entry)
    fake_api.put("resourceslices", published("n1", 1))
    fake_api.put("pods", pod("one", namespace="other", node="n2", gpu="1"))
    fake_api.put("pods", pod(gpu="2"))
    return fake_api


def test_pods_of_all_namespaces_are_read_from_the_cluster(
    mixed_cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = str(mixed_cluster.kubeconfig(tmp_path / "kubeconfig"))

    def explained() -> Json:
        assert main(["explain", "pod/train", "-n", "default", "--kubeconfig", kubeconfig, "-o", "json"]) == 1
        answer: Json = json.loads(capsys.readouterr().out)
        return answer

    lacking = f"its device plugin serves {GPU}: 2 needed, 1 of 2 free"
    assert devices_of(explained())["n2"] == lacking
    for entry in CLASSES:
        mixed_cluster.remove("deviceclasses", entry["metadata"]["name"])
    obstacles = {entry["node"]: entry["obstacles"] for entry in explained()["nodes"]}
    assert obstacles["n2"] == [lacking], "without a class, too"
    for entry in CLASSES:
        mixed_cluster.put("deviceclasses", entry)
    mixed_cluster.fail(403, methods="GET", path="/api/v1/pods?", times=None)
    assert main(["capacity", "-f", str(_written(tmp_path, pod(gpu="1"))), "--kubeconfig", kubeconfig]) == 0
    printed = capsys.readouterr().out
    assert "at least 1 more fits" in printed
    assert f"what device plugins have left of {GPU} is not known" in printed


def test_pods_of_all_namespaces_are_read_for_a_workload_without_pods(
    mixed_cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = {"name": "ring", "namespace": "default"}
    mixed_cluster.remove("pods", "train", "default")
    mixed_cluster.put("jobs", {"metadata": metadata, "spec": {"parallelism": 3, "template": pod(gpu="1")}})
    kubeconfig = str(mixed_cluster.kubeconfig(tmp_path / "kubeconfig"))
    assert main(["explain", "job/ring", "-n", "default", "--kubeconfig", kubeconfig, "-o", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["kinds"][0]["nodes"] == {"n1": 1, "n2": 1}


def test_pods_of_all_namespaces_are_read_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = [
        *({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **entry} for entry in CLASSES),
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **published("n1", 1)},
        *({"apiVersion": "v1", "kind": "Node", **entry} for entry in (node("n1"), node("n2", gpu="2"))),
        {"apiVersion": "v1", "kind": "Pod", **pod("one", namespace="other", node="n2", gpu="1")},
    ]
    dump = tmp_path / "cluster.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": listed}))
    asked = str(_written(tmp_path, pod(gpu="1")))
    assert main(["capacity", "-f", asked, "--from", str(dump)]) == 0
    printed = capsys.readouterr().out
    assert "2 more fit on 2 of 2 nodes" in printed
    assert "what device plugins have left is computed from the pods of the files" in printed


def _written(folder: Path, value: Json) -> Path:
    path = folder / "asked.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **value}))
    return path

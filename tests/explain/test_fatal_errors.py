"""An error of kube-scheduler's allocator on one node keeps a pod from all nodes: `explain` and `capacity` say so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import DRIVER, claim, device, make_exact, make_request, slice_of
from dra_agent.cli.main import main
from dra_cluster.explain.fatal_error import examines_all
from fake_apiserver.fake import FakeApi

Json = dict[str, Any]
Answer = Callable[..., Json]
API = "resource.k8s.io/v1"
CLASS: Json = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
BIG = f'device.attributes["{DRIVER}"].size >= 40'
ALL = make_request("gpus", allocationMode="All", count=0)


def node(name: str, **spec: Any) -> Json:
    labels = {"kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}


def published(name: str, *devices: Json, driver: str = DRIVER, **spec: Any) -> Json:
    entry = slice_of(*devices, name=f"{name}-{driver}", pool=name, **{"nodeName": name, **spec})
    entry["spec"]["driver"] = driver
    return {"apiVersion": API, "kind": "ResourceSlice", **entry}


def gpu(size: int | None = 80, **fields: Any) -> Json:
    return device("gpu-0", None if size is None else {"size": size}, **fields)


def incomplete(driver: str = DRIVER) -> Json:
    return published("n1", gpu(), driver=driver, count=2)


def template(*requests: Json) -> Json:
    metadata = {"name": "t", "namespace": "default"}
    spec = {"spec": claim(*requests)["spec"]}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def pod(**spec: Any) -> Json:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    metadata = {"name": "train", "namespace": "default"}
    body = {"containers": [{"name": "c"}], "resourceClaims": claims, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def job(count: int) -> Json:
    spec = {"parallelism": count, "template": {"spec": pod()["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answer:
    """Run a command on objects of the user and of a cluster; return the JSON, whose summary is in the text too."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, users: list[Json], cluster: list[Json], *arguments: str) -> Json:
        for path, objects in (("users.json", users), ("cluster.json", cluster)):
            Path(path).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        command = [name, "-f", "users.json", "--from", "cluster.json", "--timeout", "600", *arguments]
        code = main([*command, "-o", "json"])
        found: Json = json.loads(capsys.readouterr().out)
        assert (code == 0) == found["fits"]
        assert main(command) == code
        text = capsys.readouterr().out
        problems = found.get("problems")
        assert (problems[0] if problems else found.get("summary", "")) in text
        return found

    return run


NODES = [node("n1"), node("n2")]
CLUSTER = [CLASS, *NODES, published("n2", gpu())]
TWO_TERMS = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}]}
        for name in ("n1", "other")
    ]
}
EXACT = make_request(expression=BIG)
CASES: dict[str, tuple[Json, list[Json], str]] = {
    "all devices of an incomplete pool": (ALL, [incomplete()], "is incomplete: 1 of 2"),
    "all devices with an incomplete pool of another driver": (
        ALL,
        [published("n1", gpu()), incomplete("nic.example.com")],
        "nic.example.com/n1 is incomplete",
    ),
    "all devices of an invalid pool": (ALL, [published("n1", gpu(), gpu())], "two devices are named gpu-0"),
    "all devices as one alternative": (
        {
            "name": "gpus",
            "firstAvailable": [
                {"name": "one", "deviceClassName": "any"},
                {"name": "all", "deviceClassName": "any", "allocationMode": "All"},
            ],
        },
        [incomplete()],
        "is incomplete",
    ),
    "a selector of the claim": (EXACT, [published("n1", gpu(None))], 'no such key "size"'),
    "a selector of the class": (
        {"name": "main", "exactly": {**make_exact(), "deviceClassName": "big"}},
        [
            published("n1", gpu(None)),
            {**CLASS, "metadata": {"name": "big"}, "spec": {"selectors": [{"cel": {"expression": BIG}}]}},
        ],
        "class big",
    ),
    "more than 32 devices": (ALL, [published("n1", *(device(f"d{i}") for i in range(33)))], "32"),
    "a device whose node selector has two terms": (
        EXACT,
        [
            published("n1", gpu(nodeSelector=TWO_TERMS), perDeviceNodeSelection=True, nodeName=""),
        ],
        "terms",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_error_on_one_node_keeps_the_pod_from_all(answer: Answer, name: str) -> None:
    request, more, error = CASES[name]
    cluster = [*CLUSTER, *more]
    found = answer("explain", [template(request), pod()], cluster)
    assert not found["fits"] and found["summary"].startswith("fits nowhere; node n1: an error")
    assert error in found["summary"] and "kube-scheduler 1.37" in found["summary"]
    assert "without the error its devices are free on node n2" in found["summary"]
    assert found["fatal"]["node"] == "n1" and error in found["fatal"]["error"]
    assert found["scheduler_version"] == "1.37"
    counted = answer("capacity", [template(request), pod()], cluster)
    assert counted["total"] == 0 and error in counted["problems"][0] and not counted["total_is_partial"]
    assert [row["copies"] for row in counted["nodes"]] == [0, 0]
    gang = answer("explain", [template(request), job(1)], cluster)
    assert not gang["fits"] and gang["placed"] == 0 and error in gang["summary"]
    assert gang["fatal"]["node"] == "n1" and gang["search"] is None


@pytest.mark.parametrize("command", ["explain", "capacity"])
def test_one_node_of_the_query_does_not_hide_the_error_of_another(answer: Answer, command: str) -> None:
    found = answer(command, [template(EXACT), pod()], [*CLUSTER, published("n1", gpu(None))], "--node", "n2")
    assert not found["fits"] and found["fatal"]["node"] == "n1"
    assert [entry["node"] for entry in found["nodes"]] == ["n2"]


@pytest.mark.parametrize(
    ("nodes", "spec"),
    [
        ([node("n1", unschedulable=True)], {}),
        ([node("n1", taints=[{"key": "team", "effect": "NoSchedule"}])], {}),
        ([node("n1")], {"nodeSelector": {"kubernetes.io/hostname": "n2"}}),
    ],
)
def test_a_node_that_another_filter_excludes_has_no_effect(answer: Answer, nodes: list[Json], spec: Json) -> None:
    users = [template(EXACT), pod(**spec)]
    cluster = [CLASS, *nodes, node("n2"), published("n2", gpu()), published("n1", gpu(None))]
    assert answer("explain", users, cluster)["fatal"] is None
    assert answer("capacity", users, cluster)["total"] == 1
    assert answer("explain", [template(EXACT), pod(**spec)], cluster)["fits"]


def test_the_place_of_an_allocated_claim_does_not_exclude_a_node_from_the_error(answer: Answer) -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
    other = claim(make_request(), name="other")
    other["status"] = {
        "allocation": {
            "devices": {"results": [{"request": "main", "driver": "nic", "pool": "p", "device": "d"}]},
            "nodeSelector": {"nodeSelectorTerms": [term]},
        }
    }
    users = [template(EXACT), pod()]
    users[1]["spec"]["resourceClaims"].append({"name": "nic", "resourceClaimName": "other"})
    cluster = [*CLUSTER, {"apiVersion": API, "kind": "ResourceClaim", **other}, published("n1", gpu(None))]
    assert answer("explain", users, cluster)["fatal"]["node"] == "n1"


def test_an_invalid_pool_of_an_exact_request_concerns_its_node_only(answer: Answer) -> None:
    users, cluster = [template(EXACT), pod()], [*CLUSTER, published("n1", gpu(), gpu())]
    assert answer("explain", users, cluster)["fits"]
    assert answer("capacity", users, cluster)["total"] == 1
    assert answer("explain", users, cluster, "--scheduler-version", "1.34")["fatal"]["node"] == "n1"


def test_from_1_38_on_an_incomplete_pool_concerns_its_node_only(answer: Answer) -> None:
    users, cluster = [template(ALL), pod()], [*CLUSTER, incomplete()]
    found = answer("explain", users, cluster, "--scheduler-version", "v1.38.0")
    assert found["fits"] and found["fatal"] is None and found["scheduler_version"] == "1.38"
    assert "the error of node n1 excludes the node only, in kube-scheduler 1.38" in found["notes"]
    assert answer("capacity", users, cluster, "--scheduler-version", "1.38")["total"] == 1


@pytest.mark.parametrize("version", ["1.33", "2.37", "37", "latest"])
def test_another_scheduler_version_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str
) -> None:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(pod()))
    assert main(["explain", "-f", str(path), "--from", str(path), "--scheduler-version", version]) == 2
    assert f"--scheduler-version {version} is not a version from 1.34 on" in capsys.readouterr().err


def test_an_error_after_some_copies_makes_their_number_a_lower_bound(answer: Answer) -> None:
    mixed = published("n1", device("a", {"size": 80}), device("b"))
    found = answer("capacity", [template(EXACT), pod()], [*CLUSTER, mixed])
    assert found["total"] == 1 and found["total_is_partial"] and found["fits"]
    assert any("after 1 of them on one node: fits nowhere; node n1" in note for note in found["notes"])
    assert answer("explain", [template(EXACT), job(1)], [*CLUSTER, mixed])["fits"]
    gang = answer("explain", [template(EXACT), job(2)], [*CLUSTER, mixed])
    assert not gang["fits"] and gang["placed"] == 1 and "train-1 fits on none of 2 nodes" in gang["summary"]
    assert gang["fatal"]["node"] == "n1" and 'no such key "size"' in gang["failure"]["reason"]


def test_of_many_fitting_nodes_not_every_attempt_reaches_the_error(answer: Answer) -> None:
    names = [f"m{number:03}" for number in range(101)]
    fitting = [one for name in names for one in (node(name), published(name, gpu()))]
    found = answer("explain", [template(EXACT), pod()], [CLASS, node("n1"), published("n1", gpu(None)), *fitting])
    assert found["fits"] and "an attempt of kube-scheduler 1.37" in found["summary"]
    counted = answer("capacity", [template(EXACT), pod()], [CLASS, node("n1"), published("n1", gpu(None)), *fitting])
    assert counted["total"] == 101 and counted["fatal"]["node"] == "n1"
    assert examines_all(99, 99) and examines_all(5000, 500) and not examines_all(5000, 501)


@pytest.mark.parametrize(("minor", "fits"), [("37+", False), ("38", True)])
def test_the_version_of_the_server_decides(
    fake_api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], minor: str, fits: bool
) -> None:
    fake_api.version = {"major": "1", "minor": minor}
    plurals = {"Node": "nodes", "ResourceSlice": "resourceslices", "DeviceClass": "deviceclasses"}
    for value in [*CLUSTER, incomplete()]:
        fake_api.put(plurals[value["kind"]], value)
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    fake_api.put("resourceclaimtemplates", template(ALL))
    fake_api.put("pods", pod())
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")
    code = main(["explain", "pod", "train", "-n", "default", "--kubeconfig", str(path), "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert (code == 0) == found["fits"] == fits
    assert found["scheduler_version"] == f"1.{minor.removesuffix('+')}" and "assumed" not in found["summary"]


def test_a_server_without_a_version_is_noted(
    fake_api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_api.fail(403, path="/version", times=None)
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    fake_api.put("pods", pod())
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")
    main(["explain", "pod", "train", "-n", "default", "--kubeconfig", str(path), "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert any("the rules of kube-scheduler 1.37 are assumed" in note for note in found["notes"])

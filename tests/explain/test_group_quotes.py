"""`dra-agent explain` of pod groups about which alpha features decide: their conditions are quoted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cli.main import main
from explain.test_gang import CLASS, TEMPLATES, TIMEOUT, Run, explain, group, member, node, slices
from fake_apiserver.fake import FakeApi

__all__ = ["explain"]
Json = dict[str, Any]
CLUSTER = (node("n1"), node("n2"), slices("n1", "AA"), slices("n2", "AA"))
PODS = tuple(member(f"p{number}") for number in range(3))
TOPOLOGY = {"topology": [{"key": "rack"}]}
OF_TOPOLOGY = "TopologyAwareWorkloadScheduling: nodes with the same value of label rack"


def recorded(value: Json, kind: str, message: str) -> Json:
    entry = {"type": kind, "status": "False", "reason": "Unschedulable", "message": message}
    return {**value, "status": {"conditions": [entry]}}


def composite(name: str, **spec: Any) -> Json:
    head = {"apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "CompositePodGroup"}
    return {**head, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


WHOLE = recorded(composite("both"), "CompositePodGroupInitiallyScheduled", "1 of 2 groups fit")
PART = group(3, parentCompositePodGroupName="both")


def test_devices_of_a_group_with_a_topology_are_evaluated_and_the_rest_is_quoted(explain: Run) -> None:
    ring = recorded(group(3, schedulingConstraints=TOPOLOGY), "PodGroupInitiallyScheduled", "no rack has room")
    code, answer = explain([*CLUSTER, ring, *PODS], "podgroup/ring")
    assert code == 0 and answer["summary"] == "all 3 pods can be placed on 2 nodes"
    line = "PodGroup ring: PodGroupInitiallyScheduled is False (Unschedulable): no rack has room"
    assert f"\n{line}\nnot evaluated: {OF_TOPOLOGY}\n" in answer["text"]


def test_a_group_without_a_condition_says_so(explain: Run) -> None:
    _, answer = explain([*CLUSTER, group(3, schedulingConstraints=TOPOLOGY), *PODS], "podgroup/ring")
    assert "PodGroup ring: kube-scheduler has not written a condition yet" in answer["text"]
    assert explain([*CLUSTER, group(3), *PODS], "podgroup/ring")[1]["quotes"] == [], "nothing is left out"


def test_a_group_of_a_composite_group_is_evaluated_alone(explain: Run) -> None:
    code, answer = explain([*CLUSTER, WHOLE, PART, *PODS], "podgroup/ring")
    assert code == 0 and answer["placed"] == 3
    line = "CompositePodGroup both: CompositePodGroupInitiallyScheduled is False (Unschedulable): 1 of 2 groups fit"
    assert f"\n{line}\nnot evaluated: CompositePodGroup\n" in answer["text"]
    _, answer = explain([*CLUSTER, composite("other"), PART, *PODS], "podgroup/ring")
    assert "CompositePodGroup both: there is no such object" in answer["text"]
    _, answer = explain([*CLUSTER, PART, *PODS], "podgroup/ring")
    assert "CompositePodGroup both: composite pod groups of the namespace are not known" in answer["text"]


def test_a_pod_is_explained_with_the_quotes_of_its_groups(explain: Run, capsys: pytest.CaptureFixture[str]) -> None:
    explain([*CLUSTER, WHOLE, PART, *PODS], "podgroup/ring")
    assert main(["explain", "pod/p0", "--from", "cluster.json", *TIMEOUT]) == 0
    assert "\nnot evaluated: CompositePodGroup\n" in capsys.readouterr().out


def test_a_composite_group_is_quoted_with_its_parent(explain: Run) -> None:
    below = {**WHOLE, "spec": {"parentCompositePodGroupName": "top"}}
    part = recorded(PART, "PodGroupInitiallyScheduled", "no room")
    others = [{**part, "metadata": {**part["metadata"], "name": f"g{number:02}"}} for number in range(12)]
    cluster = [*CLUSTER, below, composite("top"), *others]
    code, answer = explain(cluster, "compositepodgroup/both")
    assert code == 1 and answer["summary"] == "is not evaluated as a whole (CompositePodGroup)"
    assert [one["name"] for one in answer["quotes"]] == ["both", "top", *(f"g{number:02}" for number in range(10))]
    assert "CompositePodGroup top: kube-scheduler has not written a condition yet" in answer["text"]
    assert answer["text"].count("not evaluated: CompositePodGroup") == 1
    assert "PodGroup g00: PodGroupInitiallyScheduled is False (Unschedulable): no room" in answer["text"]
    assert "2 more of its pod groups are not quoted" in answer["notes"]
    assert "`dra-agent explain podgroup/g00` evaluates the devices of pod group g00" in answer["notes"]


def test_a_composite_group_of_a_file_has_no_status_to_quote(explain: Run, capsys: pytest.CaptureFixture[str]) -> None:
    explain([*CLUSTER, PART, *PODS], "podgroup/ring")
    Path("asked.json").write_text(json.dumps(WHOLE))
    assert main(["explain", "-f", "asked.json", "--from", "cluster.json"]) == 2
    assert "a CompositePodGroup cannot be explained" in capsys.readouterr().err


@pytest.fixture
def cluster(fake_api: FakeApi) -> FakeApi:
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    for one in (CLASS, *CLUSTER, *TEMPLATES, PART, WHOLE, *PODS):
        fake_api.put(f"{one['kind'].lower()}{'es' if one['kind'].endswith('s') else 's'}", one)
    return fake_api


@pytest.mark.parametrize("name", ["compositepodgroup/both", "podgroup/ring", "pod/p0"])
def test_groups_of_a_cluster(cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = str(cluster.kubeconfig(tmp_path / "kubeconfig"))
    main(["explain", name, "--kubeconfig", path, "-o", "json", *TIMEOUT])
    quotes = {one["kind"]: (one["name"], one["missing"]) for one in json.loads(capsys.readouterr().out)["quotes"]}
    assert quotes == {
        "CompositePodGroup": ("both", None),
        "PodGroup": ("ring", "kube-scheduler has not written a condition yet"),
    }
    assert main(["explain", "compositepodgroup/absent", "--kubeconfig", path]) == 2
    assert "there is no compositepodgroup absent in namespace default" in capsys.readouterr().err
    assert not cluster.writes()


@pytest.mark.parametrize("status", [403, 404])
def test_composite_groups_that_cannot_be_read_are_not_called_absent(
    cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    path = str(cluster.kubeconfig(tmp_path / "kubeconfig"))
    cluster.fail(status, methods="GET", path="/default/compositepodgroups", times=None)
    assert main(["explain", "podgroup/ring", "--kubeconfig", path, *TIMEOUT]) == 0
    text = capsys.readouterr().out
    assert "CompositePodGroup both: composite pod groups of the namespace are not known" in text
    assert "note: cannot list compositepodgroups in namespace default: " in text
    assert main(["explain", "compositepodgroup/both", "--kubeconfig", path]) == (1 if status == 403 else 2)
    assert "there is no compositepodgroup both in namespace default" in capsys.readouterr().err

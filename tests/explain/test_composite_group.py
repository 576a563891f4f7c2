"""`dra-agent explain` of composite pod groups, and of pod groups that are part of one (KEP-6012)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deadlines import DeadlineClock, deadline_clock
from dra_agent.cli.main import main
from dra_agent.errors import UsageError
from dra_cluster.explain.composite_gang import gang_of_composite
from dra_cluster.explain.gang_explanation import explain_gang
from dra_cluster.explain.group_tree import MAX_GROUPS
from dra_cluster.explain.snapshot import Snapshot
from explain.test_gang import CLASS, TEMPLATES, TIMEOUT, Run, explain, job, node, nodes_of, slices
from fake_apiserver.fake import FakeApi

__all__ = ["deadline_clock", "explain"]
Json = dict[str, Any]
RACK = "rack"


def composite(name: str, minimum: int | None, parent: str = "", topology: str = "", **spec: Any) -> Json:
    policy: Json = {"basic": {}} if minimum is None else {"gang": {"minGroupCount": minimum}}
    body = {"schedulingPolicy": policy, "workloadRef": {"workloadName": "w", "templateName": name}, **spec}
    return group_object("scheduling.k8s.io/v1alpha3", "CompositePodGroup", name, body, parent, topology)


def group(name: str, minimum: int | None, parent: str = "", topology: str = "", **spec: Any) -> Json:
    policy: Json = {"basic": {}} if minimum is None else {"gang": {"minCount": minimum}}
    body = {"schedulingPolicy": policy, **spec}
    return group_object("scheduling.k8s.io/v1beta1", "PodGroup", name, body, parent, topology)


def group_object(version: str, kind: str, name: str, spec: Json, parent: str, topology: str) -> Json:
    if parent:
        spec["parentCompositePodGroupName"] = parent
    if topology:
        spec["schedulingConstraints"] = {"topology": [{"key": topology}]}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def members(group_name: str, number: int, template: str = "one", **spec: Any) -> list[Json]:
    entry = {"name": template, "resourceClaimTemplateName": template}
    body = {"containers": [{"name": "c"}], "schedulingGroup": {"podGroupName": group_name}, "resourceClaims": [entry]}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{group_name}-{one}", "namespace": "default", "uid": f"uid-{group_name}-{one}"},
            "spec": {**body, **spec},
            "status": {"phase": "Pending"},
        }
        for one in range(number)
    ]


def running(pod: Json, node_name: str) -> Json:
    return {**pod, "spec": {**pod["spec"], "nodeName": node_name, "resourceClaims": []}}


def rows(answer: Json) -> dict[str, tuple[int, int, int | None, bool | None]]:
    return {one["name"]: (one["minimum"], one["size"], one["reached"], one["fits"]) for one in answer["groups"]}


PAIR = [
    composite("both", 2),
    group("left", 2, "both"),
    group("right", 2, "both"),
    *members("left", 2),
    *members("right", 2),
]


def test_groups_that_fit_alone_and_not_together(explain: Run) -> None:
    code, answer = explain([slices("n1", "AA"), slices("n2", "A"), *PAIR], "compositepodgroup/both")
    assert code == 1 and answer["subject"] == "CompositePodGroup default/both"
    assert (answer["members"], answer["needed"], answer["placed"]) == (4, 4, 2)
    assert rows(answer) == {"both": (2, 2, 1, False), "left": (2, 2, 2, True), "right": (2, 2, 1, False)}
    assert answer["summary"].startswith(
        "2 of 4 pods can be placed on 2 nodes; composite pod group both needs 2 groups, and 1 of 2 fits; "
        "pod group right needs 2 pods, and 1 of 2 fits; right-1 fits on none of 2 nodes; n"
    )
    assert (answer["failure"]["member"], answer["failure"]["group"]) == ("right-1", "right")
    assert answer["failure"]["explanation"]["fits"] is False
    assert {one["member"] for one in answer["placements"]} == {"left-0", "left-1"}
    assert answer["search"]["impossible"] == "the pods need 4 devices of class any, and 3 are available to them"
    assert "both/right   2 of 2 pods     1" in answer["text"], answer["text"]


def test_groups_that_fit_together(explain: Run) -> None:
    for words in (("compositepodgroup/both",), ("compositepodgroups.scheduling.k8s.io", "both")):
        code, answer = explain([slices("n1", "AA"), slices("n2", "AA"), *PAIR], *words)
        assert code == 0 and answer["summary"] == "all 4 pods can be placed on 2 nodes"
        assert answer["failure"] is None and answer["search"] is None
        assert rows(answer) == {"both": (2, 2, 2, True), "left": (2, 2, 2, True), "right": (2, 2, 2, True)}
        assert sum(sum(nodes.values()) for nodes in nodes_of(answer).values()) == 4


@pytest.mark.parametrize("devices", [3, 4])
def test_a_pod_group_starts_with_the_whole(explain: Run, devices: int) -> None:
    code, answer = explain([slices("n1", "A" * devices), *PAIR], "podgroup/left")
    assert answer["subject"] == "PodGroup default/left"
    if devices == 4:
        assert code == 0 and answer["summary"].startswith("starts with composite pod group both: all 4 pods can be")
    else:
        assert code == 1 and answer["summary"].startswith("waits for composite pod group both: 2 of 4 pods can be")
        assert answer["failure"]["member"] == "right-1"


def test_a_composite_group_starts_without_a_group_that_it_does_not_need(explain: Run) -> None:
    cluster = [slices("n1", "AA"), composite("both", 1), *PAIR[1:]]
    code, answer = explain(cluster, "compositepodgroup/both")
    assert code == 0 and rows(answer) == {"both": (1, 2, 1, True), "left": (2, 2, 2, True), "right": (2, 2, 0, False)}
    assert "composite pod group both needs 1 group, and 1 of 2 fits; pod group right needs 2 pods" in answer["summary"]
    assert "composite pod group both starts with 1 of its 2 groups" in answer["notes"]
    assert explain(cluster, "podgroup/left")[0] == 0
    code, answer = explain(cluster, "podgroup/right")
    assert code == 1 and answer["summary"].startswith("composite pod group both starts without it: ")
    assert answer["search"] is None


def test_a_group_with_the_basic_policy_needs_one(explain: Run) -> None:
    cluster = [slices("n1", "A"), composite("both", None), group("left", None, "both"), *members("left", 3)]
    code, answer = explain(cluster, "compositepodgroup/both")
    assert code == 0 and rows(answer) == {"both": (1, 1, 1, True), "left": (1, 3, 1, True)}
    assert answer["failure"]["member"] == "left-1" and answer["needed"] == 1


def test_a_group_that_fails_releases_what_it_had(explain: Run) -> None:
    """The first group would get one of two devices; the second one needs both."""
    cluster = [slices("n1", "AA"), composite("any", 1), group("a", 3, "any"), group("b", 2, "any")]
    code, answer = explain([*cluster, *members("a", 3), *members("b", 2)], "compositepodgroup/any")
    assert code == 0 and rows(answer) == {"any": (1, 2, 1, True), "a": (3, 3, 2, False), "b": (2, 2, 2, True)}
    assert {one["member"] for one in answer["placements"]} == {"b-0", "b-1"}


def test_groups_are_placed_by_the_time_of_their_creation(explain: Run) -> None:
    late, early = group("a", 1, "both"), group("b", 1, "both")
    late["metadata"]["creationTimestamp"] = "2026-11-01T10:00:01Z"
    early["metadata"]["creationTimestamp"] = "2026-11-01T10:00:00Z"
    cluster = [slices("n1", "AB"), composite("both", 2), late, early, *members("a", 1, "only-a"), *members("b", 1)]
    code, answer = explain(cluster, "compositepodgroup/both")
    assert code == 1 and [one["name"] for one in answer["groups"]] == ["both", "b", "a"]
    assert answer["failure"]["member"] == "a-0"
    search = answer["search"]
    assert search["found"] and search["differs"] == ["order"]
    assert search["order"] == [{"kind": "a", "members": 1}, {"kind": "b", "members": 1}]
    assert "another order would place all of them: a (1), b (1)" in answer["text"]


def test_all_groups_are_on_nodes_with_one_value(explain: Run) -> None:
    cluster = [node("n1"), node("n2"), slices("n1", "AAA"), slices("n2", "AAAA")]
    groups = [composite("both", 2, topology=RACK), *PAIR[1:]]
    code, answer = explain([*cluster, *groups], "compositepodgroup/both")
    assert code == 0 and nodes_of(answer) == {"left": {"n2": 2}, "right": {"n2": 2}}
    assert answer["groups"][0]["value"] == "rack-2" and "rack=rack-2" in answer["text"]
    cluster[3]["spec"]["devices"].pop()
    code, answer = explain([*cluster, *groups], "compositepodgroup/both")
    assert code == 1
    assert "composite pod group both needs 2 groups on nodes with rack=rack-1, and 1 of 2 fits; " in answer["summary"]
    assert "of 2 values of label rack, this is the one with the most of composite pod group both: rack-1" in str(
        answer["notes"]
    )
    assert "needs 2 groups, and 2 of 2 fit" not in answer["summary"]
    code, _ = explain([*cluster, *PAIR], "compositepodgroup/both")
    assert code == 0, "without the constraint, six devices are enough"


def test_each_group_is_in_a_rack_within_the_zone_of_the_whole(explain: Run) -> None:
    """Zone z1 has a rack for each group; z2 has more devices, and no rack with two."""
    cluster = []
    for name, zone, rack, devices in (("n1", "z1", "a", 2), ("n2", "z1", "b", 2)):
        cluster += [labeled(name, zone, rack), slices(name, "A" * devices)]
    for number in range(5):
        cluster += [labeled(f"m{number}", "z2", f"r{number}"), slices(f"m{number}", "A")]
    groups = [composite("both", 2, topology="zone"), group("left", 2, "both", RACK), group("right", 2, "both", RACK)]
    pods = [*members("left", 2), *members("right", 2)]
    code, answer = explain([*cluster, *groups, *pods], "compositepodgroup/both")
    assert code == 0 and nodes_of(answer) == {"left": {"n1": 2}, "right": {"n2": 2}}
    assert {one["name"]: one["value"] for one in answer["groups"]} == {"both": "z1", "left": "a", "right": "b"}
    assert any("pod group left gets a; others have as many pods" in note for note in answer["notes"])
    code, answer = explain([*cluster[4:], *groups, *pods], "compositepodgroup/both")
    assert code == 1 and "; left-1 does not fit on nodes with rack=r0; m0: " in answer["summary"]
    groups[0] = composite("both", 2, topology="none")
    code, answer = explain([*cluster, *groups, *pods], "compositepodgroup/both")
    assert code == 1 and "the nodes have no value of label none that permits all its pods" in answer["summary"]


def labeled(name: str, zone: str, rack: str) -> Json:
    return {**node(name), "metadata": {"name": name, "labels": {"zone": zone, RACK: rack}}}


def test_the_value_with_the_most_pods_is_chosen(explain: Run) -> None:
    """Either rack permits the first group; in the second one it has more pods, and leaves none to the other group."""
    cluster = [node("n1"), node("n2"), slices("n1", "A"), slices("n2", "AA")]
    groups = [composite("both", 2), group("a", 1, "both", RACK), group("b", 2, "both", RACK)]
    code, answer = explain([*cluster, *groups, *members("a", 2), *members("b", 2)], "compositepodgroup/both")
    assert code == 1 and nodes_of(answer)["a"] == {"n2": 2} and answer["failure"]["member"] == "b-1"


def test_groups_of_groups(explain: Run) -> None:
    tree = [
        composite("top", 2),
        composite("x", 1, "top"),
        composite("y", 2, "top"),
        *(group(name, 1, name[0]) for name in ("x1", "x2", "y1", "y2")),
        *(pod for name in ("x1", "x2", "y1", "y2") for pod in members(name, 1)),
    ]
    code, answer = explain([slices("n1", "AAAA"), *tree], "compositepodgroup/top")
    assert code == 0 and answer["needed"] == 3
    assert [one["name"] for one in answer["groups"]] == ["top", "x", "x1", "x2", "y", "y1", "y2"]
    assert [one["level"] for one in answer["groups"]] == [0, 1, 2, 2, 1, 2, 2]
    # Both groups of x are placed although one is enough, and y then has too few.
    code, answer = explain([slices("n1", "AAA"), *tree], "compositepodgroup/top")
    assert (
        code == 1
        and "composite pod group top needs 2 groups, and 1 of 2 fits; composite pod group y needs 2 "
        in (answer["summary"])
    )
    assert answer["failure"]["member"] == "y2-0"
    assert answer["search"]["found"] and answer["search"]["differs"] == ["order"]
    code, answer = explain([slices("n1", "AAA"), *tree], "compositepodgroup/x")
    assert code == 1 and answer["summary"].startswith("waits for composite pod group top: ")


def test_groups_after_the_one_that_decides_are_not_evaluated(explain: Run) -> None:
    cluster = [slices("n1", "A"), composite("all", 3), *(group(name, 2, "all") for name in "abc")]
    code, answer = explain([*cluster, *(pod for name in "abc" for pod in members(name, 2))], "compositepodgroup/all")
    assert code == 1 and rows(answer)["b"] == (2, 2, None, None)
    assert "not evaluated: the groups before it decide" in answer["groups"][2]["reason"]


def test_a_claim_that_pods_of_two_groups_share(explain: Run) -> None:
    shared = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "common"}}
    shared["spec"] = TEMPLATES[0]["spec"]["spec"]
    entry = {"name": "common", "resourceClaimName": "common"}
    pods = [*members("left", 2, resourceClaims=[entry]), *members("right", 2, resourceClaims=[entry])]
    code, answer = explain([slices("n1", "A"), slices("n2", "A"), shared, *PAIR[:3], *pods], "compositepodgroup/both")
    assert code == 0 and len({one["node"] for one in answer["placements"]}) == 1
    assert {one["devices"][0]["device"] for one in answer["placements"]} == {"d0"}


def test_pods_that_have_a_node_are_counted(explain: Run) -> None:
    pods = [running(members("left", 1)[0], "n1"), *members("left", 2)[1:], *members("right", 2)]
    cluster = [node("n1"), node("n2"), slices("n1", "AAA"), slices("n2", "AAAA")]
    groups = [composite("both", 2, topology=RACK), *PAIR[1:3]]
    code, answer = explain([*cluster, *groups, *pods], "compositepodgroup/both")
    assert code == 0 and nodes_of(answer) == {"left": {"n1": 1}, "right": {"n1": 2}}, "the rack of the pod that runs"
    assert answer["summary"] == "all 3 waiting pods can be placed on 1 node; 1 has a node already"
    pods[2:] = [running(one, "n2") for one in members("right", 2)]
    code, answer = explain([*cluster, *groups, *pods], "compositepodgroup/both")
    assert code == 1 and "the nodes have no value of label rack that permits all its pods" in answer["summary"]
    pods[:2] = [running(one, "n1") for one in members("left", 2)]
    code, answer = explain([*cluster, *groups, *pods], "compositepodgroup/both")
    assert code == 0 and answer["summary"] == "no pod waits for a node; 4 have one"


def test_a_composite_group_waits_for_groups_and_pods(explain: Run) -> None:
    cluster = [slices("n1", "AAAA"), composite("both", 2), group("left", 2, "both"), *members("left", 2)]
    code, answer = explain(cluster, "compositepodgroup/both")
    assert code == 1 and answer["summary"] == "composite pod group both waits for 2 groups, and there is 1"
    cluster += [group("right", 2, "both"), *members("right", 1)]
    code, answer = explain(cluster, "compositepodgroup/both")
    assert code == 1 and answer["summary"] == (
        "composite pod group both waits for 2 groups, and 1 of 2 has enough pods; pod group right waits for 2 pods, "
        "and there is 1"
    )
    assert "pod group right waits for 2 pods" in answer["groups"][2]["reason"]
    code, answer = explain([slices("n1", "A"), composite("both", 1), group("left", 1, "both")], "podgroup/left")
    assert code == 1 and answer["summary"] == "no pod names one of its pod groups in spec.schedulingGroup"


def test_pods_with_another_priority_or_scheduler_prevent_the_start(explain: Run) -> None:
    others = [slices("n1", "AAAA"), composite("both", 2, priority=5), *PAIR[1:3], *members("left", 2, priority=5)]
    code, answer = explain([*others, *members("right", 2, priority=7)], "compositepodgroup/both")
    assert code == 1
    assert answer["summary"] == "all pods of composite pod group both need its priority 5, and pod right-0 has 7"
    code, answer = explain([*others, *members("right", 2, priorityClassName="high")], "compositepodgroup/both")
    assert code == 0, "the number of this class is not known"
    code, answer = explain([*others, *members("right", 2, priority=5, schedulerName="other")], "compositepodgroup/both")
    assert code == 1 and "need the same scheduler, and theirs are default-scheduler and other" in answer["summary"]


def test_parents_that_do_not_exist(explain: Run) -> None:
    cluster = [slices("n1", "AA"), composite("both", 1, "lost"), group("left", 2, "both"), *members("left", 2)]
    for name in ("compositepodgroup/both", "podgroup/left"):
        code, answer = explain(cluster, name)
        assert code == 1
        assert (
            answer["summary"] == "there is no composite pod group default/lost, which composite pod group both is "
            "part of"
        )
    code, answer = explain([slices("n1", "AA"), composite("other", 1), *cluster[2:]], "podgroup/left")
    assert code == 1
    assert answer["summary"] == "there is no composite pod group default/both, which pod group left is part of"


@pytest.mark.parametrize("length", [1, 2, 5])
def test_cycles(explain: Run, length: int) -> None:
    cycle = [composite(f"c{number}", 1, f"c{(number + 1) % length}") for number in range(length)]
    cluster = [slices("n1", "AA"), *cycle, group("left", 2, "c0"), *members("left", 2)]
    for name in ("compositepodgroup/c0", "podgroup/left"):
        code, answer = explain(cluster, name)
        assert code == 1 and answer["summary"].startswith("kube-scheduler schedules no pod of it: composite pod group")
        named = {1: "c0 is part of itself", 2: "c0, c1 are part of each other", 5: "c0, c1, c2 and 2 more are part of"}
        assert named[length] in answer["summary"]


def test_a_tree_with_too_many_levels(explain: Run) -> None:
    cluster = [slices("n1", "AA"), composite("c0", 1), composite("c1", 1, "c0"), composite("c2", 1, "c1")]
    four = [*cluster, group("left", 2, "c2"), *members("left", 2)]
    assert explain(four, "compositepodgroup/c0")[0] == 0
    five = [*cluster, composite("c3", 1, "c2"), group("left", 2, "c3"), *members("left", 2)]
    for name in ("compositepodgroup/c0", "podgroup/left"):
        code, answer = explain(five, name)
        assert code == 1 and "is not evaluated: composite pod group c0 has more than 4 levels" in answer["summary"]
    chain = [composite(f"c{number}", 1, f"c{number + 1}") for number in range(3000)]
    code, answer = explain(
        [*chain, composite("c3000", 1), group("left", 1, "c0"), *members("left", 1)], "podgroup/left"
    )
    assert code == 1 and "composite pod group c3000 has more than 4 levels" in answer["summary"]


def snapshot_of(groups: int, pods: int) -> tuple[Snapshot, Json]:
    root = composite("root", groups)
    names = [f"g{number:04}" for number in range(groups)]
    members_of = [pod for name in names for pod in members(name, pods)]
    devices = [slices("n1", "A")]
    classes = [{"metadata": {"name": "any"}, "spec": {}}]
    listed = [group(name, pods, "root") for name in names]
    return Snapshot("default", devices, classes, [], TEMPLATES, members_of, None, listed, [root]), root


def test_the_number_of_groups_and_pods_is_limited() -> None:
    snapshot, root = snapshot_of(MAX_GROUPS, 1)
    with pytest.raises(UsageError, match="has more than 1000 groups, which are not evaluated"):
        gang_of_composite(snapshot, "it", "CompositePodGroup", root)
    snapshot, root = snapshot_of(2, 5001)
    with pytest.raises(UsageError, match="it has 10002 pods, more than 10000 are not evaluated"):
        gang_of_composite(snapshot, "it", "CompositePodGroup", root)
    snapshot, root = snapshot_of(MAX_GROUPS - 1, 1)
    answer = explain_gang(snapshot, gang_of_composite(snapshot, "it", "CompositePodGroup", root), deadline=600)
    assert not answer["fits"] and answer["failure"]["member"] == "g0001-0" and len(answer["groups"]) == MAX_GROUPS


def test_groups_of_other_namespaces_are_left_out(explain: Run) -> None:
    other = group("right", 2, "both")
    other["metadata"]["namespace"] = "other"
    cluster = [slices("n1", "AAAA"), composite("both", 1), group("left", 2, "both"), other, *members("left", 2)]
    code, answer = explain(cluster, "compositepodgroup/both")
    assert code == 0 and [one["name"] for one in answer["groups"]] == ["both", "left"]


@pytest.mark.parametrize("minimum", [0, -1])
def test_a_minimum_below_one(explain: Run, minimum: int) -> None:
    code, answer = explain([slices("n1", "A"), composite("both", minimum), *PAIR[1:]], "compositepodgroup/both")
    assert code == 1 and answer["summary"].endswith(f"has minGroupCount {minimum}, and needs at least 1")


def test_what_is_not_known_is_not_evaluated(explain: Run) -> None:
    code, answer = explain([slices("n1", "AA"), composite("both", 1), *members("left", 1)], "compositepodgroup/both")
    assert code == 1 and answer["summary"] == "is not evaluated: podgroups of namespace default are not known"
    code, answer = explain([slices("n1", "AA"), group("left", 2, "both"), *members("left", 2)], "podgroup/left")
    assert code == 0 and any(
        "evaluates left only" in note or "this evaluates pod group left only" in note for note in answer["notes"]
    )


def test_a_file_with_the_groups_and_their_jobs(explain: Run) -> None:
    jobs = [job(name, 2, "one", schedulingGroup={"podGroupName": name}) for name in ("left", "right")]
    asked = [composite("both", 2), group("left", 2, "both"), group("right", 2, "both"), *jobs]
    code, answer = explain([slices("n1", "AAAA")], *asked)
    assert code == 0 and answer["subject"] == "CompositePodGroup default/both"
    assert [one["member"] for one in answer["placements"]] == ["left-0", "left-1", "right-0", "right-1"]
    code, answer = explain([slices("n1", "AAA")], *asked)
    assert code == 1 and answer["failure"]["member"] == "right-1"


@pytest.fixture
def cluster(fake_api: FakeApi) -> FakeApi:
    """A node with three devices, and two groups that need four."""
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    plurals = {"PodGroup": "podgroups", "CompositePodGroup": "compositepodgroups", "Pod": "pods"}
    for one in (CLASS, slices("n1", "AAA"), node("n1")):
        fake_api.put(f"{one['kind'].lower()}{'es' if one is CLASS else 's'}", one)
    for one in TEMPLATES:
        fake_api.put("resourceclaimtemplates", one)
    for one in PAIR:
        fake_api.put(plurals[one["kind"]], one)
    return fake_api


@pytest.mark.parametrize("name", ["compositepodgroup/both", "podgroup/left"])
def test_groups_of_a_cluster(cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = str(cluster.kubeconfig(tmp_path / "kubeconfig"))
    assert main(["explain", name, "--kubeconfig", path, "-o", "json", *TIMEOUT]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["failure"]["member"] == "right-1" and rows(answer)["both"] == (2, 2, 1, False)
    assert main(["explain", "compositepodgroup/absent", "--kubeconfig", path]) == 2
    assert "there is no compositepodgroup absent in namespace default" in capsys.readouterr().err
    assert {request.method for request in cluster.requests} == {"GET"}


@pytest.mark.parametrize("plural", ["podgroups", "pods"])
def test_parts_that_may_not_be_listed(
    cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], plural: str
) -> None:
    path = str(cluster.kubeconfig(tmp_path / "kubeconfig"))
    cluster.fail(403, methods="GET", path=f"/default/{plural}?", times=None)
    assert main(["explain", "compositepodgroup/both", "--kubeconfig", path, "-o", "json", *TIMEOUT]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["summary"] == f"is not evaluated: {plural} of namespace default are not known"
    assert any(f"cannot list {plural} in namespace default" in note for note in answer["notes"])


def test_composite_groups_that_may_not_be_listed(
    cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(cluster.kubeconfig(tmp_path / "kubeconfig"))
    cluster.fail(403, methods="GET", path="/default/compositepodgroups?", times=None)
    assert main(["explain", "podgroup/left", "--kubeconfig", path, "-o", "json", *TIMEOUT]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("cannot list compositepodgroups in namespace default" in note for note in notes)
    assert any("this evaluates pod group left only" in note for note in notes)
    assert main(["explain", "compositepodgroup/both", "--kubeconfig", path, "-o", "json", *TIMEOUT]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["summary"] == "is not evaluated: compositepodgroups of namespace default are not known"


def test_the_deadline_is_reported(deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch) -> None:
    from dra_cluster.explain.gang_placement import Run as Placement

    place_all = Placement.place_all

    def slow(self: Placement, *arguments: Any, **others: Any) -> Any:
        deadline_clock.pass_(6)
        return place_all(self, *arguments, **others)

    monkeypatch.setattr(Placement, "place_all", slow)
    snapshot, root = snapshot_of(2, 1)
    gang = gang_of_composite(snapshot, "it", "CompositePodGroup", root)
    answer = explain_gang(snapshot, gang, deadline=10)
    assert not answer["fits"] and answer["failure"] is None and answer["search"] is None
    assert answer["summary"].endswith("; the other groups have no result in time")
    assert answer["groups"][2]["fits"] is None


def test_pods_that_permit_no_node_of_the_topology(explain: Run) -> None:
    cluster = [node("n1"), node("n2"), slices("n1", "AAAA")]
    groups = [*PAIR[:2], group("right", 2, "both", RACK)]
    pods = [*members("left", 2), *members("right", 2, nodeSelector={RACK: "rack-2"})]
    _, answer = explain([*cluster, *groups, *pods], "compositepodgroup/both")
    assert answer["groups"][2]["value"] == "rack-1"
    assert answer["failure"]["reason"] == "its pod permits none of the nodes with rack=rack-1"

"""`dra-agent explain` of Workloads of Kueue: quota, flavors, and what is left out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import claim, device, make_request, slice_of
from dra_agent.cli.main import main
from dra_cluster.explain import kueue_objects
from dra_cluster.explain.kueue_amount import amount, text
from eventually import DEADLINE_S
from fake_apiserver.fake import FakeApi

Json = dict[str, Any]
Explain = Callable[..., tuple[int, Json]]
API, KUEUE = "resource.k8s.io/v1", "kueue.x-k8s.io/v1beta2"
CLASS: Json = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
RESOURCE = "whole-gpus"
TIMEOUT = ("--timeout", "600")
"""The result must not depend on the speed of the machine."""


def template(name: str, *requests: Json) -> Json:
    spec = {"spec": claim(*requests)["spec"]}
    head = {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": name, "namespace": "default"}}
    return {**head, "spec": spec}


def node(name: str, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}}


def slices(name: str, devices: int) -> Json:
    entry = slice_of(*(device(f"d{number}", {}) for number in range(devices)), name=name, pool=name, nodeName=name)
    return {"apiVersion": API, "kind": "ResourceSlice", **entry}


def workload(pods: int = 2, *, claim_template: str = "one", queue: str | None = "gpus", **spec: Any) -> Json:
    entries = [{"name": "gpu", "resourceClaimTemplateName": claim_template}]
    pod = {"spec": {"containers": [{"name": "c"}], "resourceClaims": entries, **spec}}
    body = {"queueName": queue, "podSets": [{"name": "main", "count": pods, "template": pod}]}
    metadata = {"name": "job-train", "namespace": "default"}
    return {"apiVersion": KUEUE, "kind": "Workload", "metadata": metadata, "spec": body}


def condition(kind: str, status: str, message: str = "", reason: str = "Pending") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def local_queue(name: str = "gpus", **spec: Any) -> Json:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": "team", **spec}}


def flavor(name: str = "h100", **spec: Any) -> Json:
    return {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def queue(
    nominal: int,
    used: int,
    *,
    name: str = "team",
    flavors: tuple[str, ...] = ("h100",),
    cohort: str = "",
    **limits: Any,
) -> Json:
    """Return a ClusterQueue with the same quota and usage in each flavor."""
    quota = {"name": RESOURCE, "nominalQuota": str(nominal), **limits}
    usage = [{"name": one, "resources": [{"name": RESOURCE, "total": str(used)}]} for one in flavors]
    entries = [{"name": one, "resources": [quota]} for one in flavors]
    spec: Json = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": [RESOURCE], "flavors": entries}]}
    if cohort:
        spec["cohortName"] = cohort
    status = {"flavorsReservation": usage}
    return {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec, "status": status}


def config_map(*mappings: Json, **resources: Any) -> Json:
    listed = list(mappings) or [{"name": RESOURCE, "deviceClassNames": ["any"]}]
    content = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "resources": {"deviceClassMappings": listed, **resources},
    }
    metadata = {"name": "kueue-manager-config", "namespace": "kueue-system"}
    data = {"controller_manager_config.yaml": json.dumps(content)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.fixture
def explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Explain the Workload of a cluster in a file, as text and as JSON."""
    monkeypatch.chdir(tmp_path)

    def run(*cluster: Json, words: tuple[str, ...] = ("workload/job-train",)) -> tuple[int, Json]:
        objects = [CLASS, template("one", make_request()), template("nine", make_request(count=9)), *cluster]
        Path("cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        arguments = ["explain", *words, "--from", "cluster.json", *TIMEOUT]
        code = main(arguments)
        printed = capsys.readouterr()
        assert "internal error" not in printed.err
        assert code == main([*arguments, "-o", "json"])
        answer: Json = json.loads(capsys.readouterr().out)
        assert answer["summary"] in printed.out
        return code, {**answer, "text": printed.out}

    return run


NODES = (node("n1", pool="h100"), slices("n1", 4))
QUEUES = (local_queue(), flavor(nodeLabels={"pool": "h100"}), config_map())


def test_free_quota_and_free_devices(explain: Explain) -> None:
    code, answer = explain(*NODES, *QUEUES, queue(8, 6), workload(2))
    assert code == 0 and answer["summary"] == "all 2 pods can be placed on 1 node"
    admission = answer["admission"]
    assert (admission["state"], admission["blocker"], admission["cluster_queue"]) == ("free", None, "team")
    (row,) = admission["quotas"]
    assert (row["pod_set"], row["resource"], row["flavor"], row["result"]) == ("main", RESOURCE, "h100", "free")
    assert (row["needed"], row["used"], row["nominal"], row["borrowable"]) == ("2", "6", "8", "0")
    assert admission["flavors"] == [{"name": "h100", "node_labels": {"pool": "h100"}}]
    assert "flavor h100: nodes with pool=h100" in answer["text"]
    assert any(one.startswith("not evaluated: preemption; fair sharing; ") for one in answer["notes"])


def test_quota_is_used_up_and_devices_are_free(explain: Explain) -> None:
    code, answer = explain(*NODES, *QUEUES, queue(8, 7), workload(2))
    assert code == 1 and answer["admission"]["state"] == "waits" and not answer["fits"]
    assert answer["summary"] == (
        "waits for quota, not for devices: ClusterQueue team: whole-gpus in flavor h100: 2 needed, 7 of 8 used, "
        "0 borrowable; devices: all 2 pods can be placed on 1 node"
    )
    assert answer["admission"]["quotas"][0]["result"] == "1 more needed"


def test_neither_quota_nor_devices(explain: Explain) -> None:
    code, answer = explain(*NODES, *QUEUES, queue(8, 7), workload(5))
    assert code == 1 and answer["summary"].startswith("waits for quota and for devices: ClusterQueue team: ")
    assert "; devices: 4 of 5 pods can be placed on 1 node; job-train-4 does not fit" in answer["summary"]


def test_more_than_the_quota_can_ever_be(explain: Explain) -> None:
    code, answer = explain(*NODES, *QUEUES, queue(3, 0), workload(4))
    assert code == 1 and answer["admission"]["quotas"][0]["result"] == "never: at most 3"
    assert "4 needed, 0 of 3 used, 0 borrowable, and never more than 3" in answer["summary"]


def test_free_quota_and_no_devices(explain: Explain) -> None:
    code, answer = explain(*NODES, *QUEUES, queue(80, 0), workload(2, claim_template="nine"))
    assert code == 1 and answer["admission"]["state"] == "free"
    assert answer["summary"].startswith("0 of 2 pods can be placed; job-train-0 does not fit; n1: request main")
    assert answer["admission"]["quotas"][0]["needed"] == "18"


def test_labels_of_the_flavor_exclude_the_only_node_with_devices(explain: Explain) -> None:
    cluster = (node("n1", pool="a100"), slices("n1", 4), node("n2", pool="h100"))
    code, answer = explain(*cluster, *QUEUES, queue(8, 0), workload(2))
    assert code == 1 and answer["admission"]["state"] == "free"
    assert answer["kinds"][0]["usable_nodes"] == 1 and answer["placed"] == 0
    code, answer = explain(*cluster[:2], *QUEUES, queue(8, 0), workload(2))
    assert code == 1 and "ResourceFlavor h100 requires pool=h100, the node has pool=a100" in answer["summary"]
    code, _ = explain(*cluster, local_queue(), flavor(), config_map(), queue(8, 0), workload(2))
    assert code == 0, "a flavor without labels permits every node"


def test_the_first_flavor_with_quota_decides(explain: Explain) -> None:
    cluster = [node("n1", pool="h100"), node("n2", pool="a100"), slices("n1", 4), slices("n2", 4), *QUEUES]
    cluster += [flavor("a100", nodeLabels={"pool": "a100"}), workload(2)]
    two = queue(8, 0, flavors=("h100", "a100"))
    code, answer = explain(*cluster, two)
    assert code == 0 and answer["kinds"][0]["nodes"] == {"n1": 2}
    two["status"]["flavorsReservation"][0]["resources"][0]["total"] = "8"
    code, answer = explain(*cluster, two)
    assert code == 0 and answer["kinds"][0]["nodes"] == {"n2": 2}
    assert [row["result"] for row in answer["admission"]["quotas"]] == ["2 more needed", "free"]
    two["status"]["flavorsReservation"][1]["resources"][0]["total"] = "8"
    code, answer = explain(*cluster, two)
    assert code == 1 and answer["kinds"][0]["nodes"] == {"n1": 1, "n2": 1}, "either flavor, once it has quota"


def test_flavors_that_the_pods_cannot_have(explain: Explain) -> None:
    taint = {"key": "spot", "value": "true", "effect": "NoSchedule"}
    labelled: Json = {"nodeLabels": {"pool": "h100"}, "nodeTaints": [taint]}
    cluster = (*NODES, local_queue(), config_map(), queue(8, 0))
    code, answer = explain(*cluster, flavor(**labelled), workload(2))
    assert code == 1 and answer["admission"]["state"] == "blocked"
    reason = "flavor h100: the pods do not tolerate the taints of its nodes"
    assert answer["summary"].startswith(f"ClusterQueue team has no flavor for pod set main: {reason}; devices: ")
    tolerations = [{"key": "spot", "operator": "Exists"}]
    assert explain(*cluster, flavor(**labelled), workload(2, tolerations=tolerations))[0] == 0
    assert explain(*cluster, flavor(**labelled, tolerations=tolerations), workload(2))[0] == 0
    code, answer = explain(*cluster, flavor(nodeLabels={"pool": "h100"}), workload(2, nodeSelector={"pool": "a100"}))
    assert code == 1 and "its node labels do not match the node selector or affinity" in answer["summary"]
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a100"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    code, answer = explain(
        *cluster, flavor(nodeLabels={"pool": "h100"}), workload(2, affinity={"nodeAffinity": required})
    )
    assert code == 1 and "its node labels do not match" in answer["summary"]


def test_tolerations_of_the_flavor_are_those_of_its_pods(explain: Explain) -> None:
    tainted = node("n1", pool="h100")
    tainted["spec"]["taints"] = [{"key": "gpu", "effect": "NoSchedule"}]
    cluster = (tainted, slices("n1", 4), local_queue(), config_map(), queue(8, 0), workload(2))
    assert explain(*cluster, flavor(nodeLabels={"pool": "h100"}))[0] == 1
    tolerant = flavor(nodeLabels={"pool": "h100"}, tolerations=[{"key": "gpu", "operator": "Exists"}])
    assert explain(*cluster, tolerant)[0] == 0


def groups_of_flavors(*groups: tuple[Json, ...]) -> tuple[Json, ...]:
    """Return a ClusterQueue without free quota that has these flavors in groups, and a Workload that needs them all."""
    names = [f"example.com/r{number}" for number in range(len(groups))]
    entry = queue(0, 0)
    entry["spec"]["resourceGroups"] = [
        {
            "coveredResources": [name],
            "flavors": [
                {"name": one["metadata"]["name"], "resources": [{"name": name, "nominalQuota": "1"}]} for one in group
            ],
        }
        for name, group in zip(names, groups, strict=True)
    ]
    one = workload(1)
    one["status"] = {"resourceRequests": [{"name": "main", "resources": dict.fromkeys(names, "2")}]}
    flavors = [one for group in groups for one in group]
    return (*flavors, local_queue(), config_map(), entry, one)


def test_flavors_of_many_groups_are_compared_with_a_node(explain: Explain) -> None:
    """Of 2 to the 12th combinations only the last one permits the node."""
    labels = {f"l{number}": "yes" for number in range(12)}
    groups = [
        (flavor(f"a{number}", nodeLabels={f"l{number}": "no"}), flavor(f"b{number}", nodeLabels={f"l{number}": "yes"}))
        for number in range(12)
    ]
    _, answer = explain(node("n1", **labels), slices("n1", 4), *groups_of_flavors(*groups))
    assert answer["kinds"][0]["usable_nodes"] == 1 and answer["placed"] == 1
    del labels["l7"]
    _, answer = explain(node("n1", **labels), slices("n1", 4), *groups_of_flavors(*groups))
    reason = (
        "ResourceFlavor a7 requires l7=no, the node has no label l7; 1 other ResourceFlavor does not match the node"
    )
    assert f"{reason} either" in answer["summary"] and "requires l6" not in answer["summary"]


def tainted(*keys: str) -> Json:
    entry = node("n1")
    entry["spec"]["taints"] = [{"key": key, "effect": "NoSchedule"} for key in keys]
    return entry


def tolerating(name: str, *keys: str) -> Json:
    return flavor(name, tolerations=[{"key": key, "operator": "Exists"} for key in keys])


def test_taints_are_tolerated_by_the_flavors_of_several_groups(explain: Explain) -> None:
    groups = [(tolerating(f"a{number}"), tolerating(f"b{number}", f"t{number}")) for number in range(12)]
    keys = [f"t{number}" for number in range(12)]
    _, answer = explain(tainted(*keys), slices("n1", 4), *groups_of_flavors(*groups))
    assert answer["placed"] == 1
    _, answer = explain(tainted(*keys, "other"), slices("n1", 4), *groups_of_flavors(*groups))
    assert answer["placed"] == 0 and "taint other:NoSchedule" in answer["summary"] and "t0" not in answer["summary"]


def test_more_combinations_than_are_evaluated_are_named(explain: Explain) -> None:
    """Each flavor tolerates another half of the taints, so that no combination is better than all others."""
    groups = [(tolerating(f"a{number}", f"a{number}"), tolerating(f"b{number}", f"b{number}")) for number in range(12)]
    keys = [f"{letter}{number}" for number in range(12) for letter in "ab"]
    code, answer = explain(tainted(*keys), slices("n1", 4), *groups_of_flavors(*groups))
    reason = "not evaluated: more than 128 combinations of ResourceFlavors tolerate different taints of the node"
    assert code == 1 and reason in answer["summary"] and f"node n1: {reason}" in answer["notes"]
    assert answer["search"] is None, "neither a search nor a proof"
    wrong = tainted(*keys)
    code, answer = explain(wrong, slices("n1", 4), *groups_of_flavors((flavor(nodeLabels={"x": "y"}),), *groups))
    assert "ResourceFlavor h100 requires x=y" in answer["summary"] and reason not in answer["summary"]


@pytest.mark.parametrize(
    ("own", "other", "free", "borrowable"),
    [
        ({}, {}, 2 + 6, 6),
        ({"borrowingLimit": "3"}, {}, 2 + 3, 3),
        ({"borrowingLimit": "0"}, {}, 2, 0),
        ({}, {"lendingLimit": "4"}, 2 + 4, 4),
        ({}, {"lendingLimit": "1"}, 2 + 1, 1),
        ({"lendingLimit": "1"}, {}, 2 + 6, 6),
    ],
)
def test_what_the_cohort_lends(explain: Explain, own: Json, other: Json, free: int, borrowable: int) -> None:
    """The team has 4 and uses 2; the other one has 8 and uses 2, of its own quota first."""
    cluster = [node("n1", pool="h100"), slices("n1", 20), *QUEUES]
    cluster += [queue(4, 2, cohort="all", **own), queue(8, 2, name="other", cohort="all", **other)]
    code, answer = explain(*cluster, workload(free))
    assert code == 0 and answer["admission"]["cohort"] == "all"
    assert answer["admission"]["quotas"][0]["borrowable"] == str(borrowable)
    code, answer = explain(*cluster, workload(free + 1))
    assert code == 1 and answer["admission"]["state"] == "waits"


def test_quota_of_the_cohort_itself(explain: Explain) -> None:
    pool = queue(5, 0, name="all")
    cohort = {**pool, "kind": "Cohort", "status": {}}
    cluster = [node("n1", pool="h100"), slices("n1", 20), *QUEUES, queue(4, 2, cohort="all")]
    assert explain(*cluster, cohort, workload(7))[0] == 0
    assert explain(*cluster, cohort, workload(8))[0] == 1
    cohort["spec"]["parentName"] = "company"
    code, answer = explain(*cluster, cohort, workload(8))
    assert code == 0 and answer["admission"]["state"] == "unknown"
    assert "quota of cohort all, which is part of a tree of cohorts" in answer["admission"]["not_evaluated"]


def test_members_in_the_older_version_of_the_api(explain: Explain) -> None:
    older = [queue(4, 4), queue(8, 2, name="other")]
    for one in older:
        one["spec"]["cohort"] = "all"
    code, answer = explain(*NODES, *QUEUES, *older, workload(4))
    assert code == 0 and answer["admission"]["quotas"][0]["borrowable"] == "6"


def test_quota_that_kueue_reserved_is_used(explain: Explain) -> None:
    cluster = (node("n1", pool="h100"), node("n2", pool="a100"), slices("n1", 4), slices("n2", 4), *QUEUES)
    one = workload(2)
    assignment = {"name": "main", "flavors": {RESOURCE: "a100"}, "resourceUsage": {RESOURCE: "2"}}
    one["status"] = {
        "conditions": [condition("QuotaReserved", "True"), condition("Admitted", "True")],
        "admission": {"clusterQueue": "team", "podSetAssignments": [assignment]},
    }
    other = flavor("a100", nodeLabels={"pool": "a100"})
    code, answer = explain(*cluster, other, queue(2, 2), one)
    assert code == 0 and answer["kinds"][0]["nodes"] == {"n2": 2}
    assert answer["admission"]["state"] == "admitted" and answer["admission"]["quotas"][0]["result"] == "reserved"
    one["status"]["conditions"][1]["status"] = "False"
    one["status"]["admissionChecks"] = [{"name": "capacity", "state": "Pending", "message": "no node yet"}]
    code, answer = explain(*cluster, other, queue(2, 2), one)
    assert code == 1 and answer["admission"]["state"] == "reserved"
    assert answer["summary"].startswith(
        "has quota in ClusterQueue team and waits for its admission checks: capacity is Pending: no node yet; devices: "
    )


RESERVED: Json = {
    "conditions": [condition("QuotaReserved", "True"), condition("Admitted", "True")],
    "admission": {"clusterQueue": "team", "podSetAssignments": [{"name": "main", "flavors": {RESOURCE: "h100"}}]},
}


@pytest.mark.parametrize("reserved", [RESERVED["conditions"], [condition("QuotaReserved", "False", "no quota")], []])
def test_a_finished_workload_waits_for_nothing(explain: Explain, reserved: list[Json]) -> None:
    """Kueue keeps the other conditions; its quota is free again."""
    one = workload(2)
    finished = condition("Finished", "True", "Job finished successfully", "Succeeded")
    one["status"] = {**RESERVED, "conditions": [*reserved, finished]}
    code, answer = explain(*NODES, *QUEUES, queue(8, 8), one)
    assert code == 0 and (answer["members"], answer["placed"]) == (0, 0)
    assert answer["summary"] == ("has ended (Finished: Job finished successfully); no pod waits for a node; 0 have one")
    assert answer["admission"]["state"] == "finished" and answer["admission"]["blocker"] is None
    assert not any("not evaluated" in note or "quota" in note for note in answer["notes"])
    one["status"]["conditions"][-1]["status"] = "False"
    assert explain(*NODES, *QUEUES, queue(8, 8), one)[1]["admission"]["state"] != "finished"


def test_a_deactivated_workload_is_named(explain: Explain) -> None:
    one = workload(2)
    one["spec"]["active"] = False
    cluster = (*NODES, *QUEUES, queue(8, 8))
    code, answer = explain(*cluster, one)
    assert code == 1 and answer["admission"]["state"] == "deactivated" and answer["admission"]["quotas"] == []
    assert answer["summary"].startswith("is deactivated (spec.active is false), so Kueue does not admit it; devices: ")
    one["status"] = {
        "admission": RESERVED["admission"],
        "conditions": [condition("QuotaReserved", "False", "no quota")],
    }
    code, answer = explain(*cluster, one)
    assert code == 1 and answer["admission"]["state"] == "deactivated", "the ClusterQueue is known from the status"
    evicted = condition("Evicted", "True", "The workload is deactivated", "Deactivated")
    one["status"] = {**RESERVED, "conditions": [*RESERVED["conditions"], evicted]}
    code, answer = explain(*cluster, one)
    assert code == 1 and answer["admission"]["state"] == "deactivated"
    assert "so Kueue evicts it" in answer["summary"]
    assert "Kueue: Evicted: The workload is deactivated" in answer["notes"]
    one["spec"]["active"] = True
    assert explain(*cluster, one)[1]["admission"]["state"] == "admitted"


def test_the_reason_that_kueue_recorded_is_used(explain: Explain) -> None:
    one = workload(2)
    message = "couldn't assign flavors to pod set main: insufficient unused quota for cpu"
    one["status"] = {"conditions": [condition("QuotaReserved", "False", message)]}
    code, answer = explain(*NODES, *QUEUES, queue(8, 0), one)
    assert code == 1 and answer["summary"].startswith(f"waits for Kueue: {message}; devices: all 2 pods")
    code, answer = explain(*NODES, *QUEUES, queue(8, 8), one)
    assert code == 1 and answer["summary"].startswith("waits for quota, not for devices: ClusterQueue team")
    assert f"Kueue: QuotaReserved is False: {message}" in answer["notes"]


def test_requests_that_kueue_recorded_are_used(explain: Explain) -> None:
    covered = queue(8, 0)
    group = covered["spec"]["resourceGroups"][0]
    group["coveredResources"].append("cpu")
    group["flavors"][0]["resources"].append({"name": "cpu", "nominalQuota": "3500m"})
    one = workload(2)
    one["status"] = {"resourceRequests": [{"name": "main", "resources": {RESOURCE: "2", "cpu": "4"}}]}
    code, answer = explain(*NODES, *QUEUES, covered, one)
    assert code == 1 and "cpu in flavor h100: 4 needed, 0 of 3500m used, 0 borrowable" in answer["summary"]
    assert not any("requests of containers" in entry for entry in answer["admission"]["not_evaluated"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([queue(8, 0), workload(2)], "there is no LocalQueue default/gpus, which the Workload names"),
        ([local_queue(), workload(2), queue(8, 0, name="x")], "there is no ClusterQueue team, which"),
        ([local_queue(), queue(8, 0), workload(2, queue=None)], "names no LocalQueue in spec.queueName"),
        ([local_queue(stopPolicy="Hold"), queue(8, 0), workload(2)], "LocalQueue default/gpus is stopped"),
        ([local_queue(clusterQueue=""), queue(8, 0), workload(2)], "LocalQueue default/gpus names no ClusterQueue"),
    ],
)
def test_queues_that_admit_nothing(explain: Explain, changed: list[Json], message: str) -> None:
    code, answer = explain(*NODES, flavor(), config_map(), *changed)
    assert code == 1 and answer["admission"]["state"] == "blocked" and answer["summary"].startswith(message)


@pytest.mark.parametrize(
    ("spec", "status", "message"),
    [
        ({"stopPolicy": "HoldAndDrain"}, {}, "ClusterQueue team is stopped (stopPolicy HoldAndDrain)"),
        ({"namespaceSelector": None}, {}, "ClusterQueue team admits no namespace"),
        ({}, {"conditions": [condition("Active", "False", "no flavor h100")]}, "is not active: no flavor h100"),
        ({"resourceGroups": []}, {}, f"ClusterQueue team has no quota for {RESOURCE}"),
    ],
)
def test_a_cluster_queue_that_admits_nothing(explain: Explain, spec: Json, status: Json, message: str) -> None:
    entry = queue(8, 0)
    entry["spec"] |= spec
    entry["status"] |= status
    code, answer = explain(*NODES, *QUEUES, entry, workload(2))
    assert code == 1 and answer["admission"]["state"] == "blocked" and message in answer["summary"]


def test_classes_that_kueue_does_not_count(explain: Explain) -> None:
    other = config_map({"name": RESOURCE, "deviceClassNames": ["other"]})
    cluster = (*NODES, local_queue(), flavor(), queue(8, 8), workload(2))
    code, answer = explain(*cluster, other)
    assert code == 1 and answer["summary"].startswith(
        "DeviceClass any is in no deviceClassMappings of Kueue; devices: "
    )
    counters = config_map({"name": RESOURCE, "deviceClassNames": ["any"], "sources": [{"counter": {}}]})
    code, answer = explain(*cluster, counters)
    assert code == 0 and answer["admission"]["state"] == "unknown"
    assert "quota of class any, which counts counters or capacity of devices" in answer["admission"]["not_evaluated"]
    code, answer = explain(*cluster)
    assert code == 0 and "quota of class any" in answer["admission"]["not_evaluated"]
    assert any("deviceClassMappings are not known" in one for one in answer["admission"]["not_evaluated"])


@pytest.mark.parametrize(
    ("field", "feature"), [({"allocationMode": "All"}, "allocationMode All"), ({"adminAccess": True}, "adminAccess")]
)
def test_requests_that_kueue_does_not_admit(explain: Explain, field: dict[str, Any], feature: str) -> None:
    every = make_request()
    every["exactly"] |= field
    cluster = (*NODES, *QUEUES, queue(8, 0), template("all", every), workload(1, claim_template="all"))
    code, answer = explain(*cluster)
    assert code == 1 and f"Kueue 0.19 admits no pods with {feature}, which request main has" in answer["summary"]


def test_fields_that_are_not_evaluated_are_named(explain: Explain) -> None:
    entry = queue(8, 0)
    entry["spec"] |= {
        "namespaceSelector": {"matchLabels": {"team": "a"}},
        "admissionChecksStrategy": {"admissionChecks": [{"name": "capacity"}]},
        "flavorFungibility": {"whenCanBorrow": "TryNextFlavor"},
    }
    topology = flavor(nodeLabels={"pool": "h100"}, topologyName="racks")
    code, answer = explain(*NODES, local_queue(), config_map(), topology, entry, workload(2))
    expected = ("namespaceSelector of ClusterQueue team", "admission checks", "flavorFungibility of ClusterQueue team")
    assert code == 0 and {*expected, "topology racks"} <= set(answer["admission"]["not_evaluated"])
    entry["status"] = {}
    code, answer = explain(*NODES, *QUEUES, entry, workload(2))
    assert code == 0 and answer["admission"]["state"] == "unknown"
    assert "ClusterQueue team has no status.flavorsReservation" in answer["admission"]["not_evaluated"]


def test_pod_sets_share_the_quota(explain: Explain) -> None:
    one = workload(3)
    one["spec"]["podSets"].append({**one["spec"]["podSets"][0], "name": "second", "count": 1})
    code, answer = explain(*NODES, *QUEUES, queue(4, 0), one)
    assert code == 0 and answer["placed"] == 4
    code, answer = explain(*NODES, *QUEUES, queue(4, 1), one)
    assert code == 1 and [row["result"] for row in answer["admission"]["quotas"]] == ["free", "1 more needed"]


def test_a_workload_without_queues_is_explained_as_before(explain: Explain) -> None:
    code, answer = explain(*NODES, workload(2))
    assert code == 0 and answer["admission"] is None
    assert "Kueue's quota, flavors and topology are not evaluated" in answer["notes"]


def test_a_workload_of_a_file(explain: Explain) -> None:
    Path("asked.json").write_text(json.dumps(workload(2)))
    code, answer = explain(*NODES, *QUEUES, queue(8, 7), words=("-f", "asked.json"))
    assert code == 1 and answer["summary"].startswith("waits for quota, not for devices")


@pytest.fixture
def cluster(fake_api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Explain the Workload of an API server with these objects."""
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")
    fake_api.put("namespaces", {"metadata": {"name": "default"}})

    def run(*objects: Json) -> tuple[int, Json]:
        for one in (CLASS, template("one", make_request()), *objects):
            fake_api.put(f"{one['kind'].lower()}{'es' if one['kind'].endswith('s') else 's'}", one)
        code = main(["explain", "workload/job-train", "--kubeconfig", str(path), *TIMEOUT, "-o", "json"])
        printed = capsys.readouterr()
        assert "internal error" not in printed.err
        return code, json.loads(printed.out) if printed.out else {"error": printed.err}

    return run


def test_objects_of_an_api_server(fake_api: FakeApi, cluster: Explain) -> None:
    code, answer = cluster(*NODES, *QUEUES, queue(8, 7), workload(2))
    assert code == 1 and answer["summary"].startswith("waits for quota, not for devices: ClusterQueue team: ")
    assert not fake_api.writes()


def test_an_older_server(fake_api: FakeApi, cluster: Explain) -> None:
    fake_api.fail(404, times=None, path="/v1beta2/")
    code, answer = cluster(*NODES, *QUEUES, queue(8, 7), workload(2))
    assert code == 1 and answer["admission"]["state"] == "waits"


def test_a_server_without_queues(fake_api: FakeApi, cluster: Explain) -> None:
    fake_api.fail(404, times=None, path="/localqueues")
    code, answer = cluster(*NODES, *QUEUES, queue(8, 7), workload(2))
    assert code == 0 and answer["admission"] is None
    assert "Kueue's quota, flavors and topology are not evaluated" in answer["notes"]


@pytest.mark.parametrize(
    ("plural", "state"),
    [
        ("localqueues", "unknown"),
        ("clusterqueues", "unknown"),
        ("resourceflavors", "waits"),
        ("cohorts", "waits"),
        ("configmaps", "unknown"),
    ],
)
def test_no_permission(fake_api: FakeApi, cluster: Explain, plural: str, state: str) -> None:
    fake_api.fail(403, times=None, path=f"/{plural}")
    _, answer = cluster(*NODES, *QUEUES, queue(8, 7), workload(2))
    assert answer["admission"]["state"] == state
    assert any(plural in one or "ConfigMap" in one for one in answer["admission"]["not_evaluated"])


def test_a_list_without_end(fake_api: FakeApi, cluster: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kueue_objects, "MAX_OBJECTS", 1)
    page = json.dumps({"metadata": {"continue": "more"}, "items": [queue(1, 0), queue(1, 0, name="x")]})
    fake_api.fail(200, times=None, path="/clusterqueues", body=page)
    _, answer = cluster(*NODES, *QUEUES, workload(2))
    assert any("there are more than 1 objects" in one for one in answer["admission"]["not_evaluated"])


def test_a_server_that_is_slow(fake_api: FakeApi, cluster: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kueue_objects, "READ_TIMEOUT_S", 0.05)
    end = threading.Event()
    fake_api.hang(DEADLINE_S, times=None, path="/localqueues", when=end)
    _, answer = cluster(*NODES, *QUEUES, queue(8, 7), workload(2))
    end.set()
    assert answer["admission"]["state"] == "unknown"
    assert any("did not return Kueue's objects within" in one for one in answer["admission"]["not_evaluated"])


def _parts(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each part of a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in items for found in _parts(part, (*path, key)))]


def _with(value: Any, path: tuple[Any, ...], part: Any) -> Any:
    if not path:
        return part
    copy = value.copy()
    copy[path[0]] = _with(value[path[0]], path[1:], part)
    return copy


FULL_QUEUE = queue(4, 1, cohort="all", borrowingLimit="1", lendingLimit="2")
FULL_FLAVOR = flavor(
    nodeLabels={"pool": "h100"},
    nodeTaints=[{"key": "t", "value": "v", "effect": "NoSchedule"}],
    tolerations=[{"key": "t", "operator": "Equal", "value": "v", "effect": "NoSchedule"}],
    topologyName="racks",
)
FULL_COHORT = {**queue(5, 0, name="all"), "kind": "Cohort"}
FULL_WORKLOAD = {
    **workload(2),
    "status": {
        "conditions": [condition("QuotaReserved", "False", "no quota"), condition("Finished", "False")],
        "admission": {
            "clusterQueue": "team",
            "podSetAssignments": [{"name": "main", "flavors": {RESOURCE: "h100"}, "resourceUsage": {RESOURCE: "2"}}],
        },
        "admissionChecks": [{"name": "capacity", "state": "Pending", "message": "m"}],
        "resourceRequests": [{"name": "main", "resources": {RESOURCE: "2"}}],
    },
}


FULL_RESERVATION = {
    **FULL_WORKLOAD,
    "status": {**FULL_WORKLOAD["status"], "conditions": [condition("QuotaReserved", "True")]},
}


@pytest.mark.parametrize(
    "changed",
    [local_queue(), FULL_QUEUE, FULL_FLAVOR, FULL_COHORT, FULL_WORKLOAD, FULL_RESERVATION],
    ids=["LocalQueue", "ClusterQueue", "ResourceFlavor", "Cohort", "Workload", "reserved Workload"],
)
def test_wrong_types_from_an_api_server(fake_api: FakeApi, cluster: Explain, changed: Json) -> None:
    """The server responds with an object that has another type in one place; there is never an internal error."""
    everything = [*NODES, local_queue(), FULL_QUEUE, FULL_FLAVOR, FULL_COHORT, config_map(), FULL_WORKLOAD]
    cluster(*everything)
    plural = f"{changed['kind'].lower()}s"
    for part in sorted({"spec", "status"} & changed.keys()):
        for number, path in enumerate(_parts(changed[part])):
            broken = _with(changed, (part, *path), ([7], {"x": [7]}, 7, None)[number % 4])
            is_listed = changed["kind"] != "Workload"
            body = json.dumps({"metadata": {}, "items": [broken]} if is_listed else broken)
            fault = fake_api.fail(200, times=None, path=f"/{plural}", body=body)
            cluster()
            fake_api.faults.lift(fault)


def test_wrong_types_in_files(explain: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    entry = queue(4, 1)
    entry["spec"]["resourceGroups"][0]["flavors"] = 7
    objects = [CLASS, *NODES, *QUEUES, entry, workload(2)]
    Path("broken.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert explain(*NODES, *QUEUES, queue(4, 1), workload(2))[0] == 0
    assert main(["explain", "workload/job-train", "--from", "broken.json"]) == 2
    assert "ClusterQueue team: spec.resourceGroups[0].flavors is not a list" in capsys.readouterr().err


def test_a_quota_that_is_not_a_quantity(explain: Explain) -> None:
    entry = queue(4, 1)
    entry["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "many"
    code, answer = explain(*NODES, *QUEUES, entry, workload(2))
    assert code == 0 and answer["admission"]["state"] == "unknown"
    expected = f"nominalQuota of {RESOURCE} in flavor h100 of team is not a quantity"
    assert expected in answer["admission"]["not_evaluated"]


def test_the_configuration_of_kueue_is_not_yaml(explain: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    broken = config_map()
    broken["data"]["controller_manager_config.yaml"] = "a: [b"
    objects = [CLASS, *NODES, broken, workload(2)]
    Path("broken.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert explain(*NODES, workload(2))[0] == 0
    assert main(["explain", "workload/job-train", "--from", "broken.json"]) == 2
    assert "controller_manager_config.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("quantity", "shown"),
    [
        *(("8", "8"), ("800Gi", "800Gi"), ("3500m", "3500m"), ("1e3", "1000"), ("1024", "1024"), (2.5, "2500m")),
        *((4, "4"), ("-1", "-1"), ("2Ti", "2Ti"), ("1536Mi", "1536Mi"), ("0", "0")),
    ],
)
def test_quantities_are_exact(quantity: str | float, shown: str) -> None:
    number = amount(quantity)
    assert number is not None and text(number) == shown


@pytest.mark.parametrize("quantity", ["many", "", None, True, [], {}, "1e999999999", "9" * 5000, "NaN"])
def test_what_is_not_a_quantity(quantity: object) -> None:
    number = amount(quantity)
    assert number is None or abs(number) < 10**31

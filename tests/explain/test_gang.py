"""`dra-agent explain` of workloads and pod groups, on files and with an API server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import DRIVER, allocated_claim, claim, device, make_exact, make_request, model, slice_of
from dra_agent.cli.main import main
from fake_apiserver.fake import FakeApi

Json = dict[str, Any]
Run = Callable[..., tuple[int, Json]]
API = "resource.k8s.io/v1"
CLASS: Json = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
TIMEOUT = ("--timeout", "600")
"""The result must not depend on the speed of the machine."""
UPSTREAM = "kubernetes/kubernetes#138765"


def template(name: str, *requests: Json) -> Json:
    metadata = {"name": name, "namespace": "default"}
    return {
        "apiVersion": API,
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": claim(*requests)["spec"]},
    }


def node(name: str, **spec: Any) -> Json:
    labels = {"rack": f"rack-{name[-1]}"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}


def slices(name: str, models: str, **spec: Any) -> Json:
    devices = [device(f"d{number}", {"model": letter}) for number, letter in enumerate(models)]
    entry = slice_of(*devices, name=name, pool=name, nodeName=name, **spec)
    return {"apiVersion": API, "kind": "ResourceSlice", **entry}


def card(name: str) -> list[Json]:
    """Return a card that is used as a whole or as two halves."""

    def part(part_name: str, size: int) -> Json:
        used = [{"counterSet": "card", "counters": {"slots": {"value": str(size)}}}]
        return device(part_name, {"size": size}, consumesCounters=used)

    counters = [{"name": "card", "counters": {"slots": {"value": "2"}}}]
    parts = slice_of(
        part("whole", 2), part("half-0", 1), part("half-1", 1), name=name, pool=name, nodeName=name, count=2
    )
    shared = slice_of(name=f"{name}-c", pool=name, nodeName=name, count=2, sharedCounters=counters)
    return [{"apiVersion": API, "kind": "ResourceSlice", **entry} for entry in (parts, shared)]


def pod_template(*claims: str, **spec: Any) -> Json:
    entries = [{"name": name, "resourceClaimTemplateName": name} for name in claims]
    return {"spec": {"containers": [{"name": "c"}], "resourceClaims": entries, **spec}}


def job(name: str, pods: int, *claims: str, **spec: Any) -> Json:
    body = {"parallelism": pods, "template": pod_template(*claims, **spec)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}


def with_field(value: Json, name: str, number: object) -> Json:
    return {**value, "spec": {**value["spec"], name: number}}


def job_set(**jobs: tuple[int, str]) -> Json:
    entries = [
        {"name": name, "template": {"spec": {"parallelism": pods, "template": pod_template(claim_name)}}}
        for name, (pods, claim_name) in jobs.items()
    ]
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "set"}}
    return {**head, "spec": {"replicatedJobs": entries}}


def sized(size: int) -> str:
    return f'device.attributes["{DRIVER}"].size == {size}'


TEMPLATES = [
    template("one", make_request()),
    template("only-a", make_request(expression=model("A"))),
    template("two", make_request(count=2)),
    template("nine", make_request(count=9)),
    template(
        "whole-or-half",
        {
            "name": "main",
            "firstAvailable": [
                {"name": "whole", **make_exact(1, sized(2))},
                {"name": "half", **make_exact(1, sized(1))},
            ],
        },
    ),
]


def write(name: str, *objects: Json) -> None:
    Path(name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


@pytest.fixture
def explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Explain objects of a file in a cluster of a file, as text and as JSON."""
    monkeypatch.chdir(tmp_path)

    def run(cluster: list[Json], *asked: Json | str) -> tuple[int, Json]:
        write("cluster.json", CLASS, *TEMPLATES, *cluster)
        words = [one for one in asked if isinstance(one, str)]
        if objects := [one for one in asked if isinstance(one, dict)]:
            write("asked.json", *objects)
            words = ["-f", "asked.json", *words]
        words += ["--from", "cluster.json", *TIMEOUT]
        code = main(["explain", *words])
        text = capsys.readouterr().out
        assert code == main(["explain", *words, "-o", "json"])
        answer: Json = json.loads(capsys.readouterr().out)
        assert answer["summary"] in text and (not answer["search"] or answer["search"]["summary"] in text)
        answer["text"] = text
        return code, answer

    return run


def nodes_of(answer: Json) -> dict[str, dict[str, int]]:
    return {kind["name"]: kind["nodes"] for kind in answer["kinds"]}


def test_all_pods_of_a_job_are_placed(explain: Run) -> None:
    code, answer = explain([node("n1"), node("n2"), slices("n1", "AA"), slices("n2", "AA")], job("train", 4, "one"))
    assert code == 0 and answer["subject"] == "Job default/train"
    assert answer["summary"] == "all 4 pods can be placed on 2 nodes"
    assert nodes_of(answer) == {"train": {"n1": 2, "n2": 2}}
    assert [one["member"] for one in answer["placements"]] == [f"train-{number}" for number in range(4)]
    assert len({(one["node"], one["devices"][0]["device"]) for one in answer["placements"]}) == 4


def test_the_first_pod_that_fits_nowhere_is_named_with_its_reason(explain: Run) -> None:
    code, answer = explain([slices("n1", "AA"), slices("n2", "A")], job("train", 5, "one"))
    assert code == 1 and (answer["placed"], answer["failure"]["member"]) == (3, "train-3")
    assert answer["summary"].startswith("3 of 5 pods can be placed on 2 nodes; train-3 fits on none of 2 nodes; n")
    assert answer["failure"]["failed"] == 2 and answer["failure"]["explanation"]["fits"] is False
    assert answer["search"]["impossible"] == "there are devices for request main of 3 pods, and train has 5"
    assert "no order can place all of them" in answer["text"]
    assert "--node n1 shows its devices for pod train-3" in answer["text"]
    _, answer = explain([slices("n1", "AA"), slices("n2", "A")], job("train", 5, "one"), "--node", "n2")
    assert "pod train-3 on node n2" in answer["text"] and "it is held by claim default/train-1-one" in answer["text"]
    assert answer["failure"]["excluded"] is None and "`dra-agent devices` on node n2 lists them" in answer["text"]


def test_a_pod_that_does_not_fit_alone_is_certain(explain: Run) -> None:
    code, answer = explain([slices("n1", "AAAA")], job_set(small=(1, "one"), large=(1, "nine")))
    assert code == 1
    assert answer["search"]["impossible"] == "set-large-0 does not fit even without the other pods"
    assert answer["search"]["kinds"] == [] and answer["search"]["placed"] == 0


def test_too_few_devices_for_all_kinds_is_certain(explain: Run) -> None:
    code, answer = explain([slices("n1", "AAA")], job_set(small=(2, "one"), large=(1, "two")))
    assert code == 1
    assert answer["search"]["impossible"] == "the pods need 4 devices of class any, and 3 are available to them"


def test_another_order_is_found(explain: Run) -> None:
    code, answer = explain([slices("n1", "AB")], job_set(any=(1, "one"), special=(1, "only-a")))
    search = answer["search"]
    assert code == 1 and search["found"] and search["differs"] == ["order"]
    assert search["order"] == [{"kind": "special", "members": 1}, {"kind": "any", "members": 1}]
    assert "another order would place all of them: special (1), any (1)" in answer["text"]
    assert search["upstream"] is None, "neither alternatives nor partitions"


def test_another_choice_of_nodes_is_found(explain: Run) -> None:
    cluster = [slices("n1", "AA"), slices("n2", "AA")]
    code, answer = explain(cluster, job_set(single=(2, "one"), double=(1, "two")))
    assert code == 1 and answer["failure"]["member"] == "set-double-0"
    assert answer["search"]["found"]


@pytest.mark.parametrize("pods", [2, 4])
def test_alternatives_that_the_scheduler_does_not_reconsider_are_named(explain: Run, pods: int) -> None:
    """The example of the upstream issue: a whole card is taken, although halves would serve all pods."""
    cluster = [one for number in range(pods // 2) for one in card(f"n{number}")]
    code, answer = explain(cluster, job("ring", pods, "whole-or-half"))
    assert code == 1 and answer["placed"] == pods // 2
    search = answer["search"]
    assert search["found"] and search["differs"] == ["choice of alternatives"] and search["upstream"] == UPSTREAM
    assert {one["devices"][0]["request"] for one in search["placements"]} == {"main/half"}
    assert [kind["alternatives"] for kind in search["kinds"]] == [{"main/half": pods}]
    assert f"kube-scheduler does not try this ({UPSTREAM})" in answer["text"]


def test_nodes_that_the_pods_do_not_permit_are_not_used(explain: Run) -> None:
    taint = {"key": "team", "effect": "NoSchedule"}
    cluster = [node("n1"), node("n2", taints=[taint]), node("n3", unschedulable=True)]
    cluster += [slices(name, "AA") for name in ("n1", "n2", "n3")]
    code, answer = explain(cluster, job("train", 3, "one"))
    assert code == 1 and nodes_of(answer) == {"train": {"n1": 2}}
    tolerant = job("train", 3, "one", tolerations=[{"key": "team", "operator": "Exists"}])
    code, answer = explain(cluster, tolerant)
    assert code == 0 and nodes_of(answer) == {"train": {"n1": 2, "n2": 1}}
    code, answer = explain(cluster, job("train", 1, "one", nodeSelector={"rack": "rack-9"}))
    assert code == 1 and "the pod's nodeSelector requires rack=rack-9" in answer["summary"]


def group(minimum: int | None, **spec: Any) -> Json:
    policy: Json = {"basic": {}} if minimum is None else {"gang": {"minCount": minimum}}
    metadata = {"name": "ring", "namespace": "default", "uid": "uid-ring"}
    head = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata}
    return {**head, "spec": {"schedulingPolicy": policy, **spec}}


def member(name: str, *claims: Json, **spec: Any) -> Json:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    body = {"containers": [{"name": "c"}], "schedulingGroup": {"podGroupName": "ring"}, **spec}
    entries = claims or ({"name": "one", "resourceClaimTemplateName": "one"},)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**body, "resourceClaims": list(entries)},
        "status": {"phase": "Pending"},
    }


def test_a_pod_group_needs_its_minimum(explain: Run) -> None:
    pods = [member(f"p{number}") for number in range(3)]
    code, answer = explain([slices("n1", "AA"), group(2), *pods], "podgroup/ring")
    assert code == 0 and (answer["needed"], answer["placed"]) == (2, 2)
    assert "; 2 are needed; p2 does not fit" in answer["summary"]
    code, answer = explain([slices("n1", "AA"), group(3), *pods], "podgroup/ring")
    assert code == 1 and answer["needed"] == 3
    code, answer = explain([slices("n1", "AA"), group(4), *pods], "podgroup/ring")
    assert code == 1 and answer["summary"] == "pod group ring waits for 4 pods, and there are 3"
    code, answer = explain([slices("n1", "AA"), group(4)], "podgroup", "ring")
    assert code == 1 and "no pod names it" in answer["summary"]


def test_pods_that_have_a_node_are_counted(explain: Run) -> None:
    held = {"apiVersion": API, "kind": "ResourceClaim", **allocated_claim("p0-one", {"pool": "n1", "device": "d0"})}
    running = member("p0", nodeName="n1")
    running["status"] = {"resourceClaimStatuses": [{"name": "one", "resourceClaimName": "p0-one"}]}
    cluster = [slices("n1", "AA"), held, running, member("p1"), member("p2")]
    code, answer = explain([*cluster, group(3)], "podgroup/ring")
    assert code == 1 and (answer["running"], answer["placed"]) == (1, 1)
    assert answer["summary"].startswith("1 of 2 waiting pods can be placed on 1 node; 1 has a node already; p2 ")
    assert explain([*cluster, group(2)], "podgroup/ring")[0] == 0


def test_a_gang_whose_pods_all_have_a_node_waits_for_nothing(explain: Run) -> None:
    running = member("p0", nodeName="n1")
    code, answer = explain([slices("n1", "A"), group(1), running], "podgroup/ring")
    assert code == 0 and answer["summary"] == "no pod waits for a node; 1 has one"
    code, answer = explain([slices("n1", "A")], job("none", 0, "one"))
    assert code == 0 and answer["summary"] == "no pod waits for a node; 0 have one"


def test_the_claim_of_a_group_is_shared_by_its_pods(explain: Run) -> None:
    entry = {"name": "link", "resourceClaimTemplateName": "one"}
    pods = [member(f"p{number}", entry) for number in range(3)]
    code, answer = explain([slices("n1", "A"), group(3, resourceClaims=[entry]), *pods], "podgroup/ring")
    assert code == 0 and {one["devices"][0]["device"] for one in answer["placements"]} == {"d0"}
    assert any("several pods share claim ring-link" in note for note in answer["notes"])
    code, answer = explain([slices("n1", "A"), group(3), *pods], "podgroup/ring")
    assert code == 1, "without the group's claim each pod needs a device"


def test_a_shared_claim_keeps_its_pods_on_one_node(explain: Run) -> None:
    shared = {"apiVersion": API, "kind": "ResourceClaim", **claim(make_request(), name="common")}
    entries = [{"name": "common", "resourceClaimName": "common"}, {"name": "one", "resourceClaimTemplateName": "one"}]
    pods = [member(f"p{number}", *entries) for number in range(3)]
    code, answer = explain([slices("n1", "AAA"), slices("n2", "AAA"), shared, group(3), *pods], "podgroup/ring")
    assert code == 1 and answer["placed"] == 2 and len({one["node"] for one in answer["placements"]}) == 1
    code, answer = explain([slices("n1", "AAA"), slices("n2", "AAAA"), shared, group(3), *pods], "podgroup/ring")
    assert code == 1 and answer["search"]["found"] and "choice of nodes" in answer["search"]["differs"]


def test_a_claim_has_at_most_256_pods(explain: Run) -> None:
    common = {"name": "common", "resourceClaimName": "common"}
    shared = {"apiVersion": API, "kind": "ResourceClaim", **claim(make_request(), name="common")}
    body = job("many", 257)
    body["spec"]["template"]["spec"]["resourceClaims"] = [common]
    code, answer = explain([slices("n1", "A"), shared], body)
    assert code == 1
    assert answer["summary"] == "claim default/common can be reserved for 256 more of 256 pods, 257 use it"
    body["spec"]["parallelism"] = 256
    assert explain([slices("n1", "A"), shared], body)[0] == 0


KEY = "any.deviceclass.resource.k8s.io/devices"


def quota(hard: int, used: int) -> Json:
    metadata = {"name": "gpus", "namespace": "default"}
    status = {"hard": {KEY: str(hard)}, "used": {KEY: str(used)}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "status": status}


def test_a_quota_that_lacks_devices_for_all_pods_is_named(explain: Run) -> None:
    cluster = [slices("n1", "AAAA")]
    code, answer = explain([*cluster, quota(4, 2)], job("train", 3, "one"))
    assert code == 1
    assert answer["summary"] == f"quota gpus allows 4 of {KEY}, 2 are used, and the pods need 3"
    assert explain([*cluster, quota(5, 2)], job("train", 3, "one"))[0] == 0
    pods = [member(f"p{number}") for number in range(3)]
    code, answer = explain([*cluster, quota(4, 2), group(2), *pods], "podgroup/ring")
    assert code == 0 and any("quota gpus allows 4" in note for note in answer["notes"]), "two pods are enough"


def test_a_workload_whose_pods_do_not_run_now_has_a_note(explain: Run) -> None:
    body = job("train", 1, "one")
    body["spec"]["suspend"] = True
    _, answer = explain([slices("n1", "A")], body)
    assert "it is suspended: its pods are created when it is resumed" in answer["notes"]
    jobs = job_set(first=(1, "one"), second=(1, "one"))
    jobs["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "first", "status": "Complete"}]
    _, answer = explain([slices("n1", "A")], jobs)
    assert (
        "replicated Job second starts when others are complete; it is placed as if all run together" in answer["notes"]
    )


@pytest.mark.parametrize(
    ("asked", "kind"),
    [(job("train", 4, "one"), "Complete"), (job("train", 4, "one"), "Failed"), (job_set(a=(4, "one")), "Completed")],
)
def test_a_workload_that_has_ended_waits_for_nothing(explain: Run, asked: Json, kind: str) -> None:
    ended = [{"type": kind, "status": "True", "reason": "Ended", "message": "its message"}]
    cluster = [node("n1"), slices("n1", "a")]
    code, answer = explain(cluster, {**asked, "status": {"conditions": ended}})
    assert code == 0 and answer["members"] == 0
    assert answer["summary"] == f"has ended ({kind}: its message); no pod waits for a node; 0 have one"
    ended[0]["status"] = "False"
    code, answer = explain(cluster, {**asked, "status": {"conditions": ended}})
    assert code == 1 and answer["members"] == 4


LABELS = {"a": "b"}


def existing(name: str, labels: Json, phase: str = "Running") -> list[Json]:
    """Return a pod of the cluster that has, or had, device d0 of node n1."""
    entry = {"name": "one", "resourceClaimTemplateName": "one"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"containers": [{"name": "c"}], "resourceClaims": [entry], "nodeName": "n1"},
        "status": {"phase": phase, "resourceClaimStatuses": [{"name": "one", "resourceClaimName": "held"}]},
    }
    held = {"apiVersion": API, "kind": "ResourceClaim", **allocated_claim("held", {"pool": "n1", "device": "d0"})}
    return [pod, held] if phase == "Running" else [pod]


def of_kind(version: str, kind: str, spec: Json, status: Json, **metadata: Any) -> Json:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "w", "namespace": "default", **metadata},
        "spec": spec,
        "status": status,
    }


ONE_JOB = {"parallelism": 1, "completions": 1, "template": pod_template("one")}
EXPRESSIONS = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
OF_JOB_SET = {"jobset.sigs.k8s.io/jobset-name": "w", "jobset.sigs.k8s.io/replicatedjob-name": "r"}


@pytest.mark.parametrize(
    ("workload", "labels"),
    [
        (
            of_kind(
                "batch/v1",
                "Job",
                {"parallelism": 3, "selector": {"matchLabels": LABELS}, "template": pod_template("one")},
                {"succeeded": 1, "active": 1},
            ),
            LABELS,
        ),
        (
            of_kind(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                {"replicatedJobs": [{"name": "r", "replicas": 2, "template": {"spec": ONE_JOB}}]},
                {"replicatedJobsStatus": [{"name": "r", "succeeded": 1, "active": 1}]},
            ),
            OF_JOB_SET,
        ),
        (
            of_kind(
                "kueue.x-k8s.io/v1beta2",
                "Workload",
                {"podSets": [{"name": "main", "count": 2, "template": pod_template("one")}]},
                {
                    "conditions": [{"type": "Admitted", "status": "True"}],
                    "reclaimablePods": [{"name": "main", "count": 1}],
                },
                ownerReferences=[{"kind": "Job", "name": "train"}],
            ),
            {"batch.kubernetes.io/job-name": "train"},
        ),
    ],
    ids=lambda one: str(one.get("kind", "")),
)
def test_pods_that_have_ended_are_not_created_again(explain: Run, workload: Json, labels: Json) -> None:
    cluster = [slices("n1", "A"), workload, *existing("run", labels), *existing("done", labels, "Succeeded")]
    code, answer = explain(cluster, f"{workload['kind'].lower()}/w")
    assert code == 0 and (answer["members"], answer["running"]) == (1, 1)
    assert answer["summary"] == "no pod waits for a node; 1 has one"


def test_pods_are_found_by_the_expressions_of_a_selector(explain: Run) -> None:
    spec = {"replicas": 1, "selector": EXPRESSIONS, "template": pod_template("one")}
    workload = of_kind("apps/v1", "Deployment", spec, {})
    others = existing("other", {"a": "c"}, "Pending")
    code, answer = explain([slices("n1", "A"), workload, *existing("run", LABELS), *others], "deployment/w")
    assert code == 0 and (answer["members"], answer["running"]) == (1, 1)
    assert not any("is not known" in note for note in answer["notes"] if "pods" in note)


def test_a_job_that_names_a_pod_group_needs_what_the_group_needs(explain: Run) -> None:
    body = job("train", 3, "one", schedulingGroup={"podGroupName": "ring"})
    assert explain([slices("n1", "AA")], body, group(2))[0] == 0
    assert explain([slices("n1", "AA")], body, group(3))[0] == 1
    _, answer = explain([slices("n1", "AA")], body)
    assert "pod group ring is not known; all pods are needed" in answer["notes"]
    code, answer = explain([slices("n1", "AAA"), group(3)], body)
    assert code == 0 and answer["needed"] == 3


def test_pods_of_a_job_name_the_group_that_its_controller_created(explain: Run) -> None:
    """The template of the Job names no group (WorkloadWithJob); without the group, all pods would be needed."""
    labels = {"batch.kubernetes.io/job-name": "train"}
    body = job("train", 3, "one")
    body["spec"] |= {"selector": {"matchLabels": labels}, "scheduling": {"schedulingPolicy": {"gang": {}}}}
    pods = [member(f"p{number}") for number in range(3)]
    for one in pods:
        one["metadata"]["labels"] = labels
    cluster = [slices("n1", "AA"), body, *pods]
    code, answer = explain([*cluster, group(2)], "job/train")
    assert code == 0 and (answer["needed"], answer["members"]) == (2, 3)
    assert any("spec.scheduling is evaluated by the pod group" in note for note in answer["notes"])
    assert explain([*cluster, group(3)], "job/train")[0] == 1


def kueue(**sets: tuple[int, str]) -> Json:
    entries = [{"name": name, "count": pods, "template": pod_template(one)} for name, (pods, one) in sets.items()]
    metadata = {"name": "job-train", "namespace": "default"}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": metadata,
        "spec": {"podSets": entries},
    }


def test_the_pod_sets_of_a_workload_are_placed_together(explain: Run) -> None:
    cluster = [slices("n1", "AB"), kueue(any=(1, "one"), special=(1, "only-a"))]
    for words in (("workload/job-train",), ("wl", "job-train"), ("workloads.kueue.x-k8s.io/job-train",)):
        code, answer = explain(cluster, *words)
        assert code == 1 and answer["search"]["order"][0] == {"kind": "special", "members": 1}
        assert answer["quotes"][0]["missing"] == "Kueue has not written a condition yet"


def test_several_pods_of_a_file_are_placed_together(explain: Run) -> None:
    code, answer = explain([slices("n1", "A")], member("p0"), member("p1"))
    assert code == 1 and answer["subject"] == "2 pods of asked.json" and answer["placed"] == 1


def test_a_pod_of_a_file_is_explained_on_each_node(
    explain: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain([slices("n1", "A")], job("x", 1, "one"))[0] == 0
    write("pod.json", member("p0"))
    assert main(["explain", "-f", "pod.json", "--from", "cluster.json"]) == 0
    assert "pod default/p0: its devices are free on node n1" in capsys.readouterr().out
    write("cluster.json", CLASS, *TEMPLATES, slices("n1", "A"), member("p0"))
    assert main(["explain", "pod/p0", "--from", "cluster.json"]) == 0
    assert "pod default/p0: its devices are free on node n1" in capsys.readouterr().out
    # The flags for claims name files of a cluster too.
    assert main(["explain", "-f", "pod.json", "--slices", "cluster.json"]) == 0


def test_names_are_those_of_the_kinds_of_pods(explain: Run, capsys: pytest.CaptureFixture[str]) -> None:
    explain([slices("n1", "AB")], job_set(any=(1, "one"), special=(1, "only-a")))
    main(["explain", "-f", "asked.json", "--from", "cluster.json", "-o", "name"])
    assert capsys.readouterr().out == "any\nspecial\n"


def test_lines_fit_a_terminal_of_80_columns(
    explain: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = [slices(f"node-with-a-long-name-{number}", "AB") for number in range(8)]
    explain(cluster, job_set(any=(9, "one"), special=(8, "only-a")))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("dra_agent.cli.terminal.is_terminal", lambda: True)
    main(["explain", "-f", "asked.json", "--from", "cluster.json", *TIMEOUT])
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index("") :]
    assert len(table) > 5 and all(len(line) <= 80 for line in table if not line.startswith(("claim ", "request ")))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({**job("x", 1), "spec": {}}, "Job x has no pod template"),
        (job("x", -1, "one"), "Job x: parallelism is not a whole number from 0 to 2147483647; correct the field"),
        (job("x", 1 << 31, "one"), "Job x: parallelism is not a whole number from 0 to 2147483647"),
        (with_field(job("x", 1, "one"), "completions", -1), "Job x: completions is not a whole number"),
        (job_set(many=(-2, "one")), "Job many of JobSet set: parallelism is not a whole number from 0 to"),
        (kueue(main=(-2, "one")), "pod set main of Workload"),
        (job_set(many=(100_000, "one")), "JobSet default/set has 100000 pods, more than 10000 are not evaluated"),
        ({**group(1), "apiVersion": "scheduling.x-k8s.io/v1alpha1"}, "is not one of scheduling.k8s.io"),
        ({**kueue(a=(1, "one")), "apiVersion": "scheduling.k8s.io/v1beta1"}, "is not one of kueue.x-k8s.io"),
        ({**kueue(), "spec": {"podSets": [{"name": "a"}]}}, "pod set a of Workload job-train has no pod template"),
        ({**kueue(), "spec": {"podSets": [{"count": "1", "template": {}}]}}, "count is not a whole number"),
    ],
)
def test_an_object_that_cannot_be_explained_has_one_message(
    explain: Run, broken: Json, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    explain([slices("n1", "A")], job("x", 1, "one"))
    write("broken.json", broken)
    assert main(["explain", "-f", "broken.json", "--from", "cluster.json"]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == "" and len(printed.err.splitlines()) == 1


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "9" * 5000, "-" + "9" * 5000, "0o" + "7" * 5000, "1" + "0" * 30])
def test_numbers_that_python_cannot_print_have_one_message(
    explain: Run, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    explain([slices("n1", "A")], job("x", 1, "one"))
    for kind, field in (("json", "parallelism"), ("yaml", "parallelism"), ("yaml", "completions")):
        if kind == "json" and not number.removeprefix("-").isdecimal():
            continue
        text = json.dumps(with_field(job("x", 1, "one"), field, 4711)).replace("4711", number)
        Path(f"large.{kind}").write_text(text if kind == "json" else f"# YAML\n{text}")
        assert main(["explain", "-f", f"large.{kind}", "--from", "cluster.json", *TIMEOUT]) == 2
        error = capsys.readouterr().err
        assert f"Job x: {field} is not a whole number from 0 to 2147483647" in error and len(error) < 500


def test_a_minimum_of_a_group_that_is_none_is_named(explain: Run) -> None:
    pods = [member(f"p{number}") for number in range(3)]
    code, answer = explain([slices("n1", "A"), group(-1), *pods], "podgroup/ring")
    assert code == 1 and answer["summary"] == "pod group ring has minCount -1, and needs at least 1"


def test_a_claim_that_is_allocated_elsewhere_is_named_with_its_devices(explain: Run) -> None:
    held = {"apiVersion": API, "kind": "ResourceClaim", **allocated_claim("shared", {"pool": "n1", "device": "d0"})}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    held["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    asked = job("x", 1)
    asked["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "shared"}]
    cluster = [node("n1", unschedulable=True), node("n2"), slices("n1", "A"), slices("n2", "A"), held]
    code, answer = explain(cluster, asked)
    reason = f"claim default/shared is allocated on another node: {DRIVER}/n1/d0"
    assert code == 1 and answer["failure"]["node"] == "n2" and answer["failure"]["reason"] == reason


def test_claims_are_not_explained_in_a_dump(explain: Run, capsys: pytest.CaptureFixture[str]) -> None:
    explain([slices("n1", "A")], job("x", 1, "one"))
    write("claim.json", TEMPLATES[0])
    assert main(["explain", "-f", "claim.json", "--from", "cluster.json"]) == 2
    assert "give the cluster with --slices and --classes, or a pod that uses the claims" in capsys.readouterr().err
    assert main(["explain", "job/absent", "--from", "cluster.json"]) == 2
    assert "there is no job absent in namespace default" in capsys.readouterr().err


@pytest.fixture
def cluster(fake_api: FakeApi) -> FakeApi:
    """A node with two devices, and a Job of three pods of which one runs and one waits."""
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    for one in (CLASS, slices("n1", "AA"), node("n1")):
        fake_api.put(f"{one['kind'].lower()}{'es' if one is CLASS else 's'}", one)
    for one in TEMPLATES:
        fake_api.put("resourceclaimtemplates", one)
    body = job("train", 3, "one")
    body["metadata"]["namespace"] = "default"
    body["spec"]["selector"] = {"matchLabels": {"job": "train"}}
    fake_api.put("jobs", body)
    fake_api.put("resourceclaims", allocated_claim("train-x-one", {"pool": "n1", "device": "d0"}))
    for name, spec in (("train-x", {"nodeName": "n1"}), ("train-y", {})):
        created = member(name, **spec)
        created["metadata"]["labels"] = {"job": "train"}
        del created["spec"]["schedulingGroup"]
        fake_api.put("pods", created)
    return fake_api


@pytest.mark.parametrize("plugin", [False, True])
def test_a_job_of_the_cluster_is_explained(
    cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], plugin: bool
) -> None:
    from dra_cluster.cli.kubectl_plugin import main as plugin_main

    path = str(cluster.kubeconfig(tmp_path / "kubeconfig"))
    run = plugin_main if plugin else main
    assert run(["explain", "job/train", "--kubeconfig", path, "-o", "json", *TIMEOUT]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["members"], answer["running"], answer["placed"]) == (3, 1, 1)
    assert answer["placements"][0]["member"] == "train-y" and answer["failure"]["member"] == "train-2"
    assert run(["explain", "job/absent", "--kubeconfig", path]) == 2
    assert "there is no job absent in namespace default" in capsys.readouterr().err
    assert run(["explain", "jobset/absent", "--kubeconfig", path]) == 2
    cluster.fail(403, methods="GET", path="/jobs/train", times=None)
    assert run(["explain", "jobs.batch", "train", "--kubeconfig", path]) == 1
    assert "there is no job train in namespace default that can be read: cannot get jobs train" in (
        capsys.readouterr().err
    )
    assert {request.method for request in cluster.requests} == {"GET"}


@pytest.mark.parametrize("is_old", [False, True])
def test_a_pod_group_of_the_cluster_is_explained(
    cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_old: bool
) -> None:
    """Kubernetes 1.36 has the kind in v1alpha2."""
    cluster.put("podgroups", group(3))
    for name in ("p0", "p1", "p2"):
        cluster.put("pods", member(name))
    if is_old:
        cluster.fail(404, methods="GET", path="/scheduling.k8s.io/v1beta1/", times=None)
    path = str(cluster.kubeconfig(tmp_path / "kubeconfig"))
    assert main(["explain", "podgroup/ring", "--kubeconfig", path, "-o", "json", *TIMEOUT]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["needed"], answer["placed"], answer["failure"]["member"]) == (3, 1, "p1")

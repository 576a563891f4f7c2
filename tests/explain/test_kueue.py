"""`dra-agent explain` of objects that Kueue manages: what Kueue recorded is quoted, and nothing of it is computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cli.main import main
from dra_cluster.explain import kueue
from explain.test_gang import CLASS, TEMPLATES, TIMEOUT, Run, explain, job, member, node, pod_template, slices
from fake_apiserver.fake import FakeApi

__all__ = ["explain"]
Json = dict[str, Any]
NOW = "2026-11-29T12:00:00Z"
LEFT_OUT = "not evaluated: Kueue's quota, flavors and topology"
QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
CLUSTER = (node("n1"), slices("n1", "AAAA"))


def condition(kind: str, status: str, reason: str, message: str, since: str = "2026-11-29T11:57:00Z") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


WAITS = condition("QuotaReserved", "False", "WaitingForQuota", "insufficient unused quota for whole-gpus")
RESERVED = condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue team")
ADMITTED = condition("Admitted", "True", "Admitted", "The workload is admitted")
FINISHED = condition("Finished", "True", "Succeeded", "Job finished successfully")


def workload(*conditions: Json, owner: tuple[str, str] = ("Job", "train"), uid: str = "", **status: Any) -> Json:
    reference = {"kind": owner[0], "name": owner[1], **({"uid": uid} if uid else {})}
    metadata = {"name": f"job-{owner[1]}-1", "namespace": "default", "ownerReferences": [reference]}
    entry = {"name": "main", "count": 2, "template": pod_template("one")}
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata}
    return {**head, "spec": {"podSets": [entry]}, "status": {"conditions": list(conditions), **status}}


def managed(value: Json, **metadata: Any) -> Json:
    return {**value, "metadata": {"namespace": "default", **value["metadata"], "labels": QUEUE, **metadata}}


TRAIN = managed(job("train", 2, "one"))


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.cli.age.wall_now", lambda: datetime.fromisoformat(NOW))


@pytest.mark.parametrize("asked", ["job/train", "workload/job-train-1"])
def test_conditions_are_quoted_with_their_age(explain: Run, asked: str) -> None:
    code, answer = explain([*CLUSTER, TRAIN, workload(WAITS)], asked)
    assert code == 1 and answer["summary"] == "is not admitted by Kueue; devices: all 2 pods can be placed on 1 node"
    line = "QuotaReserved is False for 3m (WaitingForQuota): insufficient unused quota for whole-gpus"
    assert f"\nWorkload job-train-1: {line}\n{LEFT_OUT}\n" in answer["text"]
    (quoted,) = answer["quotes"]
    assert (quoted["kind"], quoted["name"], quoted["missing"]) == ("Workload", "job-train-1", None)
    assert quoted["conditions"][0]["last_transition_time"] == "2026-11-29T11:57:00Z"


def test_an_admitted_workload_is_about_devices_only(explain: Run) -> None:
    code, answer = explain([*CLUSTER, TRAIN, workload(RESERVED, ADMITTED)], "job/train")
    assert code == 0 and answer["summary"] == "all 2 pods can be placed on 1 node"
    assert "Workload job-train-1: Admitted is True for 3m (Admitted): The workload is admitted" in answer["text"]


def test_a_finished_workload_waits_for_nothing(explain: Run) -> None:
    evicted = condition("Admitted", "False", "NoReservation", "The workload has no reservation")
    code, answer = explain([*CLUSTER, workload(evicted, FINISHED)], "workload/job-train-1")
    assert code == 0 and answer["summary"].startswith("has ended (Finished: Job finished successfully)")


def test_admission_checks_are_quoted_with_their_states(explain: Run) -> None:
    check = {"name": "capacity", "state": "Pending", "message": "no machine yet", "lastTransitionTime": NOW}
    code, answer = explain([*CLUSTER, TRAIN, workload(RESERVED, admissionChecks=[check])], "job/train")
    assert code == 1 and "admission check capacity is Pending for 0s: no machine yet" in answer["text"]


def test_a_workload_without_conditions_says_so(explain: Run) -> None:
    code, answer = explain([*CLUSTER, TRAIN, workload()], "job/train")
    assert code == 1 and "Workload job-train-1: Kueue has not written a condition yet" in answer["text"]


@pytest.mark.parametrize("time", ["soon", "2026-11-29", ""])
def test_a_time_that_is_none_has_no_age(explain: Run, time: str) -> None:
    _, answer = explain([*CLUSTER, TRAIN, workload({**WAITS, "lastTransitionTime": time})], "job/train")
    assert "QuotaReserved is False (WaitingForQuota)" in answer["text"]


def pod(name: str = "p0", owner: tuple[str, str] | None = None, **metadata: Any) -> Json:
    value = member(name)
    del value["spec"]["schedulingGroup"]
    references = [] if owner is None else [{"kind": owner[0], "name": owner[1], "uid": "uid-owner"}]
    return managed(value, ownerReferences=references, **metadata)


@pytest.mark.parametrize(
    ("waiting", "recorded"),
    [
        (pod(owner=("Job", "train")), workload(WAITS)),
        (pod(), workload(WAITS, owner=("Pod", "p0"))),
        (pod(annotations={"kueue.x-k8s.io/pod-group-name": "job-ring-1"}), workload(WAITS, owner=("Pod", "ring"))),
        (pod(annotations={"kueue.x-k8s.io/workload": "job-ring-1"}), workload(WAITS, owner=("Pod", "ring"))),
    ],
    ids=["of a Job", "alone", "of a group", "with an annotation"],
)
def test_the_workload_of_a_pod_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], waiting: Json, recorded: Json
) -> None:
    items = [CLASS, *TEMPLATES, *CLUSTER, waiting, recorded, workload(ADMITTED, owner=("Pod", "other"))]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert main(["explain", "pod/p0", "--from", str(path), *TIMEOUT]) == 0
    text = capsys.readouterr().out
    name = recorded["metadata"]["name"]
    assert f"Workload {name}: QuotaReserved is False for 3m (WaitingForQuota)" in text and LEFT_OUT in text
    assert "job-other-1" not in text


@pytest.mark.parametrize("kind", ["JobSet", "Job"])
def test_the_workload_of_a_job_set_is_that_of_its_jobs_and_pods(explain: Run, kind: str) -> None:
    recorded = workload(WAITS, owner=("JobSet", "train"))
    of_set = managed(job("train-a-0", 2, "one"), ownerReferences=[{"kind": "JobSet", "name": "train", "uid": "u"}])
    entries = [{"name": "a", "template": {"spec": job("x", 2, "one")["spec"]}}]
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "train"}}
    whole = managed({**head, "spec": {"replicatedJobs": entries}})
    asked = {"JobSet": "jobset/train", "Job": "job/train-a-0"}[kind]
    _, answer = explain([*CLUSTER, of_set, whole, recorded], asked)
    assert [one["name"] for one in answer["quotes"]] == ["job-train-1"]


def test_a_job_that_was_created_again_has_not_the_workload_of_the_earlier_one(explain: Run) -> None:
    again = managed(job("train", 2, "one"), uid="new")
    code, answer = explain([*CLUSTER, again, workload(ADMITTED, uid="old")], "job/train")
    assert code == 0 and [one["name"] for one in answer["quotes"]] == [None]
    assert "Workload: Kueue has not created a Workload for it yet" in answer["text"]


def test_each_pod_of_a_deployment_has_its_own_workload(explain: Run) -> None:
    labels = {"app": "serve"}
    template = {**pod_template("one"), "metadata": {"labels": QUEUE}}
    spec = {"replicas": 7, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "serve", "namespace": "default"}
    serve = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    pods = [pod(f"p{number}") for number in range(7)]
    for one in pods:
        one["metadata"]["labels"] = {**QUEUE, **labels}
    recorded = [workload(ADMITTED if number else WAITS, owner=("Pod", f"p{number}")) for number in range(7)]
    code, answer = explain([node("n1"), slices("n1", "A" * 7), serve, *pods, *recorded], "deployment/serve")
    assert code == 1 and answer["summary"].startswith("is not admitted by Kueue as a whole; devices: all 7 pods")
    assert len(answer["quotes"]) == kueue.MAX_QUOTES + 1
    assert answer["quotes"][-1]["missing"] == "2 more Workloads of its pods are not quoted"


def test_pods_of_a_native_pod_group_are_quoted(explain: Run) -> None:
    metadata = {"name": "ring", "namespace": "default"}
    group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": {}}
    pods = [managed(member(f"p{number}"), annotations={"kueue.x-k8s.io/workload": "job-ring-1"}) for number in (0, 1)]
    code, answer = explain([*CLUSTER, group, *pods, workload(WAITS, owner=("Pod", "ring"))], "podgroup/ring")
    assert code == 1 and [one["name"] for one in answer["quotes"]] == ["job-ring-1"]


@pytest.mark.parametrize("marked", [True, False])
def test_without_workloads_only_an_object_of_kueue_is_about_it(explain: Run, marked: bool) -> None:
    code, answer = explain([*CLUSTER, TRAIN if marked else job("train", 2, "one")], "job/train")
    assert code == 0
    assert ("Workload: the files have no Workload of Kueue" in answer["text"]) == marked
    assert (LEFT_OUT in answer["text"]) == marked == bool(answer["quotes"])


def test_capacity_leaves_quota_out(explain: Run, capsys: pytest.CaptureFixture[str]) -> None:
    explain(
        [*CLUSTER, pod(), {**pod("free"), "metadata": {"name": "free", "namespace": "default"}}], job("x", 1, "one")
    )
    for name, is_noted in (("p0", True), ("free", False)):
        assert main(["capacity", f"pod/{name}", "--from", "cluster.json"]) == 0
        assert (LEFT_OUT in capsys.readouterr().out) == is_noted


# An API server.

Ask = Callable[..., tuple[int, Json]]


@pytest.fixture
def ask(fake_api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Explain an object of an API server with these objects."""
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    for one in (CLASS, *TEMPLATES, *CLUSTER):
        fake_api.put(f"{one['kind'].lower()}{'es' if one['kind'].endswith('s') else 's'}", one)

    def run(*objects: Json, asked: str = "job/train") -> tuple[int, Json]:
        for one in objects:
            fake_api.put(f"{one['kind'].lower()}s", one)
        code = main(["explain", asked, "--kubeconfig", str(path), *TIMEOUT, "-o", "json"])
        captured = capsys.readouterr()
        assert "internal error" not in captured.err
        return code, json.loads(captured.out) if captured.out else {"error": captured.err}

    return run


def quoted(answer: Json) -> list[tuple[str | None, str | None]]:
    return [(one["name"], one["missing"]) for one in answer["quotes"]]


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("asked", ["job/train", "workload/job-train-1", "pod/p0"])
def test_workloads_of_an_api_server(fake_api: FakeApi, ask: Ask, asked: str, is_old: bool) -> None:
    if is_old:
        fake_api.fail(404, times=None, path="/v1beta2/")
    _, answer = ask(TRAIN, workload(WAITS), pod(owner=("Job", "train")), asked=asked)
    assert quoted(answer) == [("job-train-1", None)]
    assert not fake_api.writes()


def test_a_server_without_kueue_is_not_one_without_a_workload(fake_api: FakeApi, ask: Ask) -> None:
    assert quoted(ask(TRAIN)[1]) == [(None, "Kueue has not created a Workload for it yet")]
    fake_api.fail(404, times=None, path="/workloads")
    code, answer = ask(TRAIN)
    assert code == 0 and quoted(answer) == [(None, "the API server has no workloads of Kueue")]


def test_workloads_that_may_not_be_listed_are_not_called_absent(fake_api: FakeApi, ask: Ask) -> None:
    fake_api.fail(403, times=None, path="/workloads")
    code, answer = ask(TRAIN, workload(WAITS))
    ((name, missing),) = quoted(answer)
    assert code == 0 and name is None
    assert missing is not None and missing.startswith("cannot list workloads of Kueue in namespace default: ")
    assert not ask(job("free", 1, "one") | {"metadata": {"name": "free", "namespace": "default"}}, asked="job/free")[1][
        "quotes"
    ]


def test_a_list_without_end(fake_api: FakeApi, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kueue, "MAX_WORKLOADS", 1)
    page = json.dumps(
        {"metadata": {"continue": "more"}, "items": [workload(WAITS), workload(WAITS, owner=("Job", "x"))]}
    )
    fake_api.fail(200, times=None, path="/workloads", body=page)
    ((_, missing),) = quoted(ask(TRAIN)[1])
    assert missing is not None and "there are more than 1 objects" in missing


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


FULL = workload(WAITS, FINISHED, admissionChecks=[{"name": "c", "state": "Pending", "message": "m"}], uid="u")


@pytest.mark.parametrize("asked", ["job/train", "workload/job-train-1"])
def test_wrong_types_from_an_api_server(fake_api: FakeApi, ask: Ask, asked: str) -> None:
    """The server responds with a Workload that has another type in one place; there is never an internal error."""
    ask(TRAIN, FULL)
    for number, path in enumerate(_parts(FULL)):
        if path in ((), ("metadata",), ("metadata", "name"), ("metadata", "namespace")):
            continue
        broken = _with(FULL, path, ([7], {"x": [7]}, 7, None)[number % 4])
        body = json.dumps(broken if asked.startswith("w") else {"metadata": {}, "items": [broken]})
        fault = fake_api.fail(200, times=None, path="/workloads", body=body)
        ask(asked=asked)
        fake_api.faults.lift(fault)

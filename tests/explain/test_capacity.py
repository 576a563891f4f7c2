"""`dra-agent capacity` on files: pods, claims, templates, changes, output, exit codes and invalid input."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import allocated_claim, claim, device, make_request, slice_of
from dra_agent.cli.main import main
from dra_agent.cluster import Cluster
from dra_cluster.cli import capacity_nodes
from dra_cluster.cli.capacity_nodes import node_source
from dra_cluster.explain.capacity import capacity, copy_of_pod
from dra_cluster.explain.snapshot import Snapshot

Json = dict[str, Any]
Command = Callable[..., tuple[int, str, str]]
API = "resource.k8s.io/v1"
CLASS: Json = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
TEMPLATE: Json = {
    "apiVersion": API,
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {"spec": claim(make_request())["spec"]},
}


def node(name: str, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"name": name}}, "spec": spec}


def slices(name: str, count: int, *, first: int = 0) -> Json:
    entry = slice_of(
        *(device(f"d{i}") for i in range(first, first + count)), name=name, pool=f"{name}/gpu", nodeName=name
    )
    return {"apiVersion": API, "kind": "ResourceSlice", **entry}


def pod_spec(*claims: Json, **spec: Any) -> Json:
    return {"containers": [{"name": "c"}], "resourceClaims": list(claims), **spec}


NAMES = ("added-1", "added-2", "added-3")
OWN = {"name": "own", "resourceClaimTemplateName": "one"}
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": pod_spec(OWN),
}
TAINT = {"key": "team", "value": "b", "effect": "NoSchedule"}
HELD = {**allocated_claim("held", {"pool": "n1/gpu", "device": "d0"}), "spec": claim(make_request())["spec"]}
CLUSTER = [
    CLASS,
    TEMPLATE,
    POD,
    *(node(name) for name in ("n1", "empty")),
    node("off", unschedulable=True),
    node("other", taints=[TAINT]),
    *(slices(name, count) for name, count in (("n1", 4), ("off", 2), ("other", 2))),
    {"apiVersion": API, "kind": "ResourceClaim", **HELD},
    # A dump has much that does not concern devices.
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}},
]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    write(CLUSTER, "cluster.json")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["capacity", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def write(objects: list[Json], name: str) -> None:
    Path(name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def counts(text: str) -> dict[str, int]:
    return {row["node"]: row["copies"] for row in json.loads(text)["nodes"]}


def test_each_node_has_its_copies_and_what_limits_them(command: Command) -> None:
    code, text, _ = command("pod/train", "--from", "cluster.json")
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "pod default/train: 3 more fit on 1 of 4 nodes, at most 3 on one"
    assert any(line.startswith("note: not considered: CPU, memory") for line in lines)
    rows = [line.split(maxsplit=2) for line in lines[lines.index("") + 2 :]]
    assert [(name, copies) for name, copies, _ in rows] == [("empty", "0"), ("n1", "3"), ("off", "0"), ("other", "0")]
    assert "the node is cordoned" in rows[2][2]
    assert "the pod does not tolerate the node's taint team=b:NoSchedule" in rows[3][2]
    assert "3 used by these copies, 1 in use" in rows[1][2]
    assert command("pod/train", "--from", "cluster.json", "-o", "name")[1] == "n1\n"


@pytest.mark.parametrize(
    "words", [("claim/held",), ("held",), ("template", "one"), ("resourceclaimtemplate/default/one",)]
)
def test_claims_and_templates_are_counted_as_further_ones(command: Command, words: tuple[str, ...]) -> None:
    code, text, _ = command(*words, "--from", "cluster.json", "-o", "json")
    assert code == 0 and counts(text) == {"n1": 3, "empty": 0, "off": 0, "other": 0}


def test_changes_are_applied_in_their_order(command: Command) -> None:
    changes = ["uncordon=off", "untaint=team:other", "delete-claim=default/held", "add=2:n1.json", "cordon=added-2"]
    write([slices("n1", 5), node("n1")], "n1.json")
    flags = [word for change in changes for word in ("--if", change)]
    code, text, _ = command("pod/train", "--from", "cluster.json", *flags, "-o", "json")
    assert code == 0
    assert counts(text) == {"n1": 4, "empty": 0, "off": 2, "other": 2, "added-1": 5, "added-2": 0}
    result = json.loads(text)
    assert (result["total"], result["largest_on_one_node"], result["changes"]) == (13, 5, changes)


def test_nodes_of_a_simulated_profile_can_be_added(command: Command) -> None:
    gpus = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "gpus"}}
    gpus["spec"] = {"selectors": [{"cel": {"expression": 'device.attributes["dra-agent.internal"].type == "gpu"'}}]}
    wanted = claim(make_request(deviceClassName="gpus"), name="want")
    Path("claim.json").write_text(json.dumps({"apiVersion": API, "kind": "ResourceClaim", **wanted}))
    write([gpus], "classes.json")
    code, text, _ = command("-f", "claim.json", "--from", "classes.json", "--if", "add=3:l40s", "-o", "json")
    assert code == 0 and set(counts(text)) == {"added-1", "added-2", "added-3"}
    assert len(set(counts(text).values())) == 1 and json.loads(text)["total"] % 3 == 0


def test_a_node_can_have_other_devices(command: Command) -> None:
    write([slices("x", 7)], "x.json")
    code, text, _ = command("pod/train", "--from", "cluster.json", "--if", "replace=n1:x.json", "-o", "json")
    assert code == 0 and counts(text) == {"n1": 6, "empty": 0, "off": 0, "other": 0}
    assert not [note for note in json.loads(text)["notes"] if "would not have" in note]


def test_a_claim_whose_device_is_replaced_is_named(command: Command) -> None:
    write([slices("x", 2, first=7)], "x.json")
    code, text, _ = command("pod/train", "--from", "cluster.json", "--if", "replace=n1:x.json")
    assert code == 0 and "2 more fit on 1 of 4 nodes" in text
    assert "note: claim default/held holds d0, which node n1 would not have" in text


def test_partition_rules_of_a_node_can_be_changed(command: Command) -> None:
    rule = '[[inventory.partition]]\nwhen = \'device.attributes["dra-agent.internal"].type == "gpu"\'\nmode = "mig"\n'
    Path("mig.toml").write_text(rule)
    own = 'device.attributes["dra-agent.internal"].?profile.orValue("") == "1g.10gb"'
    parts = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "parts"}}
    wanted = claim(make_request(deviceClassName="parts"), name="want")
    Path("claim.json").write_text(json.dumps({"apiVersion": API, "kind": "ResourceClaim", **wanted}))
    write([{**parts, "spec": {"selectors": [{"cel": {"expression": own}}]}}], "classes.json")
    query = ("-f", "claim.json", "--from", "classes.json", "--if", "add=1:h100-pcie", "-o", "json")
    assert json.loads(command(*query)[1])["total"] == 0
    changed = command(*query, "--if", "replace=added-1:h100-pcie", "--config", "mig.toml")
    assert json.loads(changed[1])["total"] == 28, changed


@pytest.mark.parametrize(("replicas", "code"), [("3", 0), ("4", 1)])
def test_replicas_start_together_or_not(command: Command, replicas: str, code: int) -> None:
    found, text, _ = command("pod/train", "--from", "cluster.json", "--replicas", replicas)
    assert found == code
    assert f"; {replicas} {'start' if code == 0 else 'do not start'} together" in text


def test_a_workload_needs_its_replicas(command: Command) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod_spec(OWN, tolerations=[{"operator": "Exists"}])}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    Path("job.json").write_text(json.dumps({**job, "spec": {"parallelism": 8, "template": template}}))
    code, text, _ = command("-f", "job.json", "--from", "cluster.json")
    assert code == 1
    assert text.startswith("Job default/j: 7 more fit on 3 of 4 nodes, at most 3 on one; 8 do not start together\n")


def job_set(*jobs: Json) -> Json:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "gang"},
        "spec": {"replicatedJobs": list(jobs)},
    }


def replicated(**spec: Any) -> Json:
    return {"template": {"spec": {"template": {"spec": pod_spec(OWN)}, **spec}}}


@pytest.mark.parametrize(
    ("job", "needed"),
    [
        ({"replicas": 2, **replicated(parallelism=2)}, 4),
        (replicated(parallelism=3), 3),
        ({"replicas": 2, **replicated(parallelism=5, completions=1)}, 2),
        (replicated(), 1),
    ],
)
def test_a_job_set_needs_the_pods_of_all_its_jobs(command: Command, job: Json, needed: int) -> None:
    Path("set.json").write_text(json.dumps(job_set(job)))
    code, text, _ = command("-f", "set.json", "--from", "cluster.json", "-o", "json")
    result = json.loads(text)
    assert (result["subject"], result["replicas"], result["total"]) == ("JobSet default/gang", needed, 3)
    assert code == (0 if needed <= 3 else 1)


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([], "JobSet gang has 0 replicated Jobs, only one can be counted"),
        (
            [replicated(), replicated()],
            "JobSet gang has 2 replicated Jobs, only one can be counted; count each of them",
        ),
        ([{"replicas": "2", **replicated()}], "the Job of JobSet gang: replicas is not a whole number"),
        ([replicated(parallelism=True)], "Job of JobSet gang: parallelism is not a whole number"),
        ([{"template": {}}], "Job of JobSet gang has no pod template"),
        ([{"template": {"spec": {"template": []}}}], "spec.replicatedJobs[0].template.spec.template is not an object"),
    ],
)
def test_a_job_set_that_cannot_be_counted_is_refused(command: Command, jobs: list[Json], message: str) -> None:
    Path("set.json").write_text(json.dumps(job_set(*jobs)))
    code, _, error = command("-f", "set.json", "--from", "cluster.json")
    assert code == 2 and message in error


def test_a_named_claim_is_shared_by_all_copies() -> None:
    held = {**HELD, "metadata": {**HELD["metadata"], "name": "held", "namespace": "default"}}
    held["status"] = {**held["status"], "reservedFor": [{"resource": "pods", "name": f"p{i}"} for i in range(250)]}
    snapshot = Snapshot("default", [slices("n1", 4)], [CLASS], [held], [TEMPLATE], [], nodes=[node("n1")])
    pod = {**POD, "spec": pod_spec({"name": "common", "resourceClaimName": "held"})}
    found = capacity(snapshot, copy_of_pod(snapshot, pod))
    assert (found["total"], found["total_is_partial"]) == (6, False)
    assert any("6 more pods can share it" in note for note in found["notes"])
    (row,) = found["nodes"]
    assert (row["copies"], row["at_limit"], row["causes"]) == (6, False, ["consumers"])
    assert row["reason"] == "claim default/held can be reserved for 6 more pods"
    both = {**POD, "spec": pod_spec({"name": "common", "resourceClaimName": "held"}, OWN)}
    assert capacity(snapshot, copy_of_pod(snapshot, both))["total"] == 3


def test_a_claim_that_no_more_pods_can_share_is_the_reason(command: Command) -> None:
    shared = {**HELD, "metadata": {**HELD["metadata"], "name": "held", "namespace": "default"}}
    users = [{"resource": "pods", "name": f"p{number}"} for number in range(256)]
    shared["status"] = {**shared["status"], "reservedFor": users}
    others = [one for one in CLUSTER if one["kind"] not in ("Pod", "ResourceClaim")]
    pod = {**POD, "spec": pod_spec({"name": "common", "resourceClaimName": "held"})}
    write([*others, pod, {"apiVersion": API, "kind": "ResourceClaim", **shared}], "shared.json")
    code, text, _ = command("pod/train", "--from", "shared.json")
    assert code == 1 and text.startswith("pod default/train: fits on none of 4 nodes\n")
    assert "0+" not in text and "the limit of copies" not in text
    (row,) = [line.split(maxsplit=3) for line in text.splitlines() if line.startswith("n1 ")]
    assert row == ["n1", "0", "consumers", "claim default/held can be reserved for no more pods"]


def shares(name: str) -> Json:
    """Return a device that any number of claims can share."""
    entry = slice_of(device("d0", allowMultipleAllocations=True), name=name, pool=f"{name}/gpu", nodeName=name)
    return {"apiVersion": API, "kind": "ResourceSlice", **entry}


def test_as_many_copies_are_counted_as_are_needed(command: Command) -> None:
    write([CLASS, TEMPLATE, POD, node("n1"), shares("n1")], "shares.json")
    query = ("pod/train", "--from", "shares.json", "--limit", "3", "--timeout", "600")
    code, text, _ = command(*query)
    assert code == 0 and text.startswith("pod default/train: at least 3 more fit on 1 of 1 nodes, at most 3 on one\n")
    code, text, _ = command(*query, "--replicas", "7")
    assert code == 0 and "at least 7 more fit on 1 of 1 nodes, at most 7 on one; 7 start together\n" in text


@pytest.mark.parametrize(("replicas", "start"), [("1", "one more fits"), ("9", "9 start together")])
def test_a_partial_total_that_is_too_small_decides_nothing(
    command: Command, monkeypatch: pytest.MonkeyPatch, replicas: str, start: str
) -> None:
    counted = Cluster.capacity
    monkeypatch.setattr(Cluster, "capacity", lambda *given, **others: counted(*given, **{**others, "deadline": 0}))
    write([CLASS, TEMPLATE, POD, node("n1"), slices("n1", 4)], "late.json")
    query = ("pod/train", "--from", "late.json", "--replicas", replicas)
    code, text, _ = command(*query)
    assert code == 1 and f"at least 0 more fit on 0 of 1 nodes, at most 0 on one; whether {start} is not known" in text
    assert json.loads(command(*query, "-o", "json")[1])["fits"] is None


def test_a_running_pod_is_counted_as_a_further_one(command: Command) -> None:
    generated = {**claim(make_request(), name="train-own-x"), "status": HELD["status"]}
    running = {**POD, "spec": {**POD["spec"], "nodeName": "n1"}}
    running["status"] = {"resourceClaimStatuses": [{"name": "own", "resourceClaimName": "train-own-x"}]}
    others = [one for one in CLUSTER if one["kind"] not in ("Pod", "ResourceClaim")]
    write([*others, running, {"apiVersion": API, "kind": "ResourceClaim", **generated}], "running.json")
    code, text, _ = command("pod/train", "--from", "running.json", "-o", "json")
    assert code == 0 and counts(text)["n1"] == 3


def test_many_nodes_with_the_same_result_are_one_row(command: Command) -> None:
    write([CLASS, TEMPLATE, POD, *(slices(f"n{i:04}", 2) for i in range(50))], "many.json")
    code, text, _ = command("pod/train", "--from", "many.json")
    assert code == 0 and "pod default/train: 100 more fit on 50 of 50 nodes" in text
    assert "n0000 and 49 more" in text
    assert "note: cordons, taints and labels of nodes are not known" in text
    assert len(command("pod/train", "--from", "many.json", "-o", "name")[1].splitlines()) == 50


def test_a_pod_whose_template_is_missing_does_not_fit(command: Command) -> None:
    pod = {**POD, "spec": pod_spec({"name": "own", "resourceClaimTemplateName": "gone"})}
    Path("pod.json").write_text(json.dumps(pod))
    code, text, _ = command("-f", "pod.json", "--from", "cluster.json")
    assert code == 1 and "there is no ResourceClaimTemplate default/gone" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cordon=n9", "there is no node n9"),
        ("untaint=none", "no node and no device has the taint none"),
        ("untaint=team:n1", "node n1 and its devices have no taint team"),
        ("delete-claim=a/b", "there is no claim a/b"),
        ("delete-claim=b", "is not a change"),
        ("add=0:l40s", "adds not 1 to 10000 nodes"),
        ("add=99999999999999999999:l40s", "adds not 1 to 10000 nodes"),
        ("add=6000:n1.json --if add=6000:n1.json", "adds 12000 nodes together, at most 10000 can be added"),
        ("add=1:nope", "unknown profile"),
        ("add=1:cluster.json", "has not the slices of exactly one node"),
        ("replace=n1", "is not a change"),
        ("replace=n9:l40s", "there is no node n9"),
        ("replace=n1:nope", "unknown profile"),
        ("replace=n1:cluster.json", "has not the slices of exactly one node"),
        ("remove=n1", "is not a change; write one of cordon=NODE"),
    ],
)
def test_a_change_that_cannot_be_made_is_wrong_use(command: Command, change: str, message: str) -> None:
    code, text, error = command("pod/train", "--from", "cluster.json", "--if", *change.split())
    assert (code, text) == (2, "") and message in error and "internal error" not in error


@pytest.mark.parametrize(
    "broken",
    [
        {**slices("bad", 1), "metadata": {}},
        {**slices("bad", 1), "metadata": None},
        {**slices("bad", 1), "spec": [1]},
        {**slices("bad", 1), "spec": None},
        {**slices("bad", 1), "spec": {"devices": "many"}},
        {**slices("bad", 1), "spec": {"devices": [1]}},
        slices("n1", 1),
        {**slices("bad", 1), "apiVersion": "resource.k8s.io/v1beta1"},
        node("bad", taints="all"),
        node("bad", taints=[1]),
        {**node("bad"), "metadata": {"name": "bad", "labels": [1]}},
        {**CLASS, "metadata": {"name": "any"}, "spec": {"selectors": 1}},
        {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": "x"}, "status": {"allocation": 1}},
        {**POD, "spec": {"resourceClaims": 1}},
        {**POD, "spec": {"resourceClaims": [1]}},
        {**POD, "spec": {"resourceClaims": [{"name": [1], "resourceClaimName": "shared"}]}},
        {**POD, "spec": {"resourceClaims": [{"name": "a", "resourceClaimName": ["shared"]}]}},
        {**node("bad"), "metadata": {"name": ["bad"]}},
        {**slices("bad", 1), "spec": {"nodeName": [1], "pool": {"name": "bad"}, "devices": []}},
    ],
)
def test_a_broken_dump_has_a_clear_message(command: Command, broken: Json) -> None:
    kept = [one for one in CLUSTER if not (one["kind"] == broken["kind"] == "Pod")]
    write([*kept, broken], "broken.json")
    for flags in ([], ["--if", "untaint=team"]):
        code, _, error = command("pod/train", "--from", "broken.json", *flags)
        assert "internal error" not in error
        assert code in (0, 1, 2) and (code == 0 or error), (code, error)


def test_objects_that_several_files_have_are_counted_once(command: Command) -> None:
    gpus = {**CLASS, "spec": {"extendedResourceName": "example.com/gpu"}}
    limits = {"containers": [{"name": "c", "resources": {"limits": {"example.com/gpu": "1"}}}]}
    new = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"}, "spec": limits}
    running = {**new, "metadata": {"name": "old"}, "spec": {**limits, "nodeName": "n1"}, "status": {"phase": "Running"}}
    served = {**node("n1"), "status": {"allocatable": {"example.com/gpu": "3"}}}
    write([gpus, served, running, slices("n1", 1)], "one.json")
    write([running, slices("n1", 1)], "two.json")
    Path("pod.json").write_text(json.dumps(new))
    code, text, _ = command("-f", "pod.json", "--from", "one.json", "two.json", "-o", "json")
    assert code == 0 and counts(text) == {"n1": 2}
    write([slices("n1", 2)], "three.json")
    code, text, error = command("-f", "pod.json", "--from", "one.json", "three.json")
    assert (code, text) == (2, "")
    assert "three.json:1: ResourceSlice n1 is another one than in one.json:1; give the objects of one" in error


def test_a_name_is_one_line(command: Command) -> None:
    """Files can have what no API server permits, and scripts read names by lines."""
    write([CLASS, TEMPLATE, POD, slices("a\nb", 1)], "odd.json")
    assert command("pod/train", "--from", "odd.json", "-o", "name")[:2] == (0, "a\\nb\n")


def test_files_and_objects_are_not_given_at_once(command: Command) -> None:
    assert command("--from", "cluster.json")[0] == 2
    assert command("pod/train", "-f", "cluster.json", "--from", "cluster.json")[0] == 2
    code, _, error = command("-f", "cluster.json", "--from", "cluster.json")
    assert code == 2 and "a Node cannot be counted" in error
    assert "there is no node n9" in command("pod/train", "--from", "cluster.json", "--node", "n9")[2]


@pytest.mark.parametrize(
    ("node_name", "pool", "copies"),
    [
        ("node-1", "node-1/gpu", ["added-1/gpu", "added-2/gpu"]),
        ("node-1", "node-10/gpu", ["node-10/gpu-added-1", "node-10/gpu-added-2"]),
        ("gpu", "gpu/gpus", ["added-1/gpus", "added-2/gpus"]),
        ("n", "nic-pool", ["nic-pool-added-1", "nic-pool-added-2"]),
        ("n", "", ["-added-1", "-added-2"]),
    ],
)
def test_pools_of_added_nodes_have_distinct_names(tmp_path: Path, node_name: str, pool: str, copies: list[str]) -> None:
    spec = {"nodeName": node_name, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "devices": []}
    file = tmp_path / "node.json"
    write([{"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}], str(file))
    added, _ = node_source(argparse.Namespace())(str(file), ["added-1", "added-2"])
    assert [entry["spec"]["pool"]["name"] for entry in added] == copies
    assert [entry["spec"]["nodeName"] for entry in added] == ["added-1", "added-2"]


def test_a_node_can_have_the_devices_of_several_drivers(command: Command) -> None:
    other = slices("n1", 1)
    other["spec"] = {**other["spec"], "driver": "other.example.com"}
    write([slices("n1", 5)], "first.json")
    write([other], "other.json")
    changes = ("--if", "replace=n1:first.json", "--if", "replace=n1:other.json")
    code, text, error = command("pod/train", "--from", "cluster.json", *changes, "-o", "json")
    assert (code, error) == (0, "") and counts(text)["n1"] == 5


def test_a_node_that_is_replaced_by_its_own_slices_keeps_its_pools(command: Command) -> None:
    """Names of pools are free: claims hold devices of a pool whose name has not that of the node."""
    own = slices("n1", 4)
    own["spec"] = {**own["spec"], "pool": {**own["spec"]["pool"], "name": "cards"}}
    held = {**HELD, **allocated_claim("held", {"pool": "cards", "device": "d0"})}
    objects = [CLASS, TEMPLATE, POD, own, {"apiVersion": API, "kind": "ResourceClaim", **held}]
    write(objects, "one.json")
    write([own], "n1.json")
    code, text, _ = command("pod/train", "--from", "one.json", "--if", "replace=n1:n1.json", "-o", "json")
    assert code == 0 and counts(text) == {"n1": 3}
    assert not any("would not have" in note for note in json.loads(text)["notes"])


def test_a_node_that_only_slices_name_is_not_added_again(command: Command) -> None:
    write([CLASS, TEMPLATE, POD, slices("added-1", 2)], "one.json")
    code, text, error = command("pod/train", "--from", "one.json", "--if", "add=1:one.json")
    assert (code, text) == (2, "") and "there is a node added-1 already" in error


def test_added_nodes_have_the_taints_of_the_node_of_the_file(command: Command) -> None:
    """Those of its kind: its cordon and its condition are of that moment."""
    gone = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    team = {"key": "team", "value": "a", "effect": "NoSchedule"}
    recorded = {**node("n1"), "spec": {"unschedulable": True, "taints": [gone, team]}}
    write([slices("n1", 3), recorded], "n1.json")
    query = ("pod/train", "--from", "cluster.json", "-o", "json", "--if", "add=1:n1.json")

    def of_added(*flags: str) -> Json:
        found = json.loads(command(*query, *flags)[1])
        return next(row for row in found["nodes"] if row["node"] == "added-1")

    assert of_added()["reason"] == "the pod does not tolerate the node's taint team=a:NoSchedule"
    assert of_added("--if", "untaint=team:added-1")["copies"] == 3


def test_added_nodes_of_a_profile_share_the_devices_of_one() -> None:
    added, of_kind = node_source(argparse.Namespace(is_plugin=True))("l40s", list(NAMES))
    by_node = {name: [entry["spec"] for entry in added if entry["spec"]["nodeName"] == name] for name in NAMES}
    assert [len(specs) for specs in by_node.values()] == [len(added) // 3] * 3 and of_kind == {}
    first = by_node["added-1"]
    for specs in by_node.values():
        assert all(spec["devices"] is one["devices"] for spec, one in zip(specs, first, strict=True))
    pools = [spec["pool"]["name"] for spec in by_node["added-3"]]
    assert pools == [spec["pool"]["name"].replace("added-1", "added-3") for spec in first]
    assert len({(entry["metadata"]["name"]) for entry in added}) == len(added)


def test_slices_of_added_nodes_keep_their_order(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    spec = {"nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 12}}
    objects = [
        {
            "apiVersion": API,
            "kind": "ResourceSlice",
            "metadata": {"name": f"s{index:02}"},
            "spec": {**spec, "driver": "d.example.com", "devices": [{"name": f"d{index}"}]},
        }
        for index in reversed(range(12))
    ]
    write(objects, str(file))
    added, _ = node_source(argparse.Namespace())(str(file), ["added-1"])
    added.sort(key=lambda entry: str(entry["metadata"]["name"]))
    assert [entry["spec"]["devices"][0]["name"] for entry in added] == [f"d{index}" for index in range(12)]


def test_devices_of_all_added_nodes_together_have_a_limit(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write([slices("n1", 5)], "n1.json")
    monkeypatch.setattr(capacity_nodes, "MAX_ADDED_DEVICES", 99)
    query = ("pod/train", "--from", "cluster.json", "-o", "name")
    changes = ("--if", "add=10:n1.json", "--if", "add=9:n1.json")
    assert command(*query, *changes)[0] == 0
    code, text, error = command(*query, *changes, "--if", "replace=n1:n1.json")
    assert (code, text) == (2, "")
    assert "the nodes of all changes have 100 devices together, at most 99 can be added; add fewer nodes" in error


def test_objects_of_several_namespaces_are_refused(command: Command) -> None:
    """As kubectl does: a pod uses no template of another namespace."""
    pod = {**POD, "metadata": {"name": "train", "namespace": "b"}}
    write([CLASS, TEMPLATE, pod], "mixed.json")
    code, _, error = command("-f", "mixed.json", "--from", "cluster.json")
    assert code == 2 and "mixed.json:1: Pod train is in namespace b, and not in default; give objects of one" in error
    code, _, error = command("-f", "mixed.json", "--from", "cluster.json", "-n", "zz")
    assert code == 2 and "mixed.json:1: ResourceClaimTemplate one is in namespace default, and not in zz" in error


def test_a_list_with_other_items_is_refused(command: Command) -> None:
    Path("list.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": 3}))
    code, _, error = command("pod/train", "--from", "cluster.json", "list.json")
    assert code == 2 and "list.json:1: the items of a List are not a list" in error


def test_a_quota_without_a_status_is_named(command: Command) -> None:
    hard = {"any.deviceclass.resource.k8s.io/devices": "1"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "devices"}, "spec": {"hard": hard}}
    write([quota], "quota.json")
    code, text, _ = command("pod/train", "--from", "cluster.json", "quota.json")
    assert code == 0 and "note: quota devices has no status.hard, and permits everything\n" in text


def test_slices_without_a_node_name_need_the_nodes(command: Command) -> None:
    shared = {"apiVersion": API, "kind": "ResourceSlice", **slice_of(device("d0"), name="all", allNodes=True)}
    write([CLASS, TEMPLATE, POD, shared], "shared.json")
    code, text, _ = command("pod/train", "--from", "shared.json")
    assert code == 1 and "fits nowhere: there is no node\n" in text
    assert "note: no Node is in the files: slices that name no node count on the nodes that other slices name" in text


def test_a_pod_without_a_claim_is_not_limited(command: Command) -> None:
    write([{**POD, "spec": {"containers": [{"name": "c"}]}}], "none.json")
    code, text, _ = command("-f", "none.json", "--from", "cluster.json", "--replicas", "50")
    assert code == 0 and "uses no claim, so devices do not limit it" in text
    answer = json.loads(command("-f", "none.json", "--from", "cluster.json", "-o", "json")[1])
    assert answer["fits"] and answer["total"] is None and answer["problems"] == []
    limits = {"resources": {"limits": {"example.com/fpga": "1"}}}
    write([{**POD, "spec": {"containers": [{"name": "c", **limits}]}}], "fpga.json")
    code, text, _ = command("-f", "fpga.json", "--from", "cluster.json")
    assert code == 1 and "example.com/fpga: not counted" in text

"""Feature gates that the slices of a cluster show to be on, in `explain` and `capacity`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import DRIVER, allocated_claim, claim, device, make_exact, make_request, slice_of
from allocator.gated_cases import rails, reserved
from dra_agent.cli.main import main
from dra_agent.explain.gates import OVERHEAD_NOTE, gates_in_use, have_overhead

Json = dict[str, Any]
API = "resource.k8s.io/v1"
CLASS: Json = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
NODE: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}}
LISTS_NOTE = "slices use fields of the feature gate DRAListTypeAttributes, which kube-scheduler is assumed to have on"


def grouped(name: str, *groups: str) -> Json:
    """Return a device that uses one slot of a card, with its compatibility groups."""
    slots: Json = {"counterSet": "card", "counters": {"slots": {"value": "1"}}}
    return device(name, consumesCounters=[{**slots, "compatibilityGroups": list(groups)} if groups else slots])


@pytest.mark.parametrize(
    ("devices", "gates"),
    [
        ([rails("a", "1")], ("DRAListTypeAttributes",)),
        ([rails("a", "1"), grouped("b", "mig")], ("DRAListTypeAttributes",)),
        ([grouped("a"), {"name": "b", "attributes": {"rails": {"string": "1"}}}], ()),
        ([], ()),
    ],
)
def test_fields_show_the_gate(devices: list[Json], gates: tuple[str, ...]) -> None:
    assert gates_in_use([slice_of(*devices)]) == gates
    assert gates_in_use([slice_of(), reserved(*devices)]) == tuple(sorted([*gates, "DRAOptionalNodeOperations"]))


@pytest.mark.parametrize("wrong", [7, [7], {"x": [7]}, None])
def test_values_of_wrong_types_show_no_gate(wrong: Any) -> None:
    parts = ({"spec": wrong}, {"spec": {"devices": wrong}}, {"spec": {"devices": [wrong]}})
    fields = ({"attributes": wrong}, {"attributes": {"a": wrong}}, {"consumesCounters": wrong})
    assert gates_in_use([*parts, *({"spec": {"devices": [field]}} for field in fields)]) == ()
    assert gates_in_use([{"spec": wrong}, slice_of(rails("a", "1"))]) == ("DRAListTypeAttributes",)


@pytest.mark.parametrize("wrong", [7, [7], {"x": [7]}, None])
def test_values_of_wrong_types_have_no_overhead(wrong: Any) -> None:
    parts: list[Any] = [wrong, {}, {"spec": wrong}, {"spec": {"devices": wrong}}, {"spec": {"devices": [wrong]}}]
    assert not have_overhead(parts)
    assert have_overhead([*parts, slice_of(device("a"), COSTLY)])


def template(name: str, count: int, **devices: Any) -> Json:
    return {
        "apiVersion": API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": claim(make_request(count=count), **devices)["spec"]},
    }


def pod_spec(template: str) -> Json:
    return {
        "containers": [{"name": "c"}],
        "resourceClaims": [{"name": "own", "resourceClaimTemplateName": template}],
    }


COSTLY: Json = {"name": "b", "nodeAllocatableResources": {"memory": {"overhead": {"perPod": "1Gi"}}}}
Run = Callable[..., Json]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on a cluster with these slices and objects; return its JSON."""
    monkeypatch.chdir(tmp_path)

    def command(objects: list[Json], *arguments: str) -> Json:
        pair = template("pair", 2, constraints=[{"matchAttribute": f"{DRIVER}/rails"}])
        items = [CLASS, NODE, template("one", 1), pair, *objects]
        Path("cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        main([*arguments, "--from", "cluster.json", "-o", "json"])
        result: Json = json.loads(capsys.readouterr().out)
        return result

    return command


def published(*slices: Json) -> list[Json]:
    return [{"apiVersion": API, "kind": "ResourceSlice", **entry} for entry in slices]


RAILS = published(slice_of(rails("a", "1", "2"), rails("b", "2"), rails("c", "3")))
POD: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "default"}}


def test_capacity_compares_lists_and_notes_the_gate(run: Run) -> None:
    found = run([*RAILS, {**POD, "spec": pod_spec("pair")}], "capacity", "pod/train")
    assert found["total"] == 1
    assert LISTS_NOTE in found["notes"]


def test_capacity_reads_the_features_that_a_node_declares(run: Run) -> None:
    other: Json = {**NODE, "metadata": {"name": "n2"}, "status": {"declaredFeatures": ["DRAOptionalNodeOperations"]}}
    slices = published(*(reserved(device("a"), name=name, pool=name, nodeName=name) for name in ("n1", "n2")))
    found = run([*slices, other, {**POD, "spec": pod_spec("one")}], "capacity", "pod/train")
    assert {row["node"]: row["copies"] for row in found["nodes"]} == {"n1": 0, "n2": 1}
    assert [note for note in found["notes"] if "DRAOptionalNodeOperations" in note]


def test_a_gang_is_placed_with_lists_and_notes_the_gate(run: Run) -> None:
    body = {"parallelism": 2, "template": {"spec": pod_spec("pair")}}
    job: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": body}
    # The result must not depend on the speed of the machine.
    found = run([*RAILS, job], "explain", "job/train", "--timeout", "600")
    assert (found["fits"], found["placed"]) == (False, 1)
    assert LISTS_NOTE in found["notes"]


def test_an_explanation_of_files_notes_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own: Json = {"apiVersion": API, "kind": "ResourceClaim", **claim(make_request())}
    for name, objects in (("claim", [own]), ("classes", [CLASS]), ("slices", RAILS)):
        Path(f"{name}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert main(["explain", "-f", "claim.json", "--slices", "slices.json", "--classes", "classes.json"]) == 0
    assert capsys.readouterr().err == f"note: {LISTS_NOTE}\n"


def test_an_explanation_notes_that_overhead_is_not_considered(run: Run) -> None:
    pod = {**POD, "spec": pod_spec("one")}
    found = run([*published(slice_of(device("a"), COSTLY)), pod], "explain", "pod/train")
    assert found["fits"] and OVERHEAD_NOTE in found["notes"]
    assert OVERHEAD_NOTE not in run([*published(slice_of(device("a"))), pod], "explain", "pod/train")["notes"]


DERIVED = [{"name": f"{DRIVER}/rails", "expression": "device.driver"}]
DERIVING = {
    "exactly": make_request(derivedAttributes=DERIVED),
    "alternative": {"name": "main", "firstAvailable": [make_exact(name="one", derivedAttributes=DERIVED)]},
}


@pytest.mark.parametrize("asked", DERIVING.values(), ids=DERIVING)
def test_a_claim_with_derived_attributes_is_not_evaluated(run: Run, asked: Json) -> None:
    """Only kube-scheduler has them; an answer that nothing fits would be wrong."""
    own: Json = {"apiVersion": API, "kind": "ResourceClaim", **claim(asked)}
    user = {**POD, "spec": {**pod_spec("one"), "resourceClaims": [{"name": "own", "resourceClaimName": "claim"}]}}
    other = {**POD, "metadata": {"name": "other", "namespace": "default"}, "spec": pod_spec("one")}
    cluster = [*published(slice_of(device("a"))), own, user, other]
    reason = "request main of claim default/claim has derivedAttributes (DRADerivedAttributes)"
    for words in (("claim/claim",), ("pod/train",)):
        found = run(cluster, "explain", *words)
        assert not found["fits"] and found["unexamined"] == ["n1"]
        assert f"is not evaluated on node n1: {reason}" in found["summary"]
    for words in (("claim/claim",), ("pod/train",)):
        found = run(cluster, "capacity", *words)
        assert (found["fits"], found["total"], found["total_is_partial"]) == (None, 0, True)
        assert found["nodes"][0]["causes"] == ["derived_attributes"] and reason in found["nodes"][0]["reason"]
    assert run(cluster, "explain", "pod/other")["fits"], "other claims are evaluated"
    assert run(cluster, "capacity", "pod/other")["total"] == 1


@pytest.mark.parametrize("asked", DERIVING.values(), ids=DERIVING)
def test_a_file_of_such_a_claim_is_not_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: Json
) -> None:
    """The slices are those of a cluster, so the result is that of `explain claim/NAME` there."""
    monkeypatch.chdir(tmp_path)
    Path("slices.json").write_text(json.dumps(published(slice_of(device("a")))[0]))
    Path("class.json").write_text(json.dumps(CLASS))
    own: Json = {"apiVersion": API, "kind": "ResourceClaim", **claim(asked)}
    Path("claim.json").write_text(json.dumps(own))
    reason = "request main of claim default/claim has derivedAttributes (DRADerivedAttributes)"
    command = ["explain", "-f", "claim.json", "--slices", "slices.json", "--classes", "class.json", "--node", "n1"]
    assert main(command) == 1
    text = capsys.readouterr().out
    assert text.startswith(f"is not evaluated on node n1: {reason}, which only kube-scheduler evaluates")
    assert main([*command, "-o", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["fits"], answer["error"], answer["claims"], answer["results"]) == (False, None, [], [])
    own["status"] = allocated_claim("claim", {"device": "a"})["status"]
    Path("claim.json").write_text(json.dumps(own))
    assert main([*command, "-o", "json"]) == 0, "an allocated claim keeps its devices"


def test_an_allocated_claim_with_derived_attributes_holds_its_devices(run: Run) -> None:
    held = claim(DERIVING["exactly"])
    held["status"] = allocated_claim("claim", {"device": "a"})["status"]
    waiting = {**POD, "spec": pod_spec("one")}
    cluster = [*published(slice_of(device("a"))), {"apiVersion": API, "kind": "ResourceClaim", **held}, waiting]
    assert run(cluster, "explain", "claim/claim")["fits"]
    found = run(cluster, "explain", "pod/train")
    assert not found["fits"] and found["unexamined"] == []
    assert run(cluster, "capacity", "claim/claim")["fits"] is None, "another claim like this one"


def test_a_gang_with_derived_attributes_is_not_evaluated(run: Run) -> None:
    deriving = {**template("deriving", 1), "spec": {"spec": claim(DERIVING["exactly"])["spec"]}}
    body = {"parallelism": 2, "template": {"spec": pod_spec("deriving")}}
    job: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": body}
    found = run([*published(slice_of(device("a"))), deriving, job], "explain", "job/train")
    assert not found["fits"] and found["summary"].startswith("is not evaluated: request main of claim default/train-0")


def test_without_such_fields_no_gate_is_noted(run: Run) -> None:
    counters = [{"name": "card", "counters": {"slots": {"value": "8"}}}]
    shared = slice_of(name="z-counters", count=2, sharedCounters=counters)
    slices = published(slice_of(grouped("a"), grouped("b"), count=2), shared)
    found = run([*slices, {**POD, "spec": pod_spec("pair")}], "capacity", "pod/train")
    assert not [note for note in found["notes"] if "feature gate" in note]


def test_a_node_with_compatibility_groups_is_not_evaluated(run: Run) -> None:
    counters = [{"name": "card", "counters": {"slots": {"value": "8"}}}]
    shared = slice_of(name="z-counters", count=2, sharedCounters=counters)
    slices = published(slice_of(grouped("a"), grouped("b", "mig"), count=2), shared)
    cluster = [*slices, {**POD, "spec": pod_spec("one")}]
    reason = "is not evaluated: it has compatibilityGroups (DRADeviceCompatibilityGroups)"
    found = run(cluster, "explain", "pod/train")
    assert not found["fits"] and reason in found["summary"] and found["unexamined"] == ["n1"]
    found = run(cluster, "capacity", "pod/train")
    assert (found["fits"], found["total"], found["total_is_partial"]) == (None, 0, True)
    assert found["nodes"][0]["causes"] == ["not_evaluated"] and reason in found["nodes"][0]["reason"]
    body = {"parallelism": 2, "template": {"spec": pod_spec("one")}}
    job: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": body}
    found = run([*slices, job], "explain", "job/train", "--timeout", "600")
    assert not found["fits"] and reason in found["failure"]["reason"]
    assert found["search"] is None, "that nothing fits is not certain"

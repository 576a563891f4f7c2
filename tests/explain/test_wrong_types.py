"""Files with a value of a wrong type at any place: one message that names the file, never an internal error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import claim, make_request
from dra_agent.cli.main import main
from dra_agent.errors import UsageError
from dra_cluster.explain.dump import read_dump
from dra_cluster.template import differences, make_template

Json = dict[str, Any]
Command = Callable[..., str]
API = "resource.k8s.io/v1"
SLICE: Json = {
    "apiVersion": API,
    "kind": "ResourceSlice",
    "metadata": {"name": "n1-gpu"},
    "spec": {
        "driver": "dra.example.com",
        "nodeName": "n1",
        "pool": {"name": "n1/gpu", "generation": 1, "resourceSliceCount": 1},
        "sharedCounters": [{"name": "set", "counters": {"memory": {"value": "8Gi"}}}],
        "skipNodeOperations": ["*"],
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {"type": {"string": "gpu"}, "rails": {"strings": ["a"]}},
                "capacity": {"memory": {"value": "8Gi", "requestPolicy": {"default": "1Gi"}}},
                "consumesCounters": [{"counterSet": "set", "counters": {"memory": {"value": "1Gi"}}}],
                "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
            }
        ],
    },
}
NODE: Json = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1", "labels": {"name": "n1"}},
    "spec": {"unschedulable": False, "taints": [{"key": "t", "value": "v", "effect": "NoSchedule"}]},
    "status": {"declaredFeatures": ["DRAOptionalNodeOperations"]},
}
TERMS = [
    {"matchExpressions": [{"key": "name", "operator": "In", "values": ["n1"]}]},
    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
    {"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["3"]}]},
]
CONDITIONS = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "none"}]
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {
        "containers": [{"name": "c", "resources": {"limits": {"example.com/x": "1"}}}],
        "nodeSelector": {"name": "n1"},
        "tolerations": [{"key": "t", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}},
        },
        "nodeName": "",
        "schedulingGates": [],
        "schedulingGroup": {"podGroupName": "g"},
        "resourceClaims": [{"name": "own", "resourceClaimTemplateName": "one"}],
    },
    "status": {
        "phase": "Pending",
        "conditions": CONDITIONS,
        "containerStatuses": [{"state": {"waiting": {"reason": "r", "message": "m"}}}],
        "resourceClaimStatuses": [{"name": "own", "resourceClaimName": "train-own"}],
    },
}
TEMPLATE: Json = {
    "apiVersion": API,
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {"spec": claim(make_request())["spec"]},
}
CLASS: Json = {
    "apiVersion": API,
    "kind": "DeviceClass",
    "metadata": {"name": "any"},
    "spec": {"extendedResourceName": "example.com/x"},
}
OWN: Json = {
    "apiVersion": API,
    "kind": "ResourceClaim",
    "metadata": {
        "name": "train-own",
        "namespace": "default",
        "deletionTimestamp": "2026-11-28T20:00:00Z",
        "finalizers": ["resource.kubernetes.io/delete-protection"],
    },
    "spec": claim(make_request())["spec"],
    "status": {
        "allocation": {
            "nodeSelector": {"nodeSelectorTerms": TERMS},
            "devices": {
                "results": [
                    {
                        "request": "main",
                        "driver": "dra.example.com",
                        "pool": "n1/gpu",
                        "device": "gpu-0",
                        "bindingConditions": ["ready"],
                        "bindingFailureConditions": ["failed"],
                    }
                ]
            },
        },
        "reservedFor": [{"resource": "pods", "name": "train", "uid": "u"}],
        "devices": [
            {
                "driver": "dra.example.com",
                "pool": "n1/gpu",
                "device": "gpu-0",
                "conditions": [{"type": "Ready", "status": "False", "reason": "r", "message": "m"}],
            }
        ],
    },
}
QUOTA: Json = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "q", "namespace": "default"},
    "spec": {"scopes": [], "scopeSelector": {"matchExpressions": [{"operator": "Exists"}]}},
    "status": {"hard": {"any.deviceclass.resource.k8s.io/devices": "8"}, "used": {}},
}
RULE: Json = {
    "apiVersion": API,
    "kind": "DeviceTaintRule",
    "metadata": {"name": "rule"},
    "spec": {
        "deviceSelector": {"driver": "dra.example.com"},
        "taint": {"key": "k", "value": "v", "effect": "NoSchedule"},
    },
}
CLUSTER = (CLASS, TEMPLATE, POD, NODE, SLICE)
POD_TEMPLATE: Json = {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}
METADATA: Json = {"name": "train", "namespace": "default"}
JOB: Json = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": METADATA,
    "spec": {
        "parallelism": 2,
        "completions": 2,
        "selector": {"matchLabels": {"a": "b"}},
        "template": POD_TEMPLATE,
    },
    "status": {"succeeded": 0, "conditions": [{"type": "Failed", "status": "False", "reason": "r", "message": "m"}]},
}
JOB_SET: Json = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": METADATA,
    "spec": {
        "replicatedJobs": [
            {"name": "a", "replicas": 1, "dependsOn": [{"status": "Complete"}], "template": {"spec": JOB["spec"]}}
        ]
    },
}
CONDITION = {"type": "Any", "status": "False", "reason": "R", "lastTransitionTime": "2026-11-01T10:00:00Z"}
WORKLOAD: Json = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "Workload",
    "metadata": {**METADATA, "ownerReferences": [{"kind": "Job", "name": "train"}]},
    "spec": {"podSets": [{"name": "main", "count": 1, "template": POD_TEMPLATE}]},
    "status": {
        "conditions": [CONDITION],
        "admissionChecks": [{"name": "c", "state": "Ready", "lastTransitionTime": "2026-11-01T10:00:00Z"}],
    },
}
POD_GROUP: Json = {
    "apiVersion": "scheduling.k8s.io/v1beta1",
    "kind": "PodGroup",
    "metadata": {"name": "g", "namespace": "default"},
    "spec": {
        "schedulingPolicy": {"gang": {"minCount": 1}},
        "schedulingConstraints": {"topology": [{"key": "name"}]},
        "resourceClaims": [{"name": "own", "resourceClaimTemplateName": "one"}],
    },
    "status": {"conditions": [CONDITION], "resourceClaimStatuses": [{"name": "own", "resourceClaimName": "none"}]},
}
COMPOSITE: Json = {
    "apiVersion": "scheduling.k8s.io/v1alpha3",
    "kind": "CompositePodGroup",
    "metadata": {"name": "c", "namespace": "default", "creationTimestamp": "2026-11-01T10:00:00Z"},
    "spec": {"parentCompositePodGroupName": "top"},
    "status": {"conditions": [CONDITION]},
}
CHILD: Json = {**POD_GROUP, "spec": {**POD_GROUP["spec"], "parentCompositePodGroupName": "c"}}


def variants(value: Any) -> Iterator[Any]:
    """Yield copies of a value in which one part is a list or object, and copies in which it is a number or null."""
    for number, (part, place) in enumerate(_parts(value, lambda changed: changed)):
        for wrong in ([7], {"x": [7]}) if number % 2 else ({"x": [7]}, [7]):
            if type(wrong) is not type(part):
                yield place(wrong)
                break
        yield place(None if number % 2 else 7)


def _parts(value: Any, place: Callable[[Any], Any]) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    """Yield every part of a value, with the function that puts another one in its place."""
    yield value, place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:

        def replaced(changed: Any, key: Any = key) -> Any:
            copy = value.copy()
            copy[key] = changed
            return place(copy)

        yield from _parts(part, replaced)


def write(name: str, *objects: Any) -> None:
    Path(name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command that must not meet an internal error; return its messages."""
    monkeypatch.chdir(tmp_path)
    write("cluster.json", *CLUSTER)

    def run(*arguments: str) -> str:
        code = main(arguments)
        error = capsys.readouterr().err
        assert code in (0, 1, 2) and "internal error" not in error, error
        return error

    return run


@pytest.mark.parametrize("changed", [SLICE, NODE, POD, TEMPLATE], ids=lambda one: str(one["kind"]))
def test_a_dump_of_a_cluster(command: Command, changed: Json) -> None:
    for broken in variants(changed):
        write("broken.json", *(broken if one is changed else one for one in CLUSTER))
        command("capacity", "pod/train", "--from", "broken.json", "--if", "untaint=k")


@pytest.mark.parametrize("changed", [CLASS, POD, OWN, QUOTA, RULE], ids=lambda one: str(one["kind"]))
def test_objects_that_explain_reads_in_a_dump(command: Command, changed: Json) -> None:
    others = [one for one in (*CLUSTER, OWN, QUOTA, RULE) if one is not changed]
    for broken in variants(changed):
        write("broken.json", *others, broken)
        command("explain", "pod/train", "--from", "broken.json")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({**POD, "spec": {**POD["spec"], "nodeSelector": {"rank": 1}}}, "Pod train: spec.nodeSelector.rank"),
        ({**NODE, "metadata": {"name": "n1", "labels": {"rank": True}}}, "Node n1: metadata.labels.rank"),
        (
            {**RULE, "spec": {**RULE["spec"], "taint": {"key": 1, "effect": "NoSchedule"}}},
            "DeviceTaintRule rule: spec.taint.key",
        ),
    ],
    ids=["pod", "node", "rule"],
)
def test_a_number_in_the_place_of_text_is_named(command: Command, changed: Json, field: str) -> None:
    """YAML has numbers and booleans where quotes are missing; kubectl refuses these objects."""
    write("cluster.json", *(one for one in CLUSTER if one["kind"] != changed["kind"]), changed)
    assert f"cluster.json:1: {field} is not a string" in command("explain", "pod/train", "--from", "cluster.json")


@pytest.mark.parametrize("changed", [SLICE, NODE], ids=lambda one: str(one["kind"]))
def test_nodes_that_are_added(command: Command, changed: Json) -> None:
    for broken in variants(changed):
        write("added.json", *(broken if one is changed else one for one in (NODE, SLICE)))
        command("capacity", "pod/train", "--from", "cluster.json", "--if", "add=2:added.json")


@pytest.mark.parametrize("changed", [POD, TEMPLATE], ids=lambda one: str(one["kind"]))
def test_objects_that_are_counted(command: Command, changed: Json) -> None:
    for broken in variants(changed):
        Path("counted.json").write_text(json.dumps(broken))
        command("capacity", "-f", "counted.json", "--from", "cluster.json")


@pytest.mark.parametrize("changed", [SLICE, NODE], ids=lambda one: str(one["kind"]))
def test_objects_that_explain_reads(command: Command, changed: Json) -> None:
    for broken in variants(changed):
        write("broken.json", CLASS, *(broken if one is changed else one for one in (NODE, SLICE)))
        write("claim.json", TEMPLATE)
        command("explain", "-f", "claim.json", "--slices", "broken.json", "--node", "n1")


def test_a_claim_template_that_explain_reads(command: Command) -> None:
    for broken in variants(TEMPLATE):
        Path("claim.json").write_text(json.dumps(broken))
        command("explain", "-f", "claim.json", "--slices", "cluster.json", "--node", "n1")


@pytest.mark.parametrize("changed", [JOB, JOB_SET, WORKLOAD, POD_GROUP, POD], ids=lambda one: str(one["kind"]))
def test_objects_with_several_pods(command: Command, changed: Json) -> None:
    others = [one for one in (POD_GROUP, POD) if one is not changed]
    name = f"{changed['kind'].lower()}/{changed['metadata']['name']}" if changed is not POD else "podgroup/g"
    for broken in variants(changed):
        write("broken.json", CLASS, TEMPLATE, NODE, SLICE, *others, broken)
        command("explain", name, "--from", "broken.json")
        write("asked.json", broken, *([POD_GROUP] if changed is POD else []))
        command("explain", "-f", "asked.json", "--from", "cluster.json")


@pytest.mark.parametrize("changed", [COMPOSITE, CHILD], ids=lambda one: str(one["kind"]))
def test_groups_of_a_composite_group(command: Command, changed: Json) -> None:
    other = CHILD if changed is COMPOSITE else COMPOSITE
    for broken in variants(changed):
        write("broken.json", CLASS, TEMPLATE, NODE, SLICE, POD, other, broken)
        for name in ("compositepodgroup/c", "podgroup/g"):
            command("explain", name, "--from", "broken.json")


def test_claims_of_pods_that_are_still_to_be_created(command: Command) -> None:
    job = {**JOB, "metadata": {"name": "new", "namespace": "default"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"}}
    for broken in variants(TEMPLATE):
        write("broken.json", CLASS, NODE, SLICE, quota, broken)
        write("asked.json", job)
        command("explain", "-f", "asked.json", "--from", "broken.json")


def test_a_node_that_is_compared_with_a_template(tmp_path: Path) -> None:
    template = make_template([SLICE]).slices
    file = tmp_path / "slices.json"
    for broken in variants(SLICE):
        file.write_text(json.dumps(broken))
        try:
            read = read_dump([str(file)], "default").slices or []
        except UsageError as error:
            assert str(file) in str(error)
        else:
            differences(template, [entry for entry in read if entry.get("spec")])


def test_the_message_of_a_wrong_type(command: Command) -> None:
    device = {**SLICE["spec"]["devices"][0], "consumesCounters": [{"counterSet": "set", "counters": ["memory"]}]}
    write("node.json", {**SLICE, "spec": {**SLICE["spec"], "devices": [device]}})
    message = "ResourceSlice n1-gpu: spec.devices[0].consumesCounters[0].counters is not an object"
    assert message in command("slices", "template", "--simulate", "vm-1gpu", "--compare", "node.json")


@pytest.mark.parametrize("count", [1 << 63, True, 1.0, "1"])
def test_a_number_of_devices_is_an_integer_of_64_bits(tmp_path: Path, count: object) -> None:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": count}}
    spec = {"devices": {"requests": [request]}}
    file = tmp_path / "claim.json"
    file.write_text(json.dumps({"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}))
    with pytest.raises(UsageError, match=r"requests\[0\]\.exactly\.count is not an integer of 64 bits"):
        read_dump([str(file)], "default")

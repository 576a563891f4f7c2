"""`dra-agent explain claim|pod` with an API server: each reason for which a claim is pending."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import DRIVER, allocated_claim, claim, device, make_request, model, slice_of
from dra_agent.cli.main import main
from dra_cluster.explain.pod_claims import pod_claims
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.explain.taint_rules import tainted
from fake_apiserver.fake import FakeApi

Run = Callable[..., tuple[int, str, str]]
Explain = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def command(
    fake_api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command; return its exit code, output and errors."""
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["explain", *arguments, "--kubeconfig", str(path)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def explain(command: Run) -> Explain:
    """Run the command twice, as text and as JSON; both must agree."""

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code, text, _ = command(*arguments)
        json_code, printed, _ = command(*arguments, "-o", "json")
        answer: dict[str, Any] = json.loads(printed)
        assert code == json_code and answer["summary"] in text
        return code, answer

    return run


@pytest.fixture
def cluster(fake_api: FakeApi) -> FakeApi:
    """Two nodes with two GPUs each, of models A and B."""
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    fake_api.put("deviceclasses", {"metadata": {"name": "any"}, "spec": {}})
    for node in ("n1", "n2"):
        fake_api.put("nodes", {"metadata": {"name": node, "labels": {"zone": f"zone-{node}"}}, "spec": {}})
        devices = [device(f"gpu-{name.lower()}", {"model": name, "numa": name}) for name in ("A", "B")]
        fake_api.put("resourceslices", slice_of(*devices, name=f"{node}-slice", pool=node, nodeName=node))
    return fake_api


def pod(name: str = "job", *, claims: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pending pod; `claims` maps the pod's names of claims to claim names."""
    pod_claims = [{"name": key, "resourceClaimName": value} for key, value in (claims or {"gpu": "claim"}).items()]
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c"}], "resourceClaims": pod_claims, **spec},
        "status": {"phase": "Pending"},
    }


def allocated_on(name: str, node: str, *devices: str, pods: tuple[str, ...] = ()) -> dict[str, Any]:
    created = allocated_claim(name, *({"device": one, "pool": node} for one in devices))
    created["status"]["reservedFor"] = [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in pods]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    created["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    return created


def by_node(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["node"]: entry for entry in answer["nodes"]}


def test_selector_that_matches_nothing_is_named(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request(expression=model("C"))))
    cluster.put("pods", pod())
    code, answer = explain("claim", "claim")
    assert code == 1
    assert "fits on none of 2 nodes" in answer["summary"] and "none of 2 devices matches" in answer["summary"]
    devices = by_node(answer)["n2"]["explanation"]["claims"][0]["requests"][0]["devices"]
    assert [one["rejections"][0]["kind"] for one in devices] == ["selector", "selector"]


def test_where_devices_that_are_not_published_are_listed_is_named(
    cluster: FakeApi, explain: Explain, command: Run
) -> None:
    """No agent runs on this host, and slices do not have them."""
    cluster.put("resourceclaims", claim(make_request(expression=model("C"))))
    cluster.put("pods", pod())
    _, answer = explain("claim", "claim")
    assert [entry["excluded"] for entry in answer["nodes"]] == [None, None]
    hint = "devices that it does not publish are not in its ResourceSlices: `dra-agent devices` on node {} lists them"
    assert hint.format("n1") in command("claim", "claim")[1]
    assert hint.format("n2") in command("claim", "claim", "--node", "n2")[1]
    # Of a node with enough devices they are no answer.
    cluster.put("resourceclaims", claim(make_request(expression=model("A")), name="fits"))
    _, answer = explain("claim", "fits", "--node", "n2")
    assert [entry["excluded"] for entry in answer["nodes"]] == [[]]
    assert "does not publish" not in command("claim", "fits", "--node", "n2")[1]


def test_holders_of_all_devices_are_named(cluster: FakeApi, explain: Explain, command: Run) -> None:
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    cluster.put("resourceclaims", allocated_on("train", "n1", "gpu-a", pods=("train-0", "train-1")))
    other = allocated_on("serve", "n2", "gpu-a", pods=("serve-0",))
    cluster.put("resourceclaims", {**other, "metadata": {**other["metadata"], "namespace": "team-b"}})
    cluster.put("pods", pod())
    code, answer = explain("pod", "job", "-n", "default")
    assert code == 1
    assert answer["holders"] == [
        {"claim": "default/train", "devices": ["n1: gpu-a"], "reserved_for": ["pod train-0", "pod train-1"]},
        {"claim": "team-b/serve", "devices": ["n2: gpu-a"], "reserved_for": ["pod serve-0"]},
    ]
    assert "it is held by claim default/train" in by_node(answer)["n1"]["devices"]
    text = command("pod", "job")[1]
    assert "pod train-0, pod train-1" in text and "team-b/serve" in text


def test_untolerated_taint_is_named(cluster: FakeApi, explain: Explain) -> None:
    taints = [{"key": "dra-agent.internal/xid", "effect": "NoExecute"}]
    cluster.put(
        "resourceslices", slice_of(device("gpu-a", {"model": "T"}, taints=taints), name="n1-t", pool="t", nodeName="n1")
    )
    cluster.put("resourceclaims", claim(make_request(expression=model("T"))))
    cluster.put("pods", pod())
    code, answer = explain("claim", "claim")
    assert code == 1 and "it is tainted with dra-agent.internal/xid:NoExecute" in by_node(answer)["n1"]["devices"]


@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        ({"driver": DRIVER, "pool": "n1", "device": "gpu-a"}, {"n1"}),
        ({"driver": DRIVER}, {"n1", "n2"}),
        ({}, {"n1", "n2"}),
        ({"driver": "other"}, set()),
        (None, set()),
    ],
)
def test_taint_of_a_device_taint_rule_is_named(
    cluster: FakeApi, explain: Explain, selector: dict[str, str] | None, tainted: set[str]
) -> None:
    spec: dict[str, Any] = {"taint": {"key": "drain", "effect": "NoSchedule"}}
    if selector is not None:
        spec["deviceSelector"] = selector
    cluster.put("devicetaintrules", {"metadata": {"name": "drain"}, "spec": spec})
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    cluster.put("pods", pod())
    _, answer = explain("claim", "claim")
    assert {name for name, entry in by_node(answer).items() if "tainted with drain" in entry["devices"]} == tainted
    assert answer["fits"] == (tainted != {"n1", "n2"})


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"deviceClassName": "of-model-a"}, {"n1"}),
        ({"deviceClassName": "missing"}, set()),
        ({"selectors": [{"cel": {"expression": model("A")}}]}, {"n1"}),
        ({"deviceClassName": "of-model-a", "selectors": [{"cel": {"expression": model("B")}}]}, set()),
        ({"device": "gpu-b", "selectors": [{"cel": {"expression": "true"}}]}, {"n2"}),
        ({"selectors": [{"cel": {"expression": "device.attributes['other.example.com'].x"}}]}, set()),
    ],
)
def test_a_rule_of_an_older_version_selects_by_class_and_expression(
    selector: dict[str, Any], expected: set[str]
) -> None:
    """Only v1alpha3 until Kubernetes 1.34 has them."""
    slices = [
        slice_of(device("gpu-a", {"model": "A"}), name="n1", pool="n1", nodeName="n1"),
        slice_of(device("gpu-b", {"model": "B"}), name="n2", pool="n2", nodeName="n2"),
    ]
    classes = [
        {"metadata": {"name": "of-model-a"}, "spec": {"selectors": [{"cel": {"expression": model("A")}}]}},
        {"metadata": {"name": "of-others"}, "spec": {"selectors": [{"cel": {"expression": "false"}}]}},
    ]
    notes: list[str] = []
    found = tainted(slices, [rule(selector)], classes, notes)
    assert {one["spec"]["nodeName"] for one in found if "taints" in one["spec"]["devices"][0]} == expected
    assert notes == []


@pytest.mark.parametrize(
    ("selector", "note"),
    [
        (None, "no deviceSelector"),
        ({"deviceClassName": "c"}, "DeviceClass c cannot be read"),
        ({"selectors": [{"cel": {"expression": "1 +"}}]}, "is not understood"),
        ({"vendor": "x"}, "unknown field `vendor`"),
        ({"driver": 1}, "is not understood"),
    ],
)
def test_a_rule_that_is_not_evaluated_is_named(selector: dict[str, Any] | None, note: str) -> None:
    notes: list[str] = []
    slices = [slice_of(device("gpu-a", {"model": "A"}), name="n1", pool="n1", nodeName="n1")]
    assert tainted(slices, [rule(selector)], None, notes) == slices
    (found,) = notes
    assert "DeviceTaintRule drain" in found and note in found


def rule(selector: dict[str, Any] | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"taint": {"key": "drain", "effect": "NoSchedule"}}
    return {"metadata": {"name": "drain"}, "spec": spec if selector is None else {**spec, "deviceSelector": selector}}


def test_a_rule_that_is_not_evaluated_is_a_note_of_the_answer(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("devicetaintrules", rule({"vendor": "x"}))
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    _, answer = explain("claim", "claim")
    assert any("DeviceTaintRule drain is not evaluated" in note for note in answer["notes"])


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
def test_device_taint_rules_are_read_in_the_version_of_the_server(
    cluster: FakeApi, explain: Explain, version: str
) -> None:
    for older in {"v1", "v1beta2", "v1alpha3"} - {version}:
        cluster.fail(404, times=None, path=f"/apis/resource.k8s.io/{older}/devicetaintrules")
    spec = {"deviceSelector": {"driver": DRIVER}, "taint": {"key": "drain", "effect": "NoSchedule"}}
    cluster.put("devicetaintrules", {"metadata": {"name": "drain"}, "spec": spec})
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    _, answer = explain("claim", "claim")
    assert all("tainted with drain" in entry["devices"] for entry in answer["nodes"])


def test_lists_in_the_slices_show_that_their_gate_is_on(cluster: FakeApi, explain: Explain) -> None:
    both = [{"name": name, "attributes": {"rails": {"strings": [name, "shared"]}}} for name in ("a", "b")]
    cluster.put("resourceslices", slice_of(*both, name="n1-rails", pool="rails", nodeName="n1"))
    together = claim(make_request(count=2), constraints=[{"matchAttribute": f"{DRIVER}/rails"}])
    cluster.put("resourceclaims", together)
    cluster.put("pods", pod())
    code, answer = explain("claim", "claim")
    assert code == 0, answer["summary"]
    assert [note for note in answer["notes"] if "DRAListTypeAttributes" in note]


def test_unsatisfiable_constraint_is_named(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request(count=2), constraints=[{"matchAttribute": f"{DRIVER}/numa"}]))
    cluster.put("pods", pod())
    code, answer = explain("claim", "claim")
    assert code == 1 and f"no value of {DRIVER}/numa is shared by enough available devices" in answer["summary"]


def test_missing_class_is_named(cluster: FakeApi, explain: Explain) -> None:
    wrong = make_request()
    wrong["exactly"]["deviceClassName"] = "gpus"
    cluster.put("resourceclaims", claim(wrong))
    cluster.put("pods", pod())
    code, answer = explain("pod", "job")
    assert (code, answer["summary"]) == (1, "there is no DeviceClass gpus")


def test_node_selector_that_excludes_free_devices_is_named(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    cluster.put("resourceclaims", allocated_on("train", "n1", "gpu-a"))
    cluster.put("pods", pod(nodeSelector={"zone": "zone-n1"}))
    code, answer = explain("claim", "claim")
    assert code == 1
    assert answer["summary"] == (
        "its devices are free only where the pod may not be: n2: the pod's nodeSelector requires zone=zone-n1, "
        "the node has zone=zone-n2"
    )
    assert by_node(answer)["n1"]["obstacles"] == []


def test_obstacles_other_than_devices_are_separate(cluster: FakeApi, explain: Explain, command: Run) -> None:
    for name in ("n1", "n2"):
        node = cluster.store.get("nodes", "", name)
        node["spec"] = {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}
        if name == "n2":
            node["spec"]["unschedulable"] = True
        cluster.put("nodes", node)
    cluster.put("resourceclaims", claim(make_request()))
    waiting = pod()
    message = "0/2 nodes are available: 2 Insufficient cpu."
    waiting["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    cluster.put("pods", waiting)
    code, answer = explain("pod", "job")
    assert code == 1 and answer["pods"][0]["scheduler"] == message
    assert by_node(answer)["n1"]["fits"] and by_node(answer)["n1"]["obstacles"] == [
        "the pod does not tolerate the node's taint team=b:NoSchedule"
    ]
    assert "the node is cordoned" in by_node(answer)["n2"]["obstacles"]
    text = command("pod", "job")[1]
    assert "NOT ABOUT DEVICES" in text and "Insufficient cpu" in text


def test_free_devices_exclude_devices_as_the_reason(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    cluster.put("pods", pod(tolerations=[{"operator": "Exists"}]))
    code, answer = explain("pod", "job")
    assert code == 0
    assert answer["summary"] == "its devices are free on nodes n1, n2; if it stays pending, that is not about devices"
    assert answer["pods"][0]["scheduler"] == "default-scheduler has not evaluated it yet"


def test_claim_without_a_pod_is_explained(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request()))
    code, answer = explain("claim", "claim")
    assert code == 1 and answer["summary"].startswith("no pod of namespace default uses it, so it is not allocated; ")


def test_completed_pods_are_ignored(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request()))
    ended = pod(nodeName="n1")
    ended["status"]["phase"] = "Succeeded"
    cluster.put("pods", ended)
    assert explain("claim", "claim")[1]["summary"].startswith("no pod of namespace default uses it")
    cluster.put("pods", pod("fresh"))
    code, answer = explain("claim", "claim")
    assert code == 0 and [one["pod"] for one in answer["pods"]] == ["default/fresh"]


def test_pod_bound_without_a_scheduler_is_explained(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request()))
    cluster.put("pods", pod(nodeName="n1"))
    code, answer = explain("claim", "claim")
    assert code == 1 and "no scheduler chose its devices" in answer["summary"]


def test_namespace_defaults_to_that_of_the_context(
    cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    created = claim(make_request())
    cluster.put("resourceclaims", {**created, "metadata": {"name": "mine", "namespace": "team-b"}})
    path = cluster.kubeconfig(tmp_path / "own")
    config = json.loads(path.read_text())
    config["contexts"][0]["context"]["namespace"] = "team-b"
    path.write_text(json.dumps(config))
    assert main(["explain", "claim", "mine", "--kubeconfig", str(path)]) == 1
    assert "claim team-b/mine: no pod" in capsys.readouterr().out


def test_scheduling_gates_are_named(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request()))
    cluster.put("pods", pod(schedulingGates=[{"name": "example.com/quota"}]))
    _, answer = explain("pod", "job")
    assert answer["pods"][0]["scheduler"] == "waits for its scheduling gates to go: example.com/quota"


def test_allocated_claim_shows_devices_node_and_pods(cluster: FakeApi, explain: Explain) -> None:
    created = allocated_on("claim", "n1", "gpu-a", pods=("job",))
    condition = {"type": "Ready", "status": "False", "reason": "Unhealthy", "message": "XID 79"}
    created["status"]["devices"] = [{"driver": DRIVER, "pool": "n1", "device": "gpu-a", "conditions": [condition]}]
    cluster.put("resourceclaims", created)
    cluster.put("pods", pod(nodeName="n1"))
    code, answer = explain("claim", "claim")
    assert (code, answer["claims"][0]["state"]) == (0, "allocated")
    assert answer["summary"] == ("is allocated gpu-a on node n1, reserved for pod job; gpu-a is not ready: XID 79")
    code, answer = explain("pod", "job")
    assert (code, answer["summary"]) == (0, "its claims are allocated, and it is on node n1")


def test_a_pod_that_waits_for_a_binding_condition_is_explained(cluster: FakeApi, explain: Explain) -> None:
    created = allocated_on("claim", "n1", "gpu-a", pods=("job",))
    (result,) = created["status"]["allocation"]["devices"]["results"]
    result |= {"bindingConditions": [f"{DRIVER}/Prepared"], "bindingFailureConditions": [f"{DRIVER}/PrepareFailed"]}
    cluster.put("resourceclaims", created)
    cluster.put("pods", pod())
    waits = f"waits for binding condition {DRIVER}/Prepared on device gpu-a"
    code, answer = explain("pod", "job")
    assert code == 0 and waits in answer["summary"]
    _, answer = explain("claim", "claim")
    assert answer["summary"].endswith(waits)
    entry = {"driver": DRIVER, "pool": "n1", "device": "gpu-a"}
    failed = {"type": f"{DRIVER}/PrepareFailed", "status": "True", "reason": "TimedOut", "message": "no room"}
    status = created["status"]
    cluster.set_status("resourceclaims", "default", "claim", {**status, "devices": [{**entry, "conditions": [failed]}]})
    _, answer = explain("pod", "job")
    assert "gpu-a could not be set up, and is chosen again: no room" in answer["summary"]
    prepared = {"type": f"{DRIVER}/Prepared", "status": "True", "reason": "SetUp", "message": ""}
    cluster.set_status(
        "resourceclaims", "default", "claim", {**status, "devices": [{**entry, "conditions": [prepared]}]}
    )
    _, answer = explain("pod", "job")
    assert answer["summary"] == "its claims are allocated; if it stays pending, that is not about free devices"


def test_terminating_claim_is_explained(cluster: FakeApi, explain: Explain) -> None:
    created = allocated_on("claim", "n1", "gpu-a", pods=("job",))
    created["metadata"] |= {
        "deletionTimestamp": "2026-11-21T20:00:00Z",
        "finalizers": ["resource.kubernetes.io/delete-protection"],
    }
    cluster.put("resourceclaims", created)
    code, answer = explain("claim", "claim")
    assert code == 1
    assert answer["summary"] == "is being deleted since 2026-11-21T20:00:00Z, and waits until pod job ended"


def test_allocated_claim_restricts_its_pod_to_one_node(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    cluster.put("resourceclaims", allocated_on("first", "n1", "gpu-b"))
    cluster.put("resourceclaims", allocated_on("other", "n1", "gpu-a"))
    cluster.put("pods", pod(claims={"gpu": "claim", "first": "first"}))
    code, answer = explain("pod", "job")
    assert code == 1 and "n2: claim first is allocated elsewhere" in answer["summary"]


def test_claims_of_one_pod_are_evaluated_together(cluster: FakeApi, explain: Explain) -> None:
    for name in ("one", "two"):
        cluster.put("resourceclaims", claim(make_request(expression=model("A")), name=name))
    cluster.put("pods", pod(claims={"one": "one", "two": "two"}))
    code, answer = explain("pod", "job")
    assert code == 1 and "fits on none of 2 nodes" in answer["summary"]
    code, answer = explain("claim", "one")
    assert code == 1, "it is allocated together with the other one, or not at all"


def test_node_without_slices_is_explained(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("nodes", {"metadata": {"name": "n3"}, "spec": {}})
    cluster.put("resourceclaims", claim(make_request()))
    cluster.put("pods", pod(nodeSelector={"kubernetes.io/hostname": "n3"}))
    _, answer = explain("pod", "job")
    assert by_node(answer)["n3"]["devices"] == "no driver has published devices for it"


def test_incomplete_and_invalid_pools_are_named(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceslices", slice_of(device("x", {"model": "X"}), name="s1", pool="torn", count=2, nodeName="n1"))
    for name in ("s2", "s3"):
        cluster.put(
            "resourceslices", slice_of(device("y", {"model": "Y"}), name=name, pool="double", count=2, nodeName="n2")
        )
    cluster.put("resourceclaims", claim(make_request(expression=model("X"))))
    cluster.put("pods", pod())
    _, answer = explain("claim", "claim")
    problems = {pool["pool"]: pool["problem"] for entry in answer["nodes"] for pool in entry["explanation"]["pools"]}
    assert "incomplete" in problems["torn"] or "1 of 2" in problems["torn"]
    assert problems["double"] and problems["n1"] is None
    assert problems["torn"] in by_node(answer)["n1"]["devices"]


def test_pool_of_all_nodes_and_its_holder_appear_on_each_node(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceslices", slice_of(device("net", {"model": "N"}), name="all", pool="shared", allNodes=True))
    cluster.put("resourceclaims", claim(make_request(expression=model("N"))))
    cluster.put("pods", pod())
    assert explain("claim", "claim")[0] == 0
    cluster.put("resourceclaims", allocated_claim("far", {"device": "net", "pool": "shared"}))
    code, answer = explain("claim", "claim")
    assert code == 1
    assert all("it is held by claim default/far" in entry["devices"] for entry in answer["nodes"])


def test_pool_with_slices_of_two_nodes_is_evaluated_as_a_whole(cluster: FakeApi, explain: Explain) -> None:
    for node in ("n1", "n2"):
        cluster.put(
            "resourceslices",
            slice_of(device(f"d-{node}", {"model": "W"}), name=f"w-{node}", pool="wide", count=2, nodeName=node),
        )
    cluster.put("resourceclaims", claim(make_request(expression=model("W"))))
    cluster.put("pods", pod())
    assert explain("claim", "claim")[0] == 0, "complete only with the other node's slice"


def template(**more: Any) -> dict[str, Any]:
    spec = claim(make_request(**more))["spec"]
    return {"metadata": {"name": "one-gpu", "namespace": "default"}, "spec": {"spec": spec}}


def pod_with_template() -> dict[str, Any]:
    created = pod()
    created["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    return created


def test_missing_and_existing_template_are_explained(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("pods", pod_with_template())
    code, answer = explain("pod", "job")
    assert code == 1 and "there is no ResourceClaimTemplate default/one-gpu" in answer["summary"]
    cluster.put("resourceclaimtemplates", template(expression=model("C")))
    code, answer = explain("pod", "job")
    assert code == 1 and answer["claims"][0]["summary"] == "is still to be made"
    assert "none of 2 devices matches" in answer["summary"]


def test_claim_of_a_pod_group_belongs_to_its_pods(cluster: FakeApi, explain: Explain) -> None:
    """KEP-5729: a claim with the same name in pod and group is the group's, and reserved for the group."""
    entry = {"name": "gpu", "resourceClaimTemplateName": "template"}
    created = allocated_on("ring-gpu-x7", "n1", "gpu-a")
    created["status"]["reservedFor"] = [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "ring", "uid": "uid-ring"}
    ]
    cluster.put("resourceclaims", created)
    group = {"metadata": {"name": "ring", "namespace": "default"}, "spec": {"resourceClaims": [entry]}}
    group["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "ring-gpu-x7"}]}
    cluster.put("podgroups", group)
    member = pod(resourceClaims=[entry], schedulingGroup={"podGroupName": "ring"})
    cluster.put("pods", member)
    code, answer = explain("pod", "job")
    (claim_result,) = answer["claims"]
    assert (code, claim_result["claim"], claim_result["state"]) == (0, "default/ring-gpu-x7", "allocated")
    assert claim_result["reserved_for"] == ["pod group ring"]
    assert answer["notes"] == ["pod group ring is placed as a whole; this evaluates pod job only"]


def test_missing_pod_group_is_noted(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request()))
    cluster.put("pods", pod(schedulingGroup={"podGroupName": "ring"}))
    _, answer = explain("pod", "job")
    assert "there is no pod group default/ring, which pod job waits for" in answer["notes"]


def test_quota_that_blocks_a_claim_is_named(cluster: FakeApi, explain: Explain) -> None:
    key = "any.deviceclass.resource.k8s.io/devices"
    quota = {"metadata": {"name": "gpus", "namespace": "default"}, "spec": {"hard": {key: "2"}}}
    cluster.put("resourcequotas", quota)
    cluster.set_status("resourcequotas", "default", "gpus", {"hard": {key: "2"}, "used": {key: "1"}})
    cluster.put("resourceclaimtemplates", template(count=2))
    cluster.put("pods", pod_with_template())
    code, answer = explain("pod", "job")
    assert code == 1
    assert answer["summary"] == f"claim gpu: quota gpus allows 2 of {key}, 1 are used, and it needs 2"


def test_missing_admin_access_label_is_named(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaimtemplates", template(adminAccess=True))
    cluster.put("pods", pod_with_template())
    code, answer = explain("pod", "job")
    assert code == 1 and "has no label resource.kubernetes.io/admin-access=true" in answer["summary"]
    labels = {"resource.kubernetes.io/admin-access": "true"}
    cluster.put("namespaces", {"metadata": {"name": "default", "labels": labels}})
    assert explain("pod", "job")[0] == 0


def test_extended_resource_is_explained_like_a_claim(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("deviceclasses", {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}})
    created = pod()
    created["spec"]["resourceClaims"] = []
    created["spec"]["containers"] = [{"name": "c", "resources": {"limits": {"example.com/gpu": "3", "cpu": "1"}}}]
    cluster.put("pods", created)
    code, answer = explain("pod", "job")
    assert code == 1 and "3 are needed" in answer["summary"]


@pytest.mark.parametrize(
    ("years", "serving"),
    [({"a": 2025, "b": 2026}, "b"), ({"a": 2026, "b": 2025}, "a"), ({"b": 2026, "a": 2026}, "a")],
)
def test_of_several_classes_the_newest_serves_an_extended_resource(years: dict[str, int], serving: str) -> None:
    classes = [
        {
            "metadata": {"name": name, "creationTimestamp": f"{year}-01-01T00:00:00Z"},
            "spec": {"extendedResourceName": "example.com/gpu"},
        }
        for name, year in years.items()
    ]
    created = pod()
    created["spec"]["resourceClaims"] = []
    created["spec"]["containers"] = [{"name": "c", "resources": {"limits": {"example.com/gpu": "1"}}}]
    (need,) = pod_claims(Snapshot("default", classes=classes), created)
    assert need.claim is not None
    (request,) = need.claim["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == serving


def test_pod_without_claims_is_explained(cluster: FakeApi, explain: Explain) -> None:
    created = pod()
    created["spec"]["resourceClaims"] = []
    cluster.put("pods", created)
    code, answer = explain("pod", "job")
    assert code == 0 and "uses no claim" in answer["summary"]


def test_node_option_shows_the_devices_of_one_node(cluster: FakeApi, command: Run) -> None:
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    cluster.put("pods", pod())
    code, text, _ = command("claim", "claim", "--node", "n2")
    assert code == 0
    assert "node n2:" in text and "gpu-b" in text and "n1" not in text


def test_events_of_the_agent_are_shown(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", allocated_on("claim", "n1", "gpu-a", pods=("job",)))
    event = {
        "metadata": {"name": "e1", "namespace": "default"},
        "regarding": {"kind": "ResourceClaim", "name": "claim"},
        "type": "Warning",
        "reason": "PrepareFailed",
        "note": "config[0]: unknown kind",
        "eventTime": "2026-11-21T20:00:00.000000Z",
    }
    cluster.put("events", event)
    cluster.put("events", {**event, "metadata": {"name": "e2", "namespace": "default"}, "regarding": {"name": "x"}})
    _, answer = explain("claim", "claim")
    assert answer["events"] == ["PrepareFailed: config[0]: unknown kind"]


@pytest.mark.parametrize(
    ("plural", "message"),
    [
        ("/resourceslices", "cannot list resourceslices"),
        ("/deviceclasses", "cannot list deviceclasses"),
        ("/nodes", "cannot list nodes"),
        ("/v1/resourceclaims", "cannot list resourceclaims"),
        ("/resourcequotas", "cannot list resourcequotas in namespace default"),
        ("/namespaces/default?", "cannot get namespace default"),
        ("/resourceclaimtemplates", "cannot list resourceclaimtemplates in namespace default"),
    ],
)
def test_missing_permission_is_noted_and_the_rest_explained(
    cluster: FakeApi, explain: Explain, plural: str, message: str
) -> None:
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    cluster.put("pods", pod())
    path = plural if not plural.endswith("?") else plural[:-1]
    if plural.endswith("?"):
        cluster.faults.add(_only(path))
    else:
        cluster.fail(403, methods="GET", path=path, times=None)
    _, answer = explain("claim", "claim")
    assert [note for note in answer["notes"] if note.startswith(message)]
    assert answer["pods"] and answer["claims"][0]["state"] == "pending"
    assert bool(answer["nodes"]) == (plural != "/resourceslices")


def _only(path: str) -> Any:
    from fake_apiserver.faults import Fault

    class Exactly(Fault):
        def matches(self, method: str, target: str) -> bool:
            return target.partition("?")[0].endswith(self.path)

    return Exactly(status=403, path=path, times=None)


def test_permission_for_one_pod_is_sufficient(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(make_request(expression=model("C"))))
    cluster.put("pods", pod())
    for path in ("/pods?", "/resourceclaims?"):
        cluster.fail(403, methods="GET", path=path, times=None)
    code, answer = explain("pod", "job")
    assert code == 1 and answer["pods"][0]["pod"] == "default/job"


@pytest.mark.parametrize(("kind", "plural"), [("pod", "pods"), ("claim", "resourceclaims")])
def test_an_object_that_may_not_be_read_is_a_failure_and_an_absent_one_wrong_use(
    cluster: FakeApi, command: Run, kind: str, plural: str
) -> None:
    cluster.fail(403, methods="GET", path=f"/{plural}?", times=None)
    denied = f"there is no {kind} nothing in namespace x that can be read: cannot list {plural}"
    # It may be read by name, and the server has none.
    code, _, message = command(kind, "nothing", "-n", "x")
    assert code == 2 and denied in message
    cluster.fail(403, methods="GET", path=f"/{plural}/nothing", times=None)
    code, _, message = command(kind, "nothing", "-n", "x")
    assert code == 1 and denied in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("claim", "nothing"), "there is no claim nothing in namespace default; choose the namespace with -n"),
        (("pod", "nothing", "-n", "x"), "there is no pod nothing in namespace x"),
        (("claim",), "which claim?; write claim/NAME"),
        ((), "nothing to explain; give -f FILE, or claim/NAME, or pod/NAME"),
        (("claim", "x", "--slices", "y"), "--slices is for files"),
        (("claim", "x", "-f", "y"), "files and an object of a cluster at once"),
    ],
)
def test_invalid_arguments_are_reported(
    cluster: FakeApi, command: Run, arguments: tuple[str, ...], message: str
) -> None:
    code, _, errors = command(*arguments)
    assert code == 2 and message in errors


def test_unavailable_server_is_one_message(cluster: FakeApi, command: Run) -> None:
    cluster.fail(503, times=None)
    code, _, message = command("claim", "x")
    assert code == 1 and len(message.splitlines()) == 1 and "503" in message


def test_many_nodes_are_grouped_by_reason(cluster: FakeApi, command: Run) -> None:
    for number in range(40):
        node = f"m{number:02}"
        cluster.put("nodes", {"metadata": {"name": node}, "spec": {}})
        cluster.put("resourceslices", slice_of(device("d", {"model": "M"}), name=f"{node}-s", pool=node, nodeName=node))
    cluster.put("resourceclaims", claim(make_request(expression=model("C"))))
    cluster.put("pods", pod())
    code, text, _ = command("claim", "claim")
    assert code == 1 and "m00 and 39 more" in text and "n1 and 1 more" in text


def test_nodes_are_evaluated_in_parallel_and_listed_in_order(cluster: FakeApi, explain: Explain) -> None:
    for number in range(30):
        node = f"m{number:02}"
        cluster.put("nodes", {"metadata": {"name": node}, "spec": {}})
        created = slice_of(device("d", {"model": f"M{number}"}), name=f"{node}-s", pool=node, nodeName=node)
        cluster.put("resourceslices", created)
    cluster.put("resourceclaims", claim(make_request(expression=model("M7"))))
    cluster.put("pods", pod())
    code, answer = explain("claim", "claim")
    nodes = [entry["node"] for entry in answer["nodes"]]
    assert code == 0 and nodes == sorted(nodes) and len(nodes) == 32
    assert [entry["node"] for entry in answer["nodes"] if entry["fits"]] == ["m07"]
    assert all(entry["explanation"]["node"] == entry["node"] for entry in answer["nodes"])


@pytest.mark.parametrize("words", [("claim", "claim"), ("pod", "job")])
def test_the_timeout_is_for_one_claim_too(
    cluster: FakeApi, explain: Explain, command: Run, words: tuple[str, str]
) -> None:
    cluster.put("resourceclaims", claim(make_request(expression=model("A"))))
    cluster.put("pods", pod())
    code, answer = explain(*words, "--timeout", "0")
    assert (code, answer["summary"]) == (1, "is not evaluated on any of 2 nodes: no result in time")
    assert answer["unexamined"] == ["n1", "n2"]
    assert "not evaluated: no result in time" in command(*words, "--timeout", "0")[1]
    assert explain(*words, "--timeout", "1h")[0] == 0

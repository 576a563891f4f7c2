"""`dra-agent explain claim|pod` against an API server: each reason for which a claim waits, by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import DRIVER, ask, claim, device, held, model, slice_of
from dra_agent.cli.main import main
from fake_apiserver.fake import FakeApi

Run = Callable[..., tuple[int, str, str]]
Explain = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def command(
    fake_api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command; gives its exit code, output and errors."""
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["explain", *arguments, "--kubeconfig", str(path)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def explain(command: Run) -> Explain:
    """Run the command twice: for people, which must not fail, and for programs."""

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code, shown, _ = command(*arguments)
        again, printed, _ = command(*arguments, "-o", "json")
        answer: dict[str, Any] = json.loads(printed)
        assert code == again and answer["summary"] in shown
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
    """A pending pod; `claims` are names of claims by the pod's names for them."""
    wanted = [{"name": key, "resourceClaimName": value} for key, value in (claims or {"gpu": "claim"}).items()]
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c"}], "resourceClaims": wanted, **spec},
        "status": {"phase": "Pending"},
    }


def holding(name: str, node: str, *devices: str, pods: tuple[str, ...] = ()) -> dict[str, Any]:
    made = held(name, *({"device": one, "pool": node} for one in devices))
    made["status"]["reservedFor"] = [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in pods]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    made["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    return made


def by_node(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["node"]: entry for entry in answer["nodes"]}


def test_a_selector_that_matches_nothing(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask(expression=model("C"))))
    cluster.put("pods", pod())
    code, answer = explain("claim", "claim")
    assert code == 1
    assert "fits on none of 2 nodes" in answer["summary"] and "none of 2 devices matches" in answer["summary"]
    devices = by_node(answer)["n2"]["explanation"]["claims"][0]["requests"][0]["devices"]
    assert [one["rejections"][0]["kind"] for one in devices] == ["selector", "selector"]


def test_all_devices_held_and_by_whom(cluster: FakeApi, explain: Explain, command: Run) -> None:
    cluster.put("resourceclaims", claim(ask(expression=model("A"))))
    cluster.put("resourceclaims", holding("train", "n1", "gpu-a", pods=("train-0", "train-1")))
    other = holding("serve", "n2", "gpu-a", pods=("serve-0",))
    cluster.put("resourceclaims", {**other, "metadata": {**other["metadata"], "namespace": "team-b"}})
    cluster.put("pods", pod())
    code, answer = explain("pod", "job", "-n", "default")
    assert code == 1
    assert answer["holders"] == [
        {"claim": "default/train", "devices": ["n1: gpu-a"], "reserved_for": ["pod train-0", "pod train-1"]},
        {"claim": "team-b/serve", "devices": ["n2: gpu-a"], "reserved_for": ["pod serve-0"]},
    ]
    assert "it is held by claim default/train" in by_node(answer)["n1"]["devices"]
    shown = command("pod", "job")[1]
    assert "pod train-0, pod train-1" in shown and "team-b/serve" in shown


def test_a_taint_that_is_not_tolerated(cluster: FakeApi, explain: Explain) -> None:
    taints = [{"key": "dra-agent.internal/xid", "effect": "NoExecute"}]
    cluster.put(
        "resourceslices", slice_of(device("gpu-a", {"model": "T"}, taints=taints), name="n1-t", pool="t", nodeName="n1")
    )
    cluster.put("resourceclaims", claim(ask(expression=model("T"))))
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
def test_a_taint_of_a_device_taint_rule(
    cluster: FakeApi, explain: Explain, selector: dict[str, str] | None, tainted: set[str]
) -> None:
    spec: dict[str, Any] = {"taint": {"key": "drain", "effect": "NoSchedule"}}
    if selector is not None:
        spec["deviceSelector"] = selector
    cluster.put("devicetaintrules", {"metadata": {"name": "drain"}, "spec": spec})
    cluster.put("resourceclaims", claim(ask(expression=model("A"))))
    cluster.put("pods", pod())
    _, answer = explain("claim", "claim")
    assert {name for name, entry in by_node(answer).items() if "tainted with drain" in entry["devices"]} == tainted
    assert answer["fits"] == (tainted != {"n1", "n2"})


def test_a_constraint_that_cannot_hold(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask(count=2), constraints=[{"matchAttribute": f"{DRIVER}/numa"}]))
    cluster.put("pods", pod())
    code, answer = explain("claim", "claim")
    assert code == 1 and f"no value of {DRIVER}/numa is shared by enough available devices" in answer["summary"]


def test_a_class_that_is_not_there(cluster: FakeApi, explain: Explain) -> None:
    wrong = ask()
    wrong["exactly"]["deviceClassName"] = "gpus"
    cluster.put("resourceclaims", claim(wrong))
    cluster.put("pods", pod())
    code, answer = explain("pod", "job")
    assert (code, answer["summary"]) == (1, "there is no DeviceClass gpus")


def test_a_node_selector_keeps_the_pod_from_the_devices(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask(expression=model("A"))))
    cluster.put("resourceclaims", holding("train", "n1", "gpu-a"))
    cluster.put("pods", pod(nodeSelector={"zone": "zone-n1"}))
    code, answer = explain("claim", "claim")
    assert code == 1
    assert answer["summary"] == (
        "its devices are free only where the pod may not be: n2: the pod's nodeSelector requires zone=zone-n1, "
        "the node has zone=zone-n2"
    )
    assert by_node(answer)["n1"]["obstacles"] == []


def test_what_is_not_about_devices_is_told_apart(cluster: FakeApi, explain: Explain, command: Run) -> None:
    for name in ("n1", "n2"):
        node = cluster.store.get("nodes", "", name)
        node["spec"] = {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}
        if name == "n2":
            node["spec"]["unschedulable"] = True
        cluster.put("nodes", node)
    cluster.put("resourceclaims", claim(ask()))
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
    shown = command("pod", "job")[1]
    assert "NOT ABOUT DEVICES" in shown and "Insufficient cpu" in shown


def test_a_pod_for_which_there_are_devices(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask(expression=model("A"))))
    cluster.put("pods", pod(tolerations=[{"operator": "Exists"}]))
    code, answer = explain("pod", "job")
    assert code == 0
    assert answer["summary"] == "its devices are free on nodes n1, n2; if it stays pending, that is not about devices"
    assert answer["pods"][0]["scheduler"] == "default-scheduler has not evaluated it yet"


def test_a_claim_that_no_pod_uses(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask()))
    code, answer = explain("claim", "claim")
    assert code == 1 and answer["summary"].startswith("no pod of namespace default uses it, so it is not allocated; ")


def test_pods_that_have_ended_use_nothing(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask()))
    ended = pod(nodeName="n1")
    ended["status"]["phase"] = "Succeeded"
    cluster.put("pods", ended)
    assert explain("claim", "claim")[1]["summary"].startswith("no pod of namespace default uses it")
    cluster.put("pods", pod("fresh"))
    code, answer = explain("claim", "claim")
    assert code == 0 and [one["pod"] for one in answer["pods"]] == ["default/fresh"]


def test_a_pod_that_went_round_the_scheduler(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask()))
    cluster.put("pods", pod(nodeName="n1"))
    code, answer = explain("claim", "claim")
    assert code == 1 and "no scheduler chose its devices" in answer["summary"]


def test_the_namespace_is_that_of_the_context(
    cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = claim(ask())
    cluster.put("resourceclaims", {**made, "metadata": {"name": "mine", "namespace": "team-b"}})
    path = cluster.kubeconfig(tmp_path / "own")
    config = json.loads(path.read_text())
    config["contexts"][0]["context"]["namespace"] = "team-b"
    path.write_text(json.dumps(config))
    assert main(["explain", "claim", "mine", "--kubeconfig", str(path)]) == 1
    assert "claim team-b/mine: no pod" in capsys.readouterr().out


def test_scheduling_gates(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask()))
    cluster.put("pods", pod(schedulingGates=[{"name": "example.com/quota"}]))
    _, answer = explain("pod", "job")
    assert answer["pods"][0]["scheduler"] == "waits for its scheduling gates to go: example.com/quota"


def test_an_allocated_claim_says_where_and_for_whom(cluster: FakeApi, explain: Explain) -> None:
    made = holding("claim", "n1", "gpu-a", pods=("job",))
    condition = {"type": "Ready", "status": "False", "reason": "Unhealthy", "message": "XID 79"}
    made["status"]["devices"] = [{"driver": DRIVER, "pool": "n1", "device": "gpu-a", "conditions": [condition]}]
    cluster.put("resourceclaims", made)
    cluster.put("pods", pod(nodeName="n1"))
    code, answer = explain("claim", "claim")
    assert (code, answer["claims"][0]["state"]) == (0, "allocated")
    assert answer["summary"] == ("is allocated gpu-a on node n1, reserved for pod job; gpu-a is not ready: XID 79")
    code, answer = explain("pod", "job")
    assert (code, answer["summary"]) == (0, "its claims are allocated, and it is on node n1")


def test_a_claim_that_waits_to_be_deleted(cluster: FakeApi, explain: Explain) -> None:
    made = holding("claim", "n1", "gpu-a", pods=("job",))
    made["metadata"] |= {
        "deletionTimestamp": "2026-11-21T20:00:00Z",
        "finalizers": ["resource.kubernetes.io/delete-protection"],
    }
    cluster.put("resourceclaims", made)
    code, answer = explain("claim", "claim")
    assert code == 1
    assert answer["summary"] == "is being deleted since 2026-11-21T20:00:00Z, and waits until pod job ended"


def test_a_claim_that_is_allocated_binds_the_others_of_its_pod_to_its_node(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask(expression=model("A"))))
    cluster.put("resourceclaims", holding("first", "n1", "gpu-b"))
    cluster.put("resourceclaims", holding("other", "n1", "gpu-a"))
    cluster.put("pods", pod(claims={"gpu": "claim", "first": "first"}))
    code, answer = explain("pod", "job")
    assert code == 1 and "n2: claim first is allocated elsewhere" in answer["summary"]


def test_claims_of_one_pod_are_judged_together(cluster: FakeApi, explain: Explain) -> None:
    for name in ("one", "two"):
        cluster.put("resourceclaims", claim(ask(expression=model("A")), name=name))
    cluster.put("pods", pod(claims={"one": "one", "two": "two"}))
    code, answer = explain("pod", "job")
    assert code == 1 and "fits on none of 2 nodes" in answer["summary"]
    code, answer = explain("claim", "one")
    assert code == 1, "it is allocated together with the other one, or not at all"


def test_a_node_without_slices(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("nodes", {"metadata": {"name": "n3"}, "spec": {}})
    cluster.put("resourceclaims", claim(ask()))
    cluster.put("pods", pod(nodeSelector={"kubernetes.io/hostname": "n3"}))
    _, answer = explain("pod", "job")
    assert by_node(answer)["n3"]["devices"] == "no driver has published devices for it"


def test_an_incomplete_and_an_invalid_pool(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceslices", slice_of(device("x", {"model": "X"}), name="s1", pool="torn", count=2, nodeName="n1"))
    for name in ("s2", "s3"):
        cluster.put(
            "resourceslices", slice_of(device("y", {"model": "Y"}), name=name, pool="double", count=2, nodeName="n2")
        )
    cluster.put("resourceclaims", claim(ask(expression=model("X"))))
    cluster.put("pods", pod())
    _, answer = explain("claim", "claim")
    problems = {pool["pool"]: pool["problem"] for entry in answer["nodes"] for pool in entry["explanation"]["pools"]}
    assert "incomplete" in problems["torn"] or "1 of 2" in problems["torn"]
    assert problems["double"] and problems["n1"] is None
    assert problems["torn"] in by_node(answer)["n1"]["devices"]


def test_a_pool_of_all_nodes_and_who_holds_it_is_seen_from_each(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceslices", slice_of(device("net", {"model": "N"}), name="all", pool="shared", allNodes=True))
    cluster.put("resourceclaims", claim(ask(expression=model("N"))))
    cluster.put("pods", pod())
    assert explain("claim", "claim")[0] == 0
    cluster.put("resourceclaims", held("far", {"device": "net", "pool": "shared"}))
    code, answer = explain("claim", "claim")
    assert code == 1
    assert all("it is held by claim default/far" in entry["devices"] for entry in answer["nodes"])


def test_a_pool_with_slices_of_two_nodes_is_judged_whole(cluster: FakeApi, explain: Explain) -> None:
    for node in ("n1", "n2"):
        cluster.put(
            "resourceslices",
            slice_of(device(f"d-{node}", {"model": "W"}), name=f"w-{node}", pool="wide", count=2, nodeName=node),
        )
    cluster.put("resourceclaims", claim(ask(expression=model("W"))))
    cluster.put("pods", pod())
    assert explain("claim", "claim")[0] == 0, "complete only when the other node's slice is counted"


def template(**more: Any) -> dict[str, Any]:
    spec = claim(ask(**more))["spec"]
    return {"metadata": {"name": "one-gpu", "namespace": "default"}, "spec": {"spec": spec}}


def of_template() -> dict[str, Any]:
    made = pod()
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    return made


def test_a_template_that_is_not_there_and_one_that_is(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("pods", of_template())
    code, answer = explain("pod", "job")
    assert code == 1 and "there is no ResourceClaimTemplate default/one-gpu" in answer["summary"]
    cluster.put("resourceclaimtemplates", template(expression=model("C")))
    code, answer = explain("pod", "job")
    assert code == 1 and answer["claims"][0]["summary"] == "is still to be made"
    assert "none of 2 devices matches" in answer["summary"]


def test_the_claim_of_a_pod_group_is_the_pods(cluster: FakeApi, explain: Explain) -> None:
    """KEP-5729: a claim that pod and group call by the same names is the group's, and reserved for the group."""
    entry = {"name": "gpu", "resourceClaimTemplateName": "template"}
    made = holding("ring-gpu-x7", "n1", "gpu-a")
    made["status"]["reservedFor"] = [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "ring", "uid": "uid-ring"}
    ]
    cluster.put("resourceclaims", made)
    group = {"metadata": {"name": "ring", "namespace": "default"}, "spec": {"resourceClaims": [entry]}}
    group["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "ring-gpu-x7"}]}
    cluster.put("podgroups", group)
    member = pod(resourceClaims=[entry], schedulingGroup={"podGroupName": "ring"})
    cluster.put("pods", member)
    code, answer = explain("pod", "job")
    (told,) = answer["claims"]
    assert (code, told["claim"], told["state"]) == (0, "default/ring-gpu-x7", "allocated")
    assert told["reserved_for"] == ["pod group ring"]
    assert answer["notes"] == ["pod group ring is placed as a whole; this evaluates pod job only"]


def test_a_pod_group_that_is_not_there_is_said(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask()))
    cluster.put("pods", pod(schedulingGroup={"podGroupName": "ring"}))
    _, answer = explain("pod", "job")
    assert "there is no pod group default/ring, which pod job waits for" in answer["notes"]


def test_a_quota_that_keeps_a_claim_from_being_made(cluster: FakeApi, explain: Explain) -> None:
    key = "any.deviceclass.resource.k8s.io/devices"
    quota = {"metadata": {"name": "gpus", "namespace": "default"}, "spec": {"hard": {key: "2"}}}
    cluster.put("resourcequotas", quota)
    cluster.set_status("resourcequotas", "default", "gpus", {"hard": {key: "2"}, "used": {key: "1"}})
    cluster.put("resourceclaimtemplates", template(count=2))
    cluster.put("pods", of_template())
    code, answer = explain("pod", "job")
    assert code == 1
    assert answer["summary"] == f"claim gpu: quota gpus allows 2 of {key}, 1 are used, and it needs 2"


def test_admin_access_needs_a_label_on_the_namespace(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaimtemplates", template(adminAccess=True))
    cluster.put("pods", of_template())
    code, answer = explain("pod", "job")
    assert code == 1 and "has no label resource.kubernetes.io/admin-access=true" in answer["summary"]
    labels = {"resource.kubernetes.io/admin-access": "true"}
    cluster.put("namespaces", {"metadata": {"name": "default", "labels": labels}})
    assert explain("pod", "job")[0] == 0


def test_an_extended_resource_is_a_claim_too(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("deviceclasses", {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}})
    made = pod()
    made["spec"]["resourceClaims"] = []
    made["spec"]["containers"] = [{"name": "c", "resources": {"limits": {"example.com/gpu": "3", "cpu": "1"}}}]
    cluster.put("pods", made)
    code, answer = explain("pod", "job")
    assert code == 1 and "3 are needed" in answer["summary"]


def test_a_pod_without_claims(cluster: FakeApi, explain: Explain) -> None:
    made = pod()
    made["spec"]["resourceClaims"] = []
    cluster.put("pods", made)
    code, answer = explain("pod", "job")
    assert code == 0 and "uses no claim" in answer["summary"]


def test_one_node_is_chosen_and_its_devices_shown(cluster: FakeApi, command: Run) -> None:
    cluster.put("resourceclaims", claim(ask(expression=model("A"))))
    cluster.put("pods", pod())
    code, shown, _ = command("claim", "claim", "--node", "n2")
    assert code == 0
    assert "node n2:" in shown and "gpu-b" in shown and "n1" not in shown


def test_events_of_the_agent_are_shown(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", holding("claim", "n1", "gpu-a", pods=("job",)))
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
    ("plural", "said"),
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
def test_a_missing_right_is_said_and_the_rest_answered(
    cluster: FakeApi, explain: Explain, plural: str, said: str
) -> None:
    cluster.put("resourceclaims", claim(ask(expression=model("A"))))
    cluster.put("pods", pod())
    path = plural if not plural.endswith("?") else plural[:-1]
    if plural.endswith("?"):
        cluster.faults.add(_only(path))
    else:
        cluster.fail(403, methods="GET", path=path, times=None)
    _, answer = explain("claim", "claim")
    assert [note for note in answer["notes"] if note.startswith(said)]
    assert answer["pods"] and answer["claims"][0]["state"] == "pending"
    assert bool(answer["nodes"]) == (plural != "/resourceslices")


def _only(path: str) -> Any:
    from fake_apiserver.faults import Fault

    class Exactly(Fault):
        def matches(self, method: str, target: str) -> bool:
            return target.partition("?")[0].endswith(self.path)

    return Exactly(status=403, path=path, times=None)


def test_one_pod_may_be_all_that_a_user_sees(cluster: FakeApi, explain: Explain) -> None:
    cluster.put("resourceclaims", claim(ask(expression=model("C"))))
    cluster.put("pods", pod())
    for path in ("/pods?", "/resourceclaims?"):
        cluster.fail(403, methods="GET", path=path, times=None)
    code, answer = explain("pod", "job")
    assert code == 1 and answer["pods"][0]["pod"] == "default/job"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("claim", "nothing"), "there is no claim nothing in namespace default; choose the namespace with -n"),
        (("pod", "nothing", "-n", "x"), "there is no pod nothing in namespace x"),
        (("claim",), "which claim?; write explain claim NAME"),
        ((), "nothing to explain; give -f FILE, or claim NAME, or pod NAME"),
        (("claim", "x", "--slices", "y"), "--slices is for files"),
        (("claim", "x", "-f", "y"), "files and an object of a cluster at once"),
    ],
)
def test_wrong_use_is_said(cluster: FakeApi, command: Run, arguments: tuple[str, ...], message: str) -> None:
    code, _, said = command(*arguments)
    assert code == 2 and message in said


def test_a_server_that_is_away_is_one_message(cluster: FakeApi, command: Run) -> None:
    cluster.fail(503, times=None)
    code, _, said = command("claim", "x")
    assert code == 1 and len(said.splitlines()) == 1 and "503" in said


def test_many_nodes_are_counted_by_reason(cluster: FakeApi, command: Run) -> None:
    for number in range(40):
        node = f"m{number:02}"
        cluster.put("nodes", {"metadata": {"name": node}, "spec": {}})
        cluster.put("resourceslices", slice_of(device("d", {"model": "M"}), name=f"{node}-s", pool=node, nodeName=node))
    cluster.put("resourceclaims", claim(ask(expression=model("C"))))
    cluster.put("pods", pod())
    code, shown, _ = command("claim", "claim")
    assert code == 1 and "m00 and 39 more" in shown and "n1 and 1 more" in shown


def test_nodes_are_judged_side_by_side_and_told_in_their_order(cluster: FakeApi, explain: Explain) -> None:
    for number in range(30):
        node = f"m{number:02}"
        cluster.put("nodes", {"metadata": {"name": node}, "spec": {}})
        made = slice_of(device("d", {"model": f"M{number}"}), name=f"{node}-s", pool=node, nodeName=node)
        cluster.put("resourceslices", made)
    cluster.put("resourceclaims", claim(ask(expression=model("M7"))))
    cluster.put("pods", pod())
    code, answer = explain("claim", "claim")
    nodes = [entry["node"] for entry in answer["nodes"]]
    assert code == 0 and nodes == sorted(nodes) and len(nodes) == 32
    assert [entry["node"] for entry in answer["nodes"] if entry["fits"]] == ["m07"]
    assert all(entry["explanation"]["node"] == entry["node"] for entry in answer["nodes"])

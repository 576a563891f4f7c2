"""`dra-agent explain` and `dra-agent claims` on a real cluster: they report what the scheduler decided, and why."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import CLASSES, RESOURCE_QUOTAS, TAINT_RULES
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, container, cordon, match, opaque, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
LEVELS = 1200
"""Nested lists; Python decodes fewer than a thousand, Go ten thousand."""
OWN = 'device.attributes["dra-agent.internal"]'

Command = Callable[..., subprocess.CompletedProcess[str]]
Explain = Callable[..., dict[str, Any]]


@pytest.fixture
def explain(cluster: Cluster, namespace: Namespace, agent_command: Command) -> Explain:
    """Explain a claim or a pod of the namespace; the exit code is 0 exactly if it fits."""

    def run(kind: str, name: str, *more: str) -> dict[str, Any]:
        arguments = ["explain", kind, name, "-n", namespace.name, "--kubeconfig", str(cluster.kubeconfig), *more]

        def as_data() -> dict[str, Any]:
            result = agent_command(*arguments, "-o", "json", check=False)
            assert result.returncode in (0, 1) and result.stdout, result.stderr
            answer: dict[str, Any] = json.loads(result.stdout)
            assert (result.returncode == 0) == answer["fits"]
            return answer

        # The cluster can change between two calls: the text is compared if the calls before and after it agree.
        answers = [as_data()]

        def agree() -> bool:
            shown = agent_command(*arguments, check=False)
            answers.append(as_data())
            before, after = answers[-2:]
            if before["summary"] != after["summary"]:
                return False
            assert after["summary"] in shown.stdout
            return True

        until(agree, "two consecutive calls agree")
        assert answers[-1]["notes"] == []
        return answers[-1]

    return run


def by_node(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["node"]: entry for entry in answer["nodes"]}


def wait_until_unschedulable(namespace: Namespace, pod: str = "user") -> None:
    namespace.wait_for_scheduling_failure(pod, "0/2 nodes are available")


def test_selector_that_matches_nothing_is_named(
    agents: dict[str, Agent], namespace: Namespace, explain: Explain
) -> None:
    namespace.claim("mine", request("gpu", "gpu", f'{OWN}.architecture == "Blackwell"'))
    namespace.pod("user", claim="mine")
    wait_until_unschedulable(namespace)
    answer = explain("claim", "mine")
    assert not answer["fits"] and "selector 0 of request" in answer["summary"]
    assert {entry["fits"] for entry in answer["nodes"]} == {False}
    assert "0/2 nodes" in answer["pods"][0]["scheduler"]


def test_holders_of_all_devices_are_named(agents: dict[str, Agent], namespace: Namespace, explain: Explain) -> None:
    for number in range(2):
        namespace.claim(f"held-{number}", request("gpus", "gpu", f'{OWN}.architecture == "Ada Lovelace"', count=2))
        namespace.pod(f"holder-{number}", claim=f"held-{number}")
    namespace.running("holder-0", "holder-1")
    namespace.claim("mine", request("gpu", "gpu", f'{OWN}.architecture == "Ada Lovelace"'))
    namespace.pod("user", claim="mine")
    wait_until_unschedulable(namespace)
    answer = explain("pod", "user")
    assert not answer["fits"]
    assert {holder["claim"]: holder["reserved_for"] for holder in answer["holders"]} == {
        f"{namespace.name}/held-{number}": [f"pod holder-{number}"] for number in range(2)
    }
    assert "are held" in by_node(answer)["node-b"]["devices"]
    namespace.delete_pod("holder-0")
    namespace.running("user")
    assert "is on node node-b" in explain("pod", "user")["summary"]


def test_untolerated_taint_is_named(agents: dict[str, Agent], namespace: Namespace, explain: Explain) -> None:
    rule = f"{namespace.name}-drain"
    taint = {"key": "example.com/drain", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": "dra-agent.internal", "pool": "node-b/gpu"}, "taint": taint}
    namespace.api.create(TAINT_RULES, {"metadata": {"name": rule}, "spec": spec})
    try:
        namespace.wait_until_no_device(request("gpu", "gpu", f'{OWN}.architecture == "Ada Lovelace"'))
        namespace.claim("mine", request("gpu", "gpu", f'{OWN}.architecture == "Ada Lovelace"'))
        namespace.pod("user", claim="mine")
        wait_until_unschedulable(namespace)
        answer = explain("claim", "mine")
        assert (
            not answer["fits"] and "tainted with example.com/drain:NoSchedule" in by_node(answer)["node-b"]["devices"]
        )
    finally:
        namespace.api.delete(TAINT_RULES, rule)
    namespace.running("user")


def test_unsatisfiable_constraint_is_named(agents: dict[str, Agent], namespace: Namespace, explain: Explain) -> None:
    same = match("resource.kubernetes.io/pcieRoot", "gpus")
    namespace.claim("mine", request("gpus", "gpu", count=2), constraints=[same])
    namespace.pod("user", claim="mine", node="node-a")
    wait_until_unschedulable(namespace)
    answer = explain("pod", "user")
    assert not answer["fits"]
    assert "no value of resource.kubernetes.io/pcieRoot" in by_node(answer)["node-a"]["devices"]


def test_missing_device_class_is_named(agents: dict[str, Agent], namespace: Namespace, explain: Explain) -> None:
    namespace.claim("mine", request("gpu", "no-such-class"))
    namespace.pod("user", claim="mine")
    namespace.api.wait(lambda: explain("pod", "user")["pods"][0]["scheduler"], "the scheduler has handled the pod")
    answer = explain("pod", "user")
    assert not answer["fits"] and answer["summary"] == "there is no DeviceClass no-such-class"


def test_node_selector_that_excludes_free_devices_is_named(
    agents: dict[str, Agent], namespace: Namespace, explain: Explain
) -> None:
    namespace.claim("mine", request("gpu", "gpu", f'{OWN}.architecture == "Hopper"'))
    namespace.pod("user", claim="mine", node="node-b")
    wait_until_unschedulable(namespace)
    answer = explain("claim", "mine")
    assert not answer["fits"]
    assert "its devices are free only where the pod may not be: node-a" in answer["summary"]
    assert "nodeSelector" in by_node(answer)["node-a"]["obstacles"][0]
    assert by_node(answer)["node-b"]["obstacles"] == []


def test_cordoned_node_is_named(agents: dict[str, Agent], namespace: Namespace, explain: Explain) -> None:
    cordon(namespace.cluster, "node-b")
    namespace.claim("mine", request("gpu", "gpu", f'{OWN}.architecture == "Ada Lovelace"'))
    namespace.pod("user", claim="mine")
    wait_until_unschedulable(namespace)
    answer = explain("pod", "user")
    assert not answer["fits"] and by_node(answer)["node-b"]["fits"]
    assert by_node(answer)["node-b"]["obstacles"] == ["the node is cordoned"]


def test_claim_without_a_pod_is_explained(agents: dict[str, Agent], namespace: Namespace, explain: Explain) -> None:
    namespace.claim("mine", request("gpu", "gpu"))
    answer = explain("claim", "mine")
    assert not answer["fits"] and answer["summary"].startswith("no pod of namespace")
    assert by_node(answer)["node-a"]["fits"]


def test_allocated_and_terminating_claim_is_explained(
    agents: dict[str, Agent], namespace: Namespace, explain: Explain
) -> None:
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.running("user")
    (result,) = namespace.results("mine")
    assert explain("claim", "mine")["summary"] == (
        f"is allocated {result['device']} on node node-a, reserved for pod user"
    )
    namespace.delete_claim("mine")
    assert "and waits until pod user ended" in explain("claim", "mine")["summary"]


def test_missing_claim_template_is_named(agents: dict[str, Agent], namespace: Namespace, explain: Explain) -> None:
    namespace.pod("user", template="nothing")
    answer = explain("pod", "user")
    assert not answer["fits"] and "there is no ResourceClaimTemplate" in answer["summary"]


def test_quota_that_blocks_a_claim_is_named(agents: dict[str, Agent], namespace: Namespace, explain: Explain) -> None:
    key = "gpu.deviceclass.resource.k8s.io/devices"
    namespace.api.create(RESOURCE_QUOTAS, {"metadata": {"name": "one"}, "spec": {"hard": {key: "1"}}}, namespace.name)
    namespace.template("two-gpus", request("gpu", "gpu", count=2))
    namespace.pod("user", template="two-gpus")
    quota = f"quota one allows 1 of {key}, 0 are used, and it needs 2"
    namespace.api.wait(lambda: quota in explain("pod", "user")["summary"], "the quota is named")
    answer = explain("pod", "user")
    assert not answer["fits"] and answer["claims"][0]["state"] == "missing"
    # Kubernetes itself reports it in an Event of the pod, which is shown as well.
    namespace.api.wait(
        lambda: any("exceeded quota" in event for event in explain("pod", "user")["events"]), "the Event is shown"
    )


def test_extended_resource_without_free_devices_is_named(
    agents: dict[str, Agent], namespace: Namespace, explain: Explain
) -> None:
    name = f"{namespace.name}-ada"
    expression = f'device.driver == "dra-agent.internal" && {OWN}.?architecture.orValue("") == "Ada Lovelace"'
    spec = {"extendedResourceName": "example.com/ada", "selectors": [{"cel": {"expression": expression}}]}
    namespace.api.create(CLASSES, {"metadata": {"name": name}, "spec": spec})
    wanted: dict[str, Any] = {"resources": {"requests": {"example.com/ada": "5"}, "limits": {"example.com/ada": "5"}}}
    namespace.pod("user", containers=[container("main", **wanted)])
    wait_until_unschedulable(namespace)
    answer = explain("pod", "user")
    assert not answer["fits"] and "5 are needed" in by_node(answer)["node-b"]["devices"]


def test_missing_permission_of_the_user_is_noted(
    cluster: Cluster, agents: dict[str, Agent], namespace: Namespace, agent_command: Command
) -> None:
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine")
    namespace.running("user")
    cluster.kubectl("create", "role", "reader", "--verb=get", "--resource=resourceclaims,pods", "-n", namespace.name)
    account = f"--serviceaccount={namespace.name}:default"
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", account, "-n", namespace.name)
    token = cluster.kubectl("create", "token", "default", "-n", namespace.name).strip()
    path = cluster.directory / f"{namespace.name}.kubeconfig"
    kubeconfig = cluster.control_plane.kubeconfig("reader", path, token=token)
    arguments = ["explain", "claim", "mine", "-n", namespace.name, "--kubeconfig", str(kubeconfig)]
    result = agent_command(*arguments, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "note: cannot list resourceslices: " in result.stdout
    assert "reserved for pod user" in result.stdout


def test_claims_are_listed_for_all_nodes_and_for_one(
    cluster: Cluster, agents: dict[str, Agent], namespace: Namespace, agent_command: Command
) -> None:
    for node in ("node-a", "node-b"):
        namespace.claim(f"on-{node}", request("gpu", "gpu"))
        namespace.pod(f"user-{node}", claim=f"on-{node}", node=node)
    namespace.running("user-node-a", "user-node-b")
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    listed = agent_command("claims", "--all-nodes", "-n", namespace.name, "-o", "json", *kubeconfig)
    rows = {row["node"]: row for row in json.loads(listed.stdout)}
    assert {node: row["used_by"] for node, row in rows.items()} == {
        "node-a": ["pod user-node-a"],
        "node-b": ["pod user-node-b"],
    }
    state = ("--state-dir", str(agents["node-a"].state_dir))
    (row,) = json.loads(agent_command("claims", *state, *kubeconfig, "-o", "json").stdout)
    assert row["claim"] == "on-node-a" and row["used_by"] == ["pod user-node-a"]
    assert row["device"] == namespace.results("on-node-a")[0]["device"]
    plugin = "import sys; from dra_cluster.cli.kubectl_plugin import main; sys.exit(main())"
    outputs = {}
    for words in (("claims", "-n", namespace.name, "-o", "json"), ("topology", "node-a"), ("reclaim", "status")):
        command = [sys.executable, "-c", plugin, *words, *kubeconfig]
        outputs[words[0]] = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert {row["node"]: row["used_by"] for row in json.loads(outputs["claims"])} == {
        node: row["used_by"] for node, row in rows.items()
    }
    assert f"held by {namespace.name}/on-node-a" in outputs["topology"] and "node" in outputs["reclaim"]
    # On the node itself the credentials are the agent's, which may read single claims only.
    own = cluster.identity().kubeconfig("node-a")
    (row,) = json.loads(agent_command("claims", *state, "--kubeconfig", str(own), "-o", "json").stdout)
    assert row["used_by"] == ["pod user-node-a"]


@pytest.fixture
def deep_json() -> Iterator[str]:
    """Parameters that the API server stores and decoders refuse; this process reads them until the test has ended."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * LEVELS)
    yield '{"lists":' + "[" * LEVELS + "]" * LEVELS + "}"
    sys.setrecursionlimit(limit)


def test_parameters_of_another_driver_that_decoders_refuse_hide_nothing(
    deep_json: str,
    cluster: Cluster,
    agents: dict[str, Agent],
    namespace: Namespace,
    agent_command: Command,
) -> None:
    theirs = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "theirs", "namespace": namespace.name},
        "spec": {
            "devices": {
                "requests": [request("gpu", "gpu")],
                "config": [opaque("other.example.com", {}, "gpu")],
            }
        },
    }
    path = cluster.directory / f"{namespace.name}-theirs.json"
    path.write_text(json.dumps(theirs).replace('"parameters": {}', f'"parameters": {deep_json}'))
    cluster.kubectl("create", "--validate=false", "-f", str(path))
    # Its agent prepares it too: the parameters are for another driver.
    namespace.pod("holder", claim="theirs")
    namespace.running("holder")
    namespace.claim("mine", request("gpu", "gpu"))
    where = ("-n", namespace.name, "--kubeconfig", str(cluster.kubeconfig))
    explained = agent_command("explain", "claim/mine", *where, "-o", "json", check=False)
    assert explained.returncode in (0, 1) and explained.stdout, explained.stderr
    counted = agent_command("capacity", "claim/mine", *where, "-o", "json", check=False)
    assert counted.stdout, counted.stderr
    answer, capacity = json.loads(explained.stdout), json.loads(counted.stdout)
    assert {entry["node"] for entry in answer["nodes"]} >= {"node-a", "node-b"}
    assert capacity["total"] > 0
    for notes in (answer["notes"], capacity["notes"]):
        assert any(note.startswith(f"ResourceClaim {namespace.name}/theirs: ") for note in notes), notes
    listed = agent_command("claims", "--all-nodes", *where, "-o", "json")
    assert [row["claim"] for row in json.loads(listed.stdout)] == ["theirs"]
    assert f"note: ResourceClaim {namespace.name}/theirs: " in listed.stderr

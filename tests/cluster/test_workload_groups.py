"""Groups of pod groups (KEP-6012), and pod groups of Jobs (KEP-5547), with claims: both are alpha in Kubernetes 1.37.

The slices are written by hand, for Nodes without a kubelet: two devices in each of two racks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from cluster.conftest import Explain
from cluster.kube.api import CLAIMS, CLASSES, JOBS, PODS, Kind, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.hand_written import ANYWHERE, node_with_devices
from cluster.kube.workload import Namespace, pod_spec, request
from cluster.test_gangs import POD_GROUPS, Gang
from cluster.test_kueue import BACKGROUND

COMPOSITES = Kind("scheduling.k8s.io/v1alpha3", "compositepodgroups")
PRIORITY_CLASSES = Kind("scheduling.k8s.io/v1", "priorityclasses", namespaced=False)
GATES = dict.fromkeys(
    (
        "GenericWorkload",
        "DRAWorkloadResourceClaims",
        "TopologyAwareWorkloadScheduling",
        "CompositePodGroup",
        "WorkloadWithJob",
    ),
    True,
)
DRIVER = "racks.example.com"
CLASS = "unit"
RACK = "example.com/rack"
ZONE = "example.com/zone"
NODES = {"r1": "node-of-r1", "r2": "node-of-r2"}
DEVICES_OF_RACK = 2
TEMPLATE = "one"


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A control plane with the gates on."""
    versions = {POD_GROUPS.version: True, COMPOSITES.version: True}
    with running(nodes=(), gates=GATES, runtime_config=versions) as cluster:
        yield cluster


@pytest.fixture
def racks(cluster: Cluster, namespace: Namespace) -> Iterator[None]:
    """A Node in each of two racks, their class, and a template of a claim for one device."""
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    cluster.api.create(CLASSES, {"metadata": {"name": CLASS}, "spec": spec})
    namespace.template(TEMPLATE, request("unit", CLASS))
    devices = [{"name": f"unit-{number}"} for number in range(DEVICES_OF_RACK)]
    first, second = (
        node_with_devices(cluster, node, DRIVER, devices, labels={RACK: rack}) for rack, node in NODES.items()
    )
    with first, second:
        yield
        # A Job would create its pods again.
        for job in cluster.api.list(JOBS, namespace.name):
            cluster.api.call("DELETE", JOBS.path(namespace.name, job["metadata"]["name"], None), BACKGROUND)
    cluster.api.delete(CLASSES, CLASS)


def use_one(namespace: Namespace, name: str, rack: str) -> None:
    """Use a device of a rack until the pod is deleted."""
    namespace.pod(name, template=TEMPLATE, nodeSelector={RACK: rack}, **ANYWHERE)
    namespace.api.wait(lambda: namespace.get_pod(name)["spec"]["nodeName"] == NODES[rack], f"{name} is bound")


# Groups of groups.


def composite(namespace: Namespace, name: str, groups: int, topology: str = "", parent: str = "") -> None:
    """Create a composite pod group that starts with this number of groups."""
    spec: Object = {
        "workloadRef": {"workloadName": name, "templateName": name},
        "schedulingPolicy": {"gang": {"minGroupCount": groups}},
    }
    if topology:
        spec["schedulingConstraints"] = {"topology": [{"key": topology}]}
    if parent:
        spec["parentCompositePodGroupName"] = parent
    namespace.api.create(COMPOSITES, {"metadata": {"name": name}, "spec": spec}, namespace.name)


def gang(
    namespace: Namespace,
    name: str,
    pods: int,
    parent: str,
    *,
    minimum: int | None = None,
    topology: str = "",
    **spec: Any,
) -> Gang:
    """Create a pod group whose pods use one device each; without a minimum it needs all of them."""
    needed = pods if minimum is None else minimum
    fields = {**ANYWHERE, **spec}
    return Gang(namespace, name, pods, TEMPLATE, minimum=needed, parent=parent, topology=topology, **fields)


def results(answer: Object) -> dict[str, bool | None]:
    """Return whether each group fits."""
    return {group["name"]: group["fits"] for group in answer["groups"]}


def message_of(namespace: Namespace, pod: str) -> str:
    """Return what the scheduler reports about a pod; empty before its first attempt."""
    conditions = namespace.get_pod(pod).get("status", {}).get("conditions", [])
    return next((str(one.get("message")) for one in conditions if one["type"] == "PodScheduled"), "")


def test_groups_of_a_composite_group_start_together(namespace: Namespace, racks: None, explain: Explain) -> None:
    """Each group would fit alone; both together do not.

    kube-scheduler 1.37.1 writes a condition of each pod group, and none of the composite group.
    """
    use_one(namespace, "other", "r1")
    composite(namespace, "both", 2)
    groups = [gang(namespace, name, 2, "both") for name in ("left", "right")]
    for group in groups:
        group.wait_for("False")
    assert not any(group.nodes() for group in groups)
    answer = explain("compositepodgroup/both")
    assert (answer["fits"], answer["placed"], answer["needed"]) == (False, 2, 4), answer["summary"]
    assert results(answer) == {"both": False, "left": True, "right": False}
    assert answer["failure"]["member"] == "right-1" and answer["failure"]["group"] == "right"
    for group in groups:
        answer = explain(f"podgroup/{group.name}")
        assert not answer["fits"] and answer["summary"].startswith("waits for composite pod group both: ")
    namespace.delete_pod("other", grace=0)
    namespace.api.wait(lambda: all(len(group.nodes()) == 2 for group in groups), "both groups are bound")
    assert sorted(node for group in groups for node in group.nodes().values()) == sorted([*NODES.values()] * 2)
    assert explain("compositepodgroup/both")["fits"] and explain("podgroup/left")["fits"]


def test_groups_of_a_composite_group_are_in_one_rack(
    cluster: Cluster, namespace: Namespace, racks: None, explain: Explain
) -> None:
    use_one(namespace, "other", "r1")
    cluster.control_plane.scheduler.kill()
    composite(namespace, "near", 2, topology=RACK)
    groups = [gang(namespace, name, 1, "near") for name in ("left", "right")]
    answer = explain("compositepodgroup/near")
    assert answer["fits"] and answer["groups"][0]["value"] == "r2", answer["summary"]
    cluster.control_plane.scheduler.start()
    namespace.api.wait(lambda: all(group.nodes() for group in groups), "both groups are bound")
    assert {node for group in groups for node in group.nodes().values()} == {NODES["r2"]}


def test_a_composite_group_that_fits_in_no_rack_waits(namespace: Namespace, racks: None, explain: Explain) -> None:
    for rack in NODES:
        use_one(namespace, f"other-{rack}", rack)
    composite(namespace, "near", 2, topology=RACK)
    groups = [gang(namespace, name, 1, "near") for name in ("left", "right")]
    for group in groups:
        group.wait_for("False")
    answer = explain("compositepodgroup/near")
    assert not answer["fits"] and results(answer) == {"near": False, "left": True, "right": False}
    assert (
        f"nodes with {RACK}=" in answer["summary"]
        and "0/2 placements are available" in groups[0].condition()["message"]
    )
    namespace.delete_pod("other-r1", grace=0)
    namespace.api.wait(lambda: all(group.nodes() for group in groups), "both groups are bound")
    assert {node for group in groups for node in group.nodes().values()} == {NODES["r1"]}


def test_a_group_that_is_not_needed_waits_alone(
    cluster: Cluster, namespace: Namespace, racks: None, explain: Explain
) -> None:
    """Four devices: of three groups with two pods each, the last one by time of creation waits."""
    cluster.control_plane.scheduler.kill()
    composite(namespace, "most", 2)
    first = gang(namespace, "c", 2, "most")
    created = namespace.api.get(POD_GROUPS, "c", namespace.name)["metadata"]["creationTimestamp"]

    def is_later() -> bool:
        answer = namespace.api.get(COMPOSITES, "most", namespace.name)
        return bool(answer) and datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") > created

    namespace.api.wait(is_later, "the next group is younger by a second")
    others = [gang(namespace, name, 2, "most") for name in ("a", "b")]
    answer = explain("compositepodgroup/most")
    assert answer["fits"] and [group["name"] for group in answer["groups"]] == ["most", "c", "a", "b"]
    assert results(answer) == {"most": True, "c": True, "a": True, "b": False}
    assert explain("podgroup/a")["fits"]
    answer = explain("podgroup/b")
    assert not answer["fits"] and answer["summary"].startswith("composite pod group most starts without it: ")
    cluster.control_plane.scheduler.start()
    namespace.api.wait(lambda: all(len(group.nodes()) == 2 for group in (first, others[0])), "two groups are bound")
    others[1].wait_for("False")
    assert not others[1].nodes()


def test_groups_of_groups_start_together(namespace: Namespace, racks: None, explain: Explain) -> None:
    """Each group of groups needs one rack; a pod of another workload leaves one device in the second rack."""
    use_one(namespace, "other", "r2")
    composite(namespace, "top", 2)
    for name in ("x", "y"):
        composite(namespace, name, 2, topology=RACK, parent="top")
    groups = [gang(namespace, name, 1, name[0]) for name in ("x1", "x2", "y1", "y2")]
    for group in groups:
        group.wait_for("False")
    answer = explain("compositepodgroup/top")
    assert not answer["fits"], answer["summary"]
    assert results(answer) == {"top": False, "x": True, "x1": True, "x2": True, "y": False, "y1": True, "y2": False}
    assert answer["failure"]["member"] == "y2-0"
    assert explain("compositepodgroup/x")["summary"].startswith("waits for composite pod group top: ")
    namespace.delete_pod("other", grace=0)
    namespace.api.wait(lambda: all(group.nodes() for group in groups), "all groups are bound")
    for name in ("x", "y"):
        nodes = {node for group in groups if group.name[0] == name for node in group.nodes().values()}
        assert len(nodes) == 1
    assert explain("compositepodgroup/top")["fits"]


def test_the_rack_of_a_group_is_in_the_zone_of_the_whole(
    cluster: Cluster, namespace: Namespace, racks: None, explain: Explain
) -> None:
    """Zone z2 has the most devices, one in each rack; in zone z1 each group gets a rack with two."""
    zones: Object = {"z1": {"r1": 2, "r2": 2}, "z2": {f"r{number}": 1 for number in range(3, 8)}}
    with ExitStack() as stack:
        for zone, numbers in zones.items():
            for rack, number in numbers.items():
                devices = [{"name": f"unit-{one}"} for one in range(number)]
                labels = {RACK: rack, ZONE: zone}
                stack.enter_context(node_with_devices(cluster, f"{zone}-{rack}", DRIVER, devices, labels=labels))
        cluster.control_plane.scheduler.kill()
        composite(namespace, "both", 2, topology=ZONE)
        groups = [gang(namespace, name, 2, "both", topology=RACK) for name in ("left", "right")]
        answer = explain("compositepodgroup/both")
        assert answer["fits"], answer["summary"]
        # Of two racks with as many pods, kube-scheduler takes any.
        assert [group["value"] for group in answer["groups"]] == ["z1", "r1", "r2"]
        assert any("kube-scheduler takes any of these" in note for note in answer["notes"])
        cluster.control_plane.scheduler.start()
        namespace.api.wait(lambda: all(len(group.nodes()) == 2 for group in groups), "both groups are bound")
        assert sorted(node for group in groups for node in set(group.nodes().values())) == ["z1-r1", "z1-r2"]


def test_parents_that_are_missing_or_form_a_cycle(namespace: Namespace, racks: None, explain: Explain) -> None:
    """kube-scheduler 1.37.1 reports nothing about such pods; another pod starts meanwhile."""
    lost, looped = gang(namespace, "lost", 1, "later"), gang(namespace, "looped", 1, "one")
    composite(namespace, "one", 1, parent="two")
    composite(namespace, "two", 1, parent="one")
    use_one(namespace, "other", "r1")
    assert not lost.nodes() and not looped.nodes()
    assert not message_of(namespace, "lost-0") and not message_of(namespace, "looped-0")
    for name in ("podgroup/looped", "compositepodgroup/one"):
        answer = explain(name)
        assert not answer["fits"] and "are part of each other" in answer["summary"]
    answer = explain("podgroup/lost")
    assert not answer["fits"]
    assert f"there is no composite pod group {namespace.name}/later" in answer["summary"]
    composite(namespace, "later", 1)
    namespace.api.wait(lost.nodes, "the pod is bound after its composite group exists")
    assert not looped.nodes()


def test_a_composite_group_waits_for_enough_pods(namespace: Namespace, racks: None, explain: Explain) -> None:
    composite(namespace, "both", 2)
    left, right = gang(namespace, "left", 1, "both"), gang(namespace, "right", 1, "both", minimum=2)
    use_one(namespace, "other", "r1")
    assert not left.nodes() and not right.nodes() and not message_of(namespace, "left-0")
    answer = explain("compositepodgroup/both")
    assert not answer["fits"]
    assert answer["summary"].endswith("pod group right waits for 2 pods, and there is 1")
    right.add_pod()
    namespace.api.wait(lambda: left.nodes() and len(right.nodes()) == 2, "both groups are bound")


def test_pods_of_another_priority_prevent_the_start(namespace: Namespace, racks: None, explain: Explain) -> None:
    high = namespace.name
    namespace.api.create(PRIORITY_CLASSES, {"metadata": {"name": high}, "value": 1000})
    try:
        composite(namespace, "both", 2)
        groups = [gang(namespace, "left", 1, "both"), gang(namespace, "right", 1, "both", priorityClassName=high)]
        for group in groups:
            group.wait_for("False")
        assert "should have the same priority" in groups[0].condition()["message"]
        answer = explain("compositepodgroup/both")
        assert not answer["fits"] and "need its priority 0, and pod right-0 has 1000" in answer["summary"]
    finally:
        namespace.api.delete(PRIORITY_CLASSES, high)


# Jobs.


def job(namespace: Namespace, name: str, pods: int, scheduling: Mapping[str, Any], template: str = TEMPLATE) -> None:
    """Create a Job whose pods run together, with `spec.scheduling`."""
    spec = {
        "parallelism": pods,
        "completions": pods,
        "scheduling": scheduling,
        "template": {"spec": pod_spec(template=template, **ANYWHERE)},
    }
    namespace.api.create(JOBS, {"metadata": {"name": name}, "spec": spec}, namespace.name)


def nodes_of_job(namespace: Namespace, name: str) -> list[str]:
    """Return the nodes of the pods of a Job that have one."""
    pods = namespace.api.list(PODS, namespace.name, labels=f"batch.kubernetes.io/job-name={name}")
    return [pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")]


def test_a_job_waits_as_its_pod_group_and_is_explained_so(namespace: Namespace, racks: None, explain: Explain) -> None:
    """Three pods fit on two racks, and not in one; the template of the Job names no group."""
    gang = {"schedulingPolicy": {"gang": {}}, "schedulingConstraints": {"topology": [{"key": RACK}]}}
    job(namespace, "wide", 3, gang)

    def is_refused() -> bool:
        (group,) = namespace.api.list(POD_GROUPS, namespace.name)
        listed = group["status"]["conditions"]
        return any(one["type"] == "PodGroupInitiallyScheduled" and one["status"] == "False" for one in listed)

    namespace.api.wait(lambda: bool(namespace.api.list(POD_GROUPS, namespace.name)), "the Job has a pod group")
    namespace.api.wait(is_refused, "the scheduler refuses the group")
    assert not nodes_of_job(namespace, "wide")
    answer = explain("job/wide")
    assert (answer["fits"], answer["needed"], answer["placed"]) == (False, 3, 2), answer["summary"]
    assert RACK in answer["summary"]
    job(namespace, "narrow", 2, gang)
    namespace.api.wait(lambda: len(nodes_of_job(namespace, "narrow")) == 2, "the pods of the other Job are bound")
    assert len(set(nodes_of_job(namespace, "narrow"))) == 1
    assert explain("job/narrow")["fits"]


def test_pods_of_a_job_share_the_claim_of_their_group(namespace: Namespace, racks: None, explain: Explain) -> None:
    shared = [{"name": "devices", "resourceClaimTemplateName": TEMPLATE}]
    job(namespace, "pair", 2, {"schedulingPolicy": {"gang": {}}, "resourceClaims": shared})
    namespace.api.wait(lambda: len(nodes_of_job(namespace, "pair")) == 2, "the pods are bound")
    assert len(set(nodes_of_job(namespace, "pair"))) == 1
    (claim,) = namespace.api.list(CLAIMS, namespace.name)
    (group,) = namespace.api.list(POD_GROUPS, namespace.name)
    consumers = [(one["resource"], one["name"]) for one in claim["status"]["reservedFor"]]
    assert consumers == [("podgroups", group["metadata"]["name"])]
    assert explain("job/pair")["fits"]

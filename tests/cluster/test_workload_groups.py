"""Groups of pod groups (KEP-6012), and pod groups of Jobs (KEP-5547), with claims: both are alpha in Kubernetes 1.37.

The slices are written by hand, for Nodes without a kubelet: two devices in each of two racks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def composite(namespace: Namespace, name: str, groups: int, topology: str = "") -> None:
    """Create a composite pod group that starts with this number of groups."""
    spec: Object = {
        "workloadRef": {"workloadName": name, "templateName": name},
        "schedulingPolicy": {"gang": {"minGroupCount": groups}},
    }
    if topology:
        spec["schedulingConstraints"] = {"topology": [{"key": topology}]}
    namespace.api.create(COMPOSITES, {"metadata": {"name": name}, "spec": spec}, namespace.name)


def test_groups_of_a_composite_group_start_together(namespace: Namespace, racks: None, explain: Explain) -> None:
    """Each group fits alone, which is what `explain` evaluates; both together do not.

    kube-scheduler 1.37.1 writes a condition of each pod group, and none of the composite group.
    """
    use_one(namespace, "other", "r1")
    composite(namespace, "both", 2)
    groups = [Gang(namespace, name, 2, TEMPLATE, minimum=2, parent="both", **ANYWHERE) for name in ("left", "right")]
    for group in groups:
        group.wait_for("False")
    assert not any(group.nodes() for group in groups)
    for group in groups:
        answer = explain(f"podgroup/{group.name}")
        assert answer["fits"] and [note for note in answer["notes"] if "part of composite pod group both" in note]
    namespace.delete_pod("other", grace=0)
    namespace.api.wait(lambda: all(len(group.nodes()) == 2 for group in groups), "both groups are bound")
    assert sorted(node for group in groups for node in group.nodes().values()) == sorted([*NODES.values()] * 2)


def test_groups_of_a_composite_group_are_in_one_rack(namespace: Namespace, racks: None, explain: Explain) -> None:
    use_one(namespace, "other", "r1")
    composite(namespace, "near", 2, topology=RACK)
    groups = [Gang(namespace, name, 1, TEMPLATE, minimum=1, parent="near", **ANYWHERE) for name in ("left", "right")]
    namespace.api.wait(lambda: all(group.nodes() for group in groups), "both groups are bound")
    assert {node for group in groups for node in group.nodes().values()} == {NODES["r2"]}


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

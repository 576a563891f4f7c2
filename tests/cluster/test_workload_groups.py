"""Groups of pod groups (KEP-6012), and pod groups of Jobs (KEP-5547), with claims: both are alpha in Kubernetes 1.37.

`explain` quotes what kube-scheduler recorded about them.

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


def composite(namespace: Namespace, name: str, groups: int, parent: str = "") -> None:
    """Create a composite pod group that starts with this number of groups."""
    spec: Object = {
        "workloadRef": {"workloadName": name, "templateName": name},
        "schedulingPolicy": {"gang": {"minGroupCount": groups}},
    }
    if parent:
        spec["parentCompositePodGroupName"] = parent
    namespace.api.create(COMPOSITES, {"metadata": {"name": name}, "spec": spec}, namespace.name)


def conditions(quote: Object) -> list[tuple[str, str, str]]:
    """Return the type, status and message of each condition of a quote."""
    return [(one["type"], one["status"], one["message"]) for one in quote["conditions"]]


def test_groups_of_a_composite_group_start_together_and_are_quoted(
    namespace: Namespace, racks: None, explain: Explain
) -> None:
    """Each group would fit alone; both together do not.

    kube-scheduler 1.37.1 writes a condition of each pod group, and none of the composite group.
    """
    use_one(namespace, "other", "r1")
    composite(namespace, "top", 1)
    composite(namespace, "both", 2, parent="top")
    groups = [Gang(namespace, name, 2, TEMPLATE, minimum=2, parent="both", **ANYWHERE) for name in ("left", "right")]
    for group in groups:
        group.wait_for("False")
    assert not any(group.nodes() for group in groups)
    answer = explain("compositepodgroup/both")
    assert not answer["fits"] and answer["summary"] == "is not evaluated as a whole (CompositePodGroup)"
    quotes = {one["name"]: one for one in answer["quotes"]}
    assert quotes.keys() == {"both", "top", "left", "right"}
    for name in ("both", "top"):
        assert quotes[name]["missing"] == "kube-scheduler has not written a condition yet"
    for group in groups:
        refusal = ("PodGroupInitiallyScheduled", "False", group.condition()["message"])
        assert refusal in conditions(quotes[group.name])
        answer = explain(f"podgroup/{group.name}")
        assert answer["fits"], "its own devices are free"
        assert [one["name"] for one in answer["quotes"]] == [group.name, "both"]
        assert refusal in conditions(answer["quotes"][0])
        assert {one["not_evaluated"] for one in answer["quotes"]} == {"CompositePodGroup"}
    namespace.delete_pod("other", grace=0)
    namespace.api.wait(lambda: all(len(group.nodes()) == 2 for group in groups), "both groups are bound")
    (first, *_) = explain("podgroup/left")["quotes"]
    assert [status for kind, status, _ in conditions(first) if kind == "PodGroupInitiallyScheduled"] == ["True"]


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


def test_a_job_waits_as_its_pod_group_which_is_quoted(namespace: Namespace, racks: None, explain: Explain) -> None:
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
    assert (answer["fits"], answer["needed"], answer["placed"]) == (True, 3, 3), answer["summary"]
    (quote,) = answer["quotes"]
    assert quote["kind"] == "PodGroup" and RACK in quote["not_evaluated"]
    (refusal,) = [one for one in conditions(quote) if one[0] == "PodGroupInitiallyScheduled"]
    assert refusal[1] == "False" and "0/2 placements are available" in refusal[2]
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

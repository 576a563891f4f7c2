"""Fields of gates that are alpha in Kubernetes 1.37: what a real kube-scheduler and kubelet do with them.

Each scenario runs on a cluster with the gates on, and on one with the default gates, where they are off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.conftest import Explain, apply_classes
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import EVENTS, NODES, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.workload import Namespace, container, request
from dra_agent.explain.gates import OVERHEAD_NOTE

OVERHEAD, LISTS = "DRANodeAllocatableResources", "DRAListTypeAttributes"
NODE = "node-a"
HARDWARE = {NODE: "dgx-h100"}
AGENT_CONFIG = f"""\
[inventory]
include = ['''
device.attributes["resource.kubernetes.io"].pciBusID in ["0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0"]
''']

[[inventory.overhead]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:61:00.0"'
per_pod = {{ cpu = "100m" }}
per_container = {{ cpu = "50m" }}

[[inventory.overhead]]
when = 'device.attributes["{DRIVER}"].type == "gpu"'
per_pod = {{ memory = "1Gi" }}
per_container = {{ memory = "256Mi" }}

[[inventory.attributes]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"'
set = {{ rails = ["a", "b"] }}

[[inventory.attributes]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:43:00.0"'
set = {{ rails = ["b", "c"] }}

[[inventory.attributes]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:52:00.0"'
set = {{ rails = ["d"] }}

[[inventory.attributes]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:61:00.0"'
set = {{ rails = "d" }}
"""
FIRST, SECOND, THIRD, FOURTH = (f"gpu-0000-{bus}-00-0" for bus in ("1b", "43", "52", "61"))
RAILS = f"{DRIVER}/rails"
OWN = f'device.attributes["{DRIVER}"]'
ON_FOURTH = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:61:00.0"'
OF_CPU: Object = {"cpu": {"overhead": {"perPod": "100m", "perContainer": "50m"}}}
MEBIBYTE = 1 << 20
PER_POD, PER_CONTAINER = 1024 * MEBIBYTE, 256 * MEBIBYTE
NO_DEVICES = "cannot allocate all claims"


@pytest.fixture(scope="module", params=[True, False], ids=["on", "off"])
def session_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A separate cluster for each state of the gates, which are set when a process starts."""
    gates = dict.fromkeys((OVERHEAD, LISTS), True) if request.param else {}
    with running(nodes=(NODE,), gates=gates) as cluster:
        apply_classes(cluster)
        yield cluster


@pytest.fixture
def has_gates(cluster: Cluster) -> bool:
    """Whether the gates are on."""
    return bool(cluster.control_plane.gates)


def reported_gates(cluster: Cluster) -> str:
    """Return the Event about fields that are not published."""
    found: list[str] = []

    def is_reported() -> bool:
        events = [one for one in cluster.api.list(EVENTS) if one["reason"] == "FieldsDropped"]
        found[:] = [one["message"] for one in events if one["involvedObject"]["name"] == NODE]
        return bool(found)

    cluster.api.wait(is_reported, "an Event reports the fields that are not published")
    return " ".join(found)


# Overhead.


def needing(memory: int, *claims: str, name: str = "main", limit: bool = False) -> Object:
    """Return a container with this request, in bytes."""
    created = container(name, *claims)
    amounts = {"memory": str(memory)}
    created.setdefault("resources", {})["requests"] = amounts
    if limit:
        created["resources"]["limits"] = amounts
    return created


def memory_of_node(cluster: Cluster) -> int:
    """Return the memory for pods, in bytes."""
    amount: str = cluster.api.get(NODES, NODE)["status"]["allocatable"]["memory"]
    return int(amount.removesuffix("Ki")) * 1024 if amount.endswith("Ki") else int(amount)


def overhead_of(namespace: Namespace, pod: str) -> dict[str, Any]:
    """Return what the scheduler has recorded, with the containers that use the claim; empty without the gate."""
    recorded = namespace.get_pod(pod)["status"].get("nodeAllocatableResourceClaimStatuses") or []
    for entry in recorded:
        assert entry.pop("resourceClaimName") == namespace.claim_of(pod)["metadata"]["name"]
    return dict(recorded[0]) if recorded else {}


def recorded_for(*containers: str) -> dict[str, Any]:
    overhead = [{"name": "memory", "perPod": "1Gi", "perContainer": "256Mi"}]
    return {"containers": list(containers), "overhead": overhead}


def container_spec(cluster: Cluster, namespace: Namespace, pod: str) -> Any:
    """Return what the kubelet has requested of the runtime for the container of a pod."""
    (status,) = namespace.get_pod(pod)["status"]["containerStatuses"]
    info = json.loads(cluster.node(NODE).ctr("containers", "info", status["containerID"].removeprefix("containerd://")))
    return info["Spec"]


def memory_limit(cluster: Cluster, namespace: Namespace, pod: str) -> int:
    """Return the limit that the kubelet has given to the runtime for the container of a pod, in bytes."""
    return int(container_spec(cluster, namespace, pod)["linux"]["resources"]["memory"]["limit"])


def test_overhead_is_memory_that_the_scheduler_and_the_kubelet_account_for(
    agents: dict[str, Agent], cluster: Cluster, namespace: Namespace, has_gates: bool
) -> None:
    published = {name: one.get("nodeAllocatableResources") for name, one in agents[NODE].devices().items()}
    amounts = {"memory": {"overhead": {"perPod": "1Gi", "perContainer": "256Mi"}}}
    costs = {**dict.fromkeys((FIRST, SECOND, THIRD), amounts), FOURTH: OF_CPU}
    assert published == (costs if has_gates else dict.fromkeys(costs))
    namespace.template("gpu", request("gpu", "gpu"))
    room = memory_of_node(cluster) - PER_POD - PER_CONTAINER
    namespace.pod("large", template="gpu", containers=[needing(room + MEBIBYTE, "devices")])
    if has_gates:
        namespace.wait_for_scheduling_failure("large", "1 Insufficient memory")
        assert not namespace.results(namespace.claim_of("large"))
    else:
        assert OVERHEAD in reported_gates(cluster)
        namespace.running("large")
    namespace.delete_pod("large", grace=1)
    namespace.wait_until_deleted("large")

    namespace.pod("fits", template="gpu", containers=[needing(room, "devices", limit=True)])
    namespace.running("fits")
    assert overhead_of(namespace, "fits") == (recorded_for("main") if has_gates else {})
    assert memory_limit(cluster, namespace, "fits") == room + (PER_POD + PER_CONTAINER if has_gates else 0)

    # The overhead of this pod counts against others.
    namespace.pod("plain", containers=[needing(PER_POD)])
    if has_gates:
        namespace.wait_for_scheduling_failure("plain", "1 Insufficient memory")
        namespace.delete_pod("fits", grace=1)
    namespace.running("plain")


def test_overhead_of_cpu_is_added_to_the_limit_of_a_container(
    agents: dict[str, Agent], cluster: Cluster, namespace: Namespace, has_gates: bool
) -> None:
    namespace.template("gpu", request("gpu", "gpu", ON_FOURTH))
    created = container("main", "devices")
    created["resources"] |= {"requests": {"cpu": "100m"}, "limits": {"cpu": "100m"}}
    namespace.pod("user", template="gpu", containers=[created])
    namespace.running("user")
    recorded = [{"name": "cpu", **OF_CPU["cpu"]["overhead"]}]
    assert overhead_of(namespace, "user").get("overhead") == (recorded if has_gates else None)
    limit = container_spec(cluster, namespace, "user")["linux"]["resources"]["cpu"]
    milli_cpu = 1000 * limit["quota"] // limit["period"]
    assert milli_cpu == (100 + 100 + 50 if has_gates else 100)


def test_overhead_counts_for_each_container_and_each_pod_with_the_claim(
    agents: dict[str, Agent], cluster: Cluster, namespace: Namespace, has_gates: bool
) -> None:
    namespace.claim("shared", request("gpu", "gpu"))
    room = memory_of_node(cluster) - 2 * PER_POD - 3 * PER_CONTAINER
    pair = [needing(MEBIBYTE, "devices", name="one"), needing(MEBIBYTE, "devices", name="two")]
    namespace.pod("pair", claim="shared", containers=pair)
    namespace.running("pair")
    namespace.pod("large", claim="shared", containers=[needing(room - MEBIBYTE, "devices")])
    if has_gates:
        namespace.wait_for_scheduling_failure("large", "1 Insufficient memory")
        namespace.delete_pod("large")
        namespace.pod("fits", claim="shared", containers=[needing(room - 2 * MEBIBYTE, "devices")])
        namespace.running("fits")
        assert overhead_of(namespace, "pair") == recorded_for("one", "two")
        assert overhead_of(namespace, "fits") == recorded_for("main")
    else:
        namespace.running("large")
        assert overhead_of(namespace, "pair") == overhead_of(namespace, "large") == {}


def test_a_pod_that_waits_because_of_overhead_is_tried_again_after_an_event(
    agents: dict[str, Agent], cluster: Cluster, namespace: Namespace, has_gates: bool, explain: Explain
) -> None:
    """The end of a pod without claims is not such an event in 1.37.1: dynamicresources.go, EventsToRegister."""
    namespace.pod("plain", containers=[needing(memory_of_node(cluster) - PER_POD)])
    namespace.running("plain")
    namespace.template("gpu", request("gpu", "gpu"))
    namespace.pod("waiter", template="gpu", containers=[needing(MEBIBYTE, "devices")])
    if has_gates:
        namespace.wait_for_scheduling_failure("waiter", "1 Insufficient memory")
        answer = explain("pod/waiter")
        assert answer["fits"] and OVERHEAD_NOTE in answer["notes"], "the devices are free"
        assert "1 Insufficient memory" in answer["pods"][0]["scheduler"]
    namespace.delete_pod("plain", grace=1)
    namespace.wait_until_deleted("plain")
    try:
        cluster.api.patch(NODES, NODE, {"metadata": {"labels": {"example.com/event": namespace.name}}})
        namespace.running("waiter")
    finally:
        cluster.api.patch(NODES, NODE, {"metadata": {"labels": {"example.com/event": None}}})


# Lists.


def devices_of(namespace: Namespace, pod: str) -> list[str]:
    """Return the devices of a pod that runs."""
    namespace.running(pod)
    return sorted(result["device"] for result in namespace.results(pod))


def use(namespace: Namespace, name: str, *selectors: str, count: int = 1, **constraint: str) -> None:
    """Create a claim and its pod, both of this name."""
    constraints: list[Object] = [{**constraint, "requests": ["gpus"]}] if constraint else []
    namespace.claim(name, request("gpus", "gpu", *selectors, count=count), constraints=constraints)
    namespace.pod(name, claim=name)


def end(namespace: Namespace, *pods: str) -> None:
    """Delete pods, and wait until their claims are released."""
    for pod in pods:
        namespace.delete_pod(pod, grace=1)
    namespace.wait_until_deleted(*pods)
    namespace.api.wait(lambda: not any(namespace.results(pod) for pod in pods), "the claims are released")


def test_lists_are_published_and_compared(
    agents: dict[str, Agent], cluster: Cluster, namespace: Namespace, has_gates: bool, explain: Explain
) -> None:
    published = {name: one["attributes"].get("rails") for name, one in agents[NODE].devices().items()}
    lists = {FIRST: {"strings": ["a", "b"]}, SECOND: {"strings": ["b", "c"]}, THIRD: {"strings": ["d"]}}
    assert published == {**(lists if has_gates else dict.fromkeys(lists)), FOURTH: {"string": "d"}}
    # The first and the second GPU have `b` in common, the third and the fourth `d`: one as a list, one as a value.
    use(namespace, "same", count=2, matchAttribute=RAILS)
    if not has_gates:
        assert LISTS in reported_gates(cluster)
        namespace.wait_for_scheduling_failure("same", NO_DEVICES)
        assert not explain("claim/same")["fits"]
        return
    assert devices_of(namespace, "same") == [FIRST, SECOND]
    use(namespace, "others", count=2, matchAttribute=RAILS)
    assert devices_of(namespace, "others") == [THIRD, FOURTH]
    end(namespace, "same", "others")

    use(namespace, "three", count=3, matchAttribute=RAILS)
    namespace.wait_for_scheduling_failure("three", NO_DEVICES)
    answer = explain("claim/three")
    assert not answer["fits"] and f"no value of {RAILS} is shared by enough" in answer["summary"], answer["summary"]
    end(namespace, "three")

    use(namespace, "different", count=2, distinctAttribute=RAILS)
    assert devices_of(namespace, "different") == [FIRST, THIRD]
    use(namespace, "also", count=2, distinctAttribute=RAILS)
    assert devices_of(namespace, "also") == [SECOND, FOURTH]
    end(namespace, "different", "also")

    use(namespace, "two-values", count=3, distinctAttribute=RAILS)
    namespace.wait_for_scheduling_failure("two-values", NO_DEVICES)
    assert not explain("claim/two-values")["fits"]


def test_selectors_use_lists(agents: dict[str, Agent], namespace: Namespace, has_gates: bool, explain: Explain) -> None:
    """Without the gate no GPU has the list, and an expression that cannot be evaluated fails the pod."""
    rails = f"{OWN}.rails"
    first_two = f'device.attributes["resource.kubernetes.io"].pciBusID < "0000:50" && "rails" in {OWN}'
    use(namespace, "guarded", f'{first_two} && "c" in {rails}')
    use(namespace, "plain", f'"a" in {rails}')
    if not has_gates:
        namespace.wait_for_scheduling_failure("guarded", NO_DEVICES)
        namespace.wait_for_scheduling_failure("plain", "no such key: rails")
        assert not explain("claim/guarded")["fits"]
        assert "no such key: rails" in json.dumps(explain("claim/plain"))
        return
    assert devices_of(namespace, "guarded") == [SECOND]
    assert devices_of(namespace, "plain") == [FIRST]
    # `includes` compares a single value too.
    use(namespace, "both", f'{rails}.includes("d")', count=2)
    assert devices_of(namespace, "both") == [THIRD, FOURTH]

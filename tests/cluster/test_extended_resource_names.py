"""Several DeviceClasses with one extended resource name (KEP-5004): which of them kube-scheduler uses.

The slices are written by hand, for a Node without a kubelet: a device of each model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from cluster.conftest import Explain
from cluster.kube.api import CLASSES, PODS
from cluster.kube.cluster import Cluster, running
from cluster.kube.hand_written import ANYWHERE, node_with_devices
from cluster.kube.process import until
from cluster.kube.workload import Namespace, container, request

DRIVER = "models.example.com"
NODE = "node-of-models"
RESOURCE = "vendor.example/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/"
GATE = "DRAExtendedResource"
LATER = "example.com/later"
MODELS = {"a": 3, "b": 4}
NOT_SERVED = f"Insufficient {RESOURCE}"

CreateClass = Callable[[str], str]


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A control plane without nodes."""
    with running(nodes=()) as cluster:
        yield cluster


@pytest.fixture
def devices(cluster: Cluster, namespace: Namespace) -> Iterator[None]:
    """A Node with devices of each model."""
    found = [
        {"name": f"{model}{number}", "attributes": {"model": {"string": model}}}
        for model, count in MODELS.items()
        for number in range(count)
    ]
    with node_with_devices(cluster, NODE, DRIVER, found):
        yield


@pytest.fixture
def create_class(cluster: Cluster) -> Iterator[CreateClass]:
    """Create a class for the devices of a model, with the name of that model; return its time of creation."""
    created: list[str] = []

    def create(model: str) -> str:
        expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].model == "{model}"'
        spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": RESOURCE}
        made = cluster.api.create(CLASSES, {"metadata": {"name": model}, "spec": spec})
        created.append(model)
        return str(made["metadata"]["creationTimestamp"])

    yield create
    for name in created:
        if cluster.api.find(CLASSES, name):
            cluster.api.delete(CLASSES, name)


def use(namespace: Namespace, name: str, resource: str = RESOURCE, **spec: Any) -> None:
    """Create a pod that requests one of the resource."""
    namespace.pod(name, containers=[container("main", resources={"limits": {resource: "1"}})], **ANYWHERE, **spec)


def used_class(namespace: Namespace, pod: str) -> str:
    """Return the class of the claim that the scheduler has created for a pod, once the pod is bound."""
    namespace.api.wait(lambda: namespace.get_pod(pod)["spec"]["nodeName"] == NODE, f"the scheduler binds pod {pod}")
    claim = namespace.get_claim(namespace.get_pod(pod)["status"]["extendedResourceClaimStatus"]["resourceClaimName"])
    (request,) = claim["spec"]["devices"]["requests"]
    return str(request["exactly"]["deviceClassName"])


def explained_class(explain: Explain, pod: str) -> str:
    """Return the class that `explain` names for a pod that is not bound."""
    (node,) = explain(f"pod/{pod}")["nodes"]
    (claim,) = node["explanation"]["claims"]
    (request,) = claim["requests"]
    return str(request["class"])


def wait_until_known(namespace: Namespace, device_class: str) -> None:
    """Wait until the scheduler has this class: it watches classes and pods separately."""
    name = f"knows-{device_class}"
    use(namespace, name, IMPLICIT + device_class)
    assert used_class(namespace, name) == device_class


def wait_for_another_second(created: str) -> None:
    """Wait until an object gets a later time of creation, which is in whole seconds."""
    until(lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") > created, "the second of the creation has passed")


def test_the_newest_class_serves_and_is_explained(
    namespace: Namespace, devices: None, create_class: CreateClass, explain: Explain
) -> None:
    wait_for_another_second(create_class("b"))
    use(namespace, "before")
    assert used_class(namespace, "before") == "b"
    wait_for_another_second(create_class("a"))
    wait_until_known(namespace, "a")
    use(namespace, "user", schedulingGates=[{"name": LATER}])
    assert explained_class(explain, "user") == "a"
    namespace.api.patch(PODS, "user", {"spec": {"schedulingGates": None}}, namespace.name)
    assert used_class(namespace, "user") == "a"
    # Each class has its own resource, too.
    wait_until_known(namespace, "b")


def test_of_classes_of_one_second_the_first_by_name_serves(
    namespace: Namespace, devices: None, create_class: CreateClass, explain: Explain
) -> None:
    """On a slow machine the classes are of two seconds, and the second one is the newest.

    A class that is not used when it is read first has no resource of its own name either: updateResourceName2class.
    """
    until(lambda: datetime.now(UTC).microsecond < 500_000, "a second begins")
    first, second = create_class("a"), create_class("b")
    expected = "a" if first == second else "b"
    wait_until_known(namespace, expected)
    use(namespace, "user", schedulingGates=[{"name": LATER}])
    assert explained_class(explain, "user") == expected
    namespace.api.patch(PODS, "user", {"spec": {"schedulingGates": None}}, namespace.name)
    assert used_class(namespace, "user") == expected
    if expected == "a":
        namespace.claim("b", request("device", "b"))
        namespace.pod("by-claim", claim="b", **ANYWHERE)
        namespace.api.wait(lambda: namespace.results("b"), "the scheduler has class b")
        use(namespace, "by-name", f"{IMPLICIT}b")
        namespace.wait_for_scheduling_failure("by-name", f"Insufficient {IMPLICIT}b")
        assert [note for note in explain("pod/by-name")["notes"] if GATE in note and "class b" in note]


def test_a_deleted_class_takes_the_name_from_the_others_until_it_is_set_again(
    cluster: Cluster, namespace: Namespace, devices: None, create_class: CreateClass, explain: Explain
) -> None:
    """Kubernetes 1.37.1 forgets which class the name has: removeResourceName2class, extendedresourcecache."""
    wait_for_another_second(create_class("b"))
    create_class("a")
    wait_until_known(namespace, "a")
    cluster.api.delete(CLASSES, "b")
    use(namespace, "user")
    namespace.wait_for_scheduling_failure("user", NOT_SERVED)
    answer = explain("pod/user")
    assert answer["fits"] and NOT_SERVED in answer["pods"][0]["scheduler"]
    (note,) = [one for one in answer["notes"] if GATE in one]
    assert RESOURCE in note and "class a" in note
    for resource in (None, RESOURCE):
        cluster.api.patch(CLASSES, "a", {"spec": {"extendedResourceName": resource}})
    assert used_class(namespace, "user") == "a"

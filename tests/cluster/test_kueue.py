"""Quota and preemption by a real Kueue, and `dra-agent explain`, which quotes what Kueue recorded about a Job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.conftest import Explain, apply_classes
from cluster.kube import prerequisites
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import JOBS, NODES, PODS, Kind, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.kueue import Kueue
from cluster.kube.workload import Namespace, container, pod_spec, request

API = "kueue.x-k8s.io/v1beta2"
FLAVORS = Kind(API, "resourceflavors", namespaced=False)
CLUSTER_QUEUES = Kind(API, "clusterqueues", namespaced=False)
LOCAL_QUEUES = Kind(API, "localqueues")
WORKLOADS = Kind(API, "workloads")
HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
AGENT_CONFIG = """\
[[inventory.partition]]
mode = "mig"
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"'
"""
RESOURCE, FLAVOR = "whole-gpus", "h100"
MEMORY = "gpu-memory"
OF_PARTITIONS = {
    "name": "memory",
    "driver": DRIVER,
    "deviceSelector": {"cel": {"expression": f'device.attributes["{DRIVER}"].type == "mig"'}},
}
"""The counter of which each partition consumes its memory."""
LABEL = "dra-agent.example/pool"
QUEUE_OF_JOBS = "kueue.x-k8s.io/queue-name"
PRIORITY_OF_JOBS = "kueue.x-k8s.io/priority-class"
PRIORITY_CLASSES = Kind(API, "workloadpriorityclasses", namespaced=False)


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster, because Kueue's webhooks would be called for the objects of every scenario."""
    with running() as cluster:
        apply_classes(cluster)
        cluster.api.patch(NODES, "node-a", {"metadata": {"labels": {LABEL: FLAVOR}}})
        yield cluster


@pytest.fixture(scope="module")
def kueue(session_cluster: Cluster) -> Iterator[Kueue]:
    try:
        mappings = {RESOURCE: ["gpu"], MEMORY: ["mig"]}
        created = Kueue(session_cluster, mappings, {MEMORY: [{"counter": OF_PARTITIONS}]})
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    created.start()
    session_cluster.api.create(
        FLAVORS, {"kind": "ResourceFlavor", "metadata": {"name": FLAVOR}, "spec": {"nodeLabels": {LABEL: FLAVOR}}}
    )
    yield created
    created.process.kill()


@pytest.fixture(autouse=True)
def kueue_log(kueue: Kueue, request: pytest.FixtureRequest) -> Iterator[None]:
    """Print Kueue's log of a failed scenario."""
    yield
    print(kueue.process.tail(40))


class Queues:
    """Queues of one namespace: of each ClusterQueue and its LocalQueue of the same name."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._created: list[str] = []

    def add(
        self,
        name: str,
        nominal: int | str,
        *,
        resource: str = RESOURCE,
        cohort: str = "",
        preemption: Object | None = None,
    ) -> str:
        """Create them; return the name of the ClusterQueue."""
        api, cluster_queue = self._namespace.api, f"{self._namespace.name}-{name}"
        quota = {"name": resource, "nominalQuota": nominal}
        group = {"coveredResources": [resource], "flavors": [{"name": FLAVOR, "resources": [quota]}]}
        spec: Object = {
            "namespaceSelector": {},
            "resourceGroups": [group],
            **({"cohortName": cohort} if cohort else {}),
        }
        if preemption is not None:
            spec["preemption"] = preemption
        api.create(CLUSTER_QUEUES, {"kind": "ClusterQueue", "metadata": {"name": cluster_queue}, "spec": spec})
        self._created.append(cluster_queue)
        local = {"kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": cluster_queue}}
        api.create(LOCAL_QUEUES, local, self._namespace.name)

        def is_active() -> bool:
            found = api.get(LOCAL_QUEUES, name, self._namespace.name)
            return _condition(found, "Active").get("status") == "True"

        api.wait(is_active, f"queue {name} is active")
        return cluster_queue

    def delete(self) -> None:
        """Delete them with the Jobs, without which a ClusterQueue is not deleted."""
        api = self._namespace.api
        for job in api.list(JOBS, self._namespace.name):
            api.call("DELETE", JOBS.path(self._namespace.name, job["metadata"]["name"], None), BACKGROUND)
        for name in self._created:
            api.delete(CLUSTER_QUEUES, name)
        api.wait(
            lambda: not {one["metadata"]["name"] for one in api.list(CLUSTER_QUEUES)} & set(self._created),
            "the ClusterQueues are gone",
        )


BACKGROUND = {"propagationPolicy": "Background"}


@pytest.fixture
def queues(kueue: Kueue, namespace: Namespace) -> Iterator[Queues]:
    created = Queues(namespace)
    yield created
    created.delete()


def _condition(value: Object, kind: str) -> Object:
    listed = value.get("status", {}).get("conditions", [])
    return next((one for one in listed if one["type"] == kind), {})


def submit(
    namespace: Namespace, name: str, pods: int, *, queue: str = "gpus", template: str = "gpu", priority: str = ""
) -> None:
    """Create a Job with a claim for each of its pods, with a priority of Kueue."""
    claims = [{"name": "devices", "resourceClaimTemplateName": template}]
    labels = {PRIORITY_OF_JOBS: priority} if priority else {}
    body = {
        "metadata": {"name": name, "labels": {QUEUE_OF_JOBS: queue, **labels}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "suspend": True,
            "template": {"spec": pod_spec(claims=claims, containers=[container("main", "devices")])},
        },
    }
    namespace.api.create(JOBS, body, namespace.name)


def workload_of(namespace: Namespace, job: str) -> Object:
    """Wait for the Workload that Kueue creates for a Job; return it."""
    found: list[Object] = []

    def exists() -> bool:
        found[:] = [
            one
            for one in namespace.api.list(WORKLOADS, namespace.name)
            if any(owner["name"] == job for owner in one["metadata"].get("ownerReferences", []))
        ]
        return bool(found)

    namespace.api.wait(exists, f"Kueue creates the Workload of {job}")
    return found[0]


def wait_until_admitted(namespace: Namespace, job: str) -> None:
    namespace.api.wait(
        lambda: _condition(workload_of(namespace, job), "Admitted").get("status") == "True", f"Kueue admits {job}"
    )


def wait_for_refusal(namespace: Namespace, job: str, text: str) -> str:
    """Wait until Kueue records why a Job has no quota, with this text; return the message."""

    def message() -> str:
        condition = _condition(workload_of(namespace, job), "QuotaReserved")
        assert condition.get("status") == "False", condition
        return str(condition["message"])

    namespace.api.wait(lambda: text in message(), f"Kueue records {text!r} for {job}")
    return message()


def running_pods(namespace: Namespace, job: str, count: int) -> list[Object]:
    """Wait until that many pods of a Job run; return them."""
    found: list[Object] = []

    def run() -> bool:
        listed = namespace.api.list(PODS, namespace.name, labels=f"batch.kubernetes.io/job-name={job}")
        found[:] = [pod for pod in listed if pod["status"]["phase"] == "Running"]
        return len(found) == count

    namespace.api.wait(run, f"{count} pods of {job} run")
    return found


def quoted(namespace: Namespace, job: str, answer: Object) -> dict[str, tuple[str, str, str]]:
    """Return the quoted status, reason and message of each condition of a Job, which are those that Kueue recorded."""
    (quote,) = answer["quotes"]
    assert quote["name"] == workload_of(namespace, job)["metadata"]["name"] and quote["missing"] is None
    assert quote["not_evaluated"] == "Kueue's quota, flavors and topology"
    return {one["type"]: (one["status"], one["reason"], one["message"]) for one in quote["conditions"]}


def recorded(namespace: Namespace, job: str) -> dict[str, tuple[str, str, str]]:
    listed = workload_of(namespace, job)["status"]["conditions"]
    return {one["type"]: (one["status"], one["reason"], one["message"]) for one in listed}


def test_a_job_waits_for_quota_and_is_then_admitted(
    agents: dict[str, Agent], namespace: Namespace, queues: Queues, explain: Explain
) -> None:
    queues.add("gpus", 3)
    namespace.template("gpu", request("gpu", "gpu"))
    submit(namespace, "first", 2)
    wait_until_admitted(namespace, "first")
    pods = running_pods(namespace, "first", 2)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-a"}
    answer = explain("job/first")
    assert (answer["fits"], answer["running"]) == (True, 2)
    assert quoted(namespace, "first", answer)["Admitted"][0] == "True"
    of_pod = explain(f"pod/{pods[0]['metadata']['name']}")
    assert quoted(namespace, "first", of_pod)["Admitted"][0] == "True"

    submit(namespace, "second", 2)
    refusal = wait_for_refusal(namespace, "second", f"insufficient unused quota for {RESOURCE} in flavor {FLAVOR}")
    for asked in ("job/second", f"workload/{workload_of(namespace, 'second')['metadata']['name']}"):
        answer = explain(asked)
        assert not answer["fits"]
        assert answer["summary"].startswith("is not admitted by Kueue; devices: all 2 pods can be placed")
        status, _, message = quoted(namespace, "second", answer)["QuotaReserved"]
        assert (status, message) == ("False", refusal)

    namespace.api.call("DELETE", JOBS.path(namespace.name, "first", None), BACKGROUND)
    wait_until_admitted(namespace, "second")
    running_pods(namespace, "second", 2)
    answer = explain("job/second")
    assert (answer["fits"], answer["running"]) == (True, 2)
    assert quoted(namespace, "second", answer)["QuotaReserved"][0] == "True"


@pytest.fixture
def priorities(kueue: Kueue, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The names of a low and of a high priority of Kueue."""
    values = {"batch": 10, "urgent": 1000}
    for name, value in values.items():
        body = {"kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value, "description": name}
        cluster.api.create(PRIORITY_CLASSES, body)
    yield "batch", "urgent"
    for name in values:
        cluster.api.delete(PRIORITY_CLASSES, name)


def wait_until_preempted(namespace: Namespace, job: str) -> None:
    """Wait until Kueue has taken the quota of a Job, and no pod and no claim of it is left."""

    def is_preempted() -> bool:
        workload = workload_of(namespace, job)
        evicted, reserved = (_condition(workload, kind) for kind in ("Evicted", "QuotaReserved"))
        return evicted.get("reason") == "Preempted" and reserved.get("status") == "False"

    namespace.api.wait(is_preempted, f"Kueue preempts {job}")
    running_pods(namespace, job, 0)


def test_a_gang_of_higher_priority_preempts_a_whole_gang(
    agents: dict[str, Agent],
    namespace: Namespace,
    queues: Queues,
    explain: Explain,
    priorities: tuple[str, str],
) -> None:
    low, high = priorities
    queues.add("gpus", 3, preemption={"withinClusterQueue": "LowerPriority"})
    namespace.template("gpu", request("gpu", "gpu"))
    submit(namespace, "first", 2, priority=low)
    running_pods(namespace, "first", 2)

    submit(namespace, "urgent", 2, priority=high)
    wait_until_preempted(namespace, "first")
    wait_until_admitted(namespace, "urgent")
    running_pods(namespace, "urgent", 2)
    answer = explain("job/first")
    assert not answer["fits"]
    assert quoted(namespace, "first", answer)["Evicted"][:2] == ("True", "Preempted")
    assert quoted(namespace, "first", answer) == recorded(namespace, "first")

    namespace.api.call("DELETE", JOBS.path(namespace.name, "urgent", None), BACKGROUND)
    wait_until_admitted(namespace, "first")
    running_pods(namespace, "first", 2)


def test_a_job_that_takes_leftovers_returns_them(
    agents: dict[str, Agent], namespace: Namespace, queues: Queues, explain: Explain
) -> None:
    cohort = f"cohort-{namespace.name}"
    queues.add("serving", 4, cohort=cohort, preemption={"reclaimWithinCohort": "Any"})
    queues.add("leftovers", 0, cohort=cohort)
    namespace.template("gpu", request("gpu", "gpu"))
    submit(namespace, "batch", 3, queue="leftovers")
    running_pods(namespace, "batch", 3)
    assert explain("job/batch")["fits"]

    submit(namespace, "server", 2, queue="serving")
    wait_until_preempted(namespace, "batch")
    running_pods(namespace, "server", 2)
    assert not explain("job/batch")["fits"]

    submit(namespace, "small", 2, queue="leftovers")
    running_pods(namespace, "small", 2)


def test_quota_counts_the_memory_of_partitions(
    agents: dict[str, Agent], namespace: Namespace, queues: Queues, explain: Explain
) -> None:
    """Two halves of an H100 have 80,896 MiB. They leave quota for less than the smallest partition, of 9,984 MiB."""
    queue = queues.add("gpus", "90000Mi", resource=MEMORY)
    for name, profile in {"half": "3g.40gb", "smallest": "1g.10gb"}.items():
        selector = f'device.attributes["{DRIVER}"].profile == "{profile}"'
        namespace.template(name, request("partition", "mig", selector))
    submit(namespace, "halves", 2, template="half")
    wait_until_admitted(namespace, "halves")
    running_pods(namespace, "halves", 2)

    def reserved() -> str:
        (flavor,) = namespace.api.get(CLUSTER_QUEUES, queue)["status"]["flavorsReservation"]
        return str(flavor["resources"][0]["total"])

    # Kueue updates the status of the queue some time after the admission.
    namespace.api.wait(lambda: reserved() == "79Gi", "80,896 MiB are reserved")
    assert explain("job/halves")["fits"]

    submit(namespace, "small", 1, template="smallest")
    refusal = wait_for_refusal(namespace, "small", f"insufficient unused quota for {MEMORY} in flavor {FLAVOR}")
    answer = explain("job/small")
    assert not answer["fits"] and quoted(namespace, "small", answer)["QuotaReserved"][2] == refusal
    namespace.api.call("DELETE", JOBS.path(namespace.name, "halves", None), BACKGROUND)
    wait_until_admitted(namespace, "small")
    running_pods(namespace, "small", 1)

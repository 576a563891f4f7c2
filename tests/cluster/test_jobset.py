"""JobSets whose pods have claims: all of them start, and a failure restarts all of them with new claims."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Set

import pytest

from cluster.conftest import apply_classes
from cluster.kube import prerequisites
from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS, PODS, Kind, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.jobset import JobSetController
from cluster.kube.workload import Namespace, pod_spec, request

JOB_SETS = Kind("jobset.x-k8s.io/v1alpha2", "jobsets")
HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
FAIL = "/fail"
UNTIL_FAILURE = f"trap 'exit 143' TERM; while [ ! -e {FAIL} ]; do sleep 0.2 & wait $!; done; exit 3"
"""The shell command of a pod that fails when the file exists."""


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster: JobSet's webhooks would be called for the pods of other scenarios after its end."""
    with running() as cluster:
        apply_classes(cluster)
        yield cluster


@pytest.fixture(scope="module")
def controller(session_cluster: Cluster) -> Iterator[JobSetController]:
    try:
        created = JobSetController(session_cluster)
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    created.start()
    yield created
    created.process.kill()


@pytest.fixture(autouse=True)
def controller_log(controller: JobSetController) -> Iterator[None]:
    """Print the controller's log of a failed scenario."""
    yield
    print(controller.process.tail(40))


@pytest.fixture
def job_set(controller: JobSetController, namespace: Namespace) -> Iterator[Callable[..., None]]:
    """Create JobSets, and delete them at the end. Replicated Jobs are given as name=(replicas, template)."""
    api = namespace.api

    def create(name: str, *, max_restarts: int = 1, **replicated: tuple[int, str]) -> None:
        jobs = []
        for job, (replicas, template) in replicated.items():
            pod = {"spec": pod_spec(template=template, command=UNTIL_FAILURE)}
            spec = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": pod}
            jobs.append({"name": job, "replicas": replicas, "template": {"spec": spec}})
        spec = {"replicatedJobs": jobs, "failurePolicy": {"maxRestarts": max_restarts}}
        api.create(JOB_SETS, {"kind": "JobSet", "metadata": {"name": name}, "spec": spec}, namespace.name)

    yield create
    for found in api.list(JOB_SETS, namespace.name):
        api.delete(JOB_SETS, found["metadata"]["name"], namespace.name)
    api.wait(lambda: not api.list(JOB_SETS, namespace.name), "the JobSets are gone")


def pods_of(namespace: Namespace, name: str) -> list[Object]:
    return namespace.api.list(PODS, namespace.name, labels=f"jobset.sigs.k8s.io/jobset-name={name}")


def running_pods(namespace: Namespace, name: str, count: int, *, but: Set[str] = frozenset()) -> dict[str, Object]:
    """Wait until exactly that many pods exist and run, none of which has a uid of `but`; return them by uid."""
    found: dict[str, Object] = {}

    def run() -> bool:
        found.clear()
        found.update({pod["metadata"]["uid"]: pod for pod in pods_of(namespace, name)})
        return (
            len(found) == count
            and not found.keys() & but
            and all(pod["status"]["phase"] == "Running" for pod in found.values())
        )

    namespace.api.wait(run, f"{count} pods of {name} run")
    return dict(found)


def held(namespace: Namespace) -> dict[str, tuple[str, str]]:
    """Return the pool and the device of each allocated claim by its uid."""
    return {
        claim["metadata"]["uid"]: (result["pool"], result["device"])
        for claim in namespace.api.list(CLAIMS, namespace.name)
        for result in namespace.results(claim)
    }


def test_a_failure_restarts_all_pods_with_new_claims(
    agents: dict[str, Agent], namespace: Namespace, job_set: Callable[..., None]
) -> None:
    namespace.template("gpu", request("gpu", "gpu"))
    job_set("train", coordinator=(1, "gpu"), workers=(3, "gpu"))
    first = running_pods(namespace, "train", 4)
    claims = held(namespace)
    assert len(claims) == len(set(claims.values())) == 4, "no two pods have the same device"

    (failing,) = (pod["metadata"]["name"] for pod in first.values() if "train-workers-1-" in pod["metadata"]["name"])
    namespace.execute(failing, f"touch {FAIL}")
    running_pods(namespace, "train", 4, but=set(first))
    assert namespace.api.get(JOB_SETS, "train", namespace.name)["status"]["restarts"] == 1
    namespace.api.wait(lambda: len(held(namespace)) == 4, "the claims of the first run are gone")
    again = held(namespace)
    assert not again.keys() & claims.keys() and len(set(again.values())) == 4

    def prepared() -> set[str]:
        names = {name for agent in agents.values() for name in agent.node.cdi_files()}
        return {uid for uid in {**claims, **again} if any(uid in name for name in names)}

    namespace.api.wait(lambda: prepared() == again.keys(), "only claims of the second run are prepared")


def test_a_job_set_that_fails_permanently_releases_all_devices(
    agents: dict[str, Agent], namespace: Namespace, job_set: Callable[..., None]
) -> None:
    namespace.template("gpu", request("gpu", "gpu"))
    job_set("train", max_restarts=0, coordinator=(1, "gpu"), workers=(2, "gpu"))
    pods = running_pods(namespace, "train", 3)
    (failing,) = (pod["metadata"]["name"] for pod in pods.values() if "train-workers-0-" in pod["metadata"]["name"])
    namespace.execute(failing, f"touch {FAIL}")
    namespace.api.wait(
        lambda: namespace.api.get(JOB_SETS, "train", namespace.name)["status"]["terminalState"] == "Failed",
        "the JobSet has failed",
    )
    namespace.api.wait(lambda: not held(namespace), "no claim of the JobSet holds a device")


def test_explain_of_a_job_set_that_does_not_fit(
    agents: dict[str, Agent],
    namespace: Namespace,
    job_set: Callable[..., None],
    agent_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Two nodes have 8 GPUs each: two workers run, and the third one waits as it is explained."""
    namespace.template("gpus", request("gpus", "gpu", count=8))
    job_set("train", workers=(3, "gpus"))

    def states() -> list[str]:
        return sorted(pod["status"]["phase"] for pod in pods_of(namespace, "train"))

    namespace.api.wait(lambda: states() == ["Pending", "Running", "Running"], "two workers run")
    where = ("-n", namespace.name, "--kubeconfig", str(namespace.cluster.kubeconfig))
    result = agent_command("explain", "jobset/train", *where, "-o", "json", check=False)
    answer = json.loads(result.stdout)
    assert (result.returncode, answer["fits"], answer["running"]) == (1, False, 2), answer["summary"]
    assert "fits on none of 2 nodes" in answer["summary"]

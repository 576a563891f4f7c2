"""Volcano schedules gangs whose pods have claims: whole or not at all, and by quota of a class."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.conftest import apply_classes
from cluster.kube import prerequisites
from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS
from cluster.kube.cluster import Cluster, running
from cluster.kube.drain_probe import announce
from cluster.kube.volcano import Volcano
from cluster.kube.volcano_jobs import Jobs
from cluster.kube.workload import Namespace, request

HARDWARE = {"node-a": "l40s", "node-b": "l40s"}
"""Four GPUs on each node."""


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster, because a second scheduler of pods would be left after the scenarios."""
    with running() as cluster:
        apply_classes(cluster)
        yield cluster


@pytest.fixture(scope="module")
def volcano(session_cluster: Cluster) -> Iterator[Volcano]:
    try:
        created = Volcano(session_cluster)
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    created.start()
    yield created
    created.kill()


@pytest.fixture(autouse=True)
def volcano_log(volcano: Volcano) -> Iterator[None]:
    """Print Volcano's logs of a failed scenario."""
    yield
    print(volcano.tail(60))


@pytest.fixture
def jobs(volcano: Volcano, namespace: Namespace) -> Iterator[Jobs]:
    created = Jobs(namespace)
    namespace.template("gpu", request("gpu", "gpu"))
    yield created
    created.end()


def allocated(namespace: Namespace) -> int:
    """Return how many claims of the namespace have devices."""
    return sum(bool(namespace.results(claim)) for claim in namespace.api.list(CLAIMS, namespace.name))


def test_a_gang_starts_whole_or_not_at_all(agents: dict[str, Agent], namespace: Namespace, jobs: Jobs) -> None:
    """Of eight GPUs, one gang has five. Another of four waits, holds none of the three, and starts afterwards."""
    jobs.submit("first", 5)
    assert jobs.wait_until_running("first", 5).total() == 5
    jobs.submit("second", 4)
    jobs.wait_until_refused("second")
    assert not jobs.nodes("second")
    assert allocated(namespace) == 5, "a gang that waits holds no device"

    jobs.submit("small", 3)
    jobs.wait_until_running("small", 3)
    jobs.delete("small")
    jobs.delete("first")
    jobs.wait_until_running("second", 4)
    namespace.api.wait(lambda: allocated(namespace) == 4, "only the second gang holds devices")


def test_pods_without_requests_start_one_by_one(agents: dict[str, Agent], namespace: Namespace, jobs: Jobs) -> None:
    """Volcano starts pods without requests one by one, and its gang counts them as ready: one of nine does not fit."""
    jobs.submit("half", 9, cpu="")
    jobs.wait_until_running("half", 8)


def test_a_queue_has_quota_of_a_class(agents: dict[str, Agent], namespace: Namespace, jobs: Jobs) -> None:
    queue = jobs.queue("team", capability={"deviceclass/gpu": "3"})
    jobs.submit("first", 2, queue=queue)
    jobs.wait_until_running("first", 2)
    jobs.submit("second", 2, queue=queue)
    jobs.wait_until_refused("second")
    assert not jobs.nodes("second") and allocated(namespace) == 2

    jobs.submit("other", 2)
    jobs.wait_until_running("other", 2)
    jobs.delete("first")
    jobs.wait_until_running("second", 2)


def test_a_reclaim_of_a_node_restarts_the_whole_gang(
    agents: dict[str, Agent], namespace: Namespace, jobs: Jobs
) -> None:
    """Six pods on two nodes. After the reclaim of one, four GPUs are left: no pod runs, and no claim has a device."""
    jobs.submit("ring", 6, policies=[{"event": "PodEvicted", "action": "RestartJob"}])
    assert set(jobs.wait_until_running("ring", 6)) == {"node-a", "node-b"}
    announce(agents["node-a"], 3600)
    namespace.api.wait(lambda: not jobs.nodes("ring"), "no pod of the gang runs")
    jobs.wait_until_refused("ring")
    namespace.api.wait(lambda: allocated(namespace) == 0, "the gang that waits holds no device")

    def prepared() -> list[str]:
        return [name for agent in agents.values() for name in agent.node.cdi_files()]

    namespace.api.wait(lambda: not prepared(), "no claim of the gang is prepared")

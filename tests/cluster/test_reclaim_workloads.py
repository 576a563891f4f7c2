"""A notice of 30 s on a node with workloads of every kind: each moves to the other node, and its claims are released.

All of them are drained at once: first workloads whose containers exit on SIGTERM, then workloads that ignore it for
their whole grace period of 30 s. Each kind has its own test.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from cluster.kube import build
from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS, JOBS, NODES, Object
from cluster.kube.cluster import Cluster
from cluster.kube.drain_probe import (
    DISRUPTIONS_ARE_NO_FAILURES,
    EXITS,
    IGNORES_SIGTERM,
    History,
    all_released,
    announce,
    cancel,
    deployment,
    effects,
    job,
    no_specs,
    nodes_of,
    run_on,
    stateful_set,
    template,
)
from cluster.kube.workload import Namespace, container, cordon, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
AGENT_CONFIG = '[reclaim]\nevict = "auto"\ncordon = true\n'
CHART_VALUES = ("podEviction=evict", "cordon=true")
NOTICE_S = 30.0
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}
SHARED = {"name": "devices", "resourceClaimName": "shared"}
EXTENDED = "deviceclass.resource.kubernetes.io/gpu"
WORKLOADS = {"deployment": 1, "job": 1, "careful-job": 1, "stateful-set": 1, "shared": 2}
"""Number of pods of each."""
if build.releases_extended_resources():
    WORKLOADS["extended"] = 1
CLOCK_SKEW_S = 0.5
"""Seconds by which the watches of pods and of claims may differ, times the slowdown."""
SUCCESSOR_TIMEOUT_S = {"deployment": 10.0, "extended": 10.0, "job": 20.0}
"""Workloads whose controllers do not wait until a pod has ended; seconds until the successor runs, times the slowdown.
The Job controller waits 10 s after a failed pod, and counts a terminating one as failed."""


@dataclass
class DrainResult:
    """The objects before a notice, and the changes since."""

    agents: dict[str, Agent]
    namespace: Namespace
    grace: int
    before: dict[str, list[Object]]
    """The pods of each workload."""
    others: dict[str, Object]
    """Pods that the notice does not affect."""
    claims: dict[str, Object]
    """The claims on the reclaimed node, by uid."""
    history: History
    noticed: float = 0.0
    released: list[dict[str, object]] = field(default_factory=list)
    duration: float = 0.0
    """Seconds from the notice until every claim was released."""
    slowdown: float = 1.0
    """That of the machine during the drain."""


def create_workloads(namespace: Namespace, command: str, grace: int) -> None:
    """Create one workload of each kind."""
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.claim("shared", request("gpu", "gpu"))

    def pod(app: str, claim: Object = OF_TEMPLATE) -> Object:
        return template(app, command, grace, claims=[claim])

    extended = pod("extended")
    del extended["spec"]["resourceClaims"]
    extended["spec"]["containers"] = [container("main", command=command, resources={"limits": {EXTENDED: "1"}})]
    for kind, body in (
        deployment("deployment", pod("deployment")),
        job("job", pod("job")),
        job("careful-job", pod("careful-job"), **DISRUPTIONS_ARE_NO_FAILURES),
        stateful_set("stateful-set", pod("stateful-set")),
        deployment("shared", pod("shared", SHARED), replicas=2),
        deployment("extended", extended),
    ):
        if body["metadata"]["name"] in WORKLOADS:
            namespace.api.create(kind, body, namespace.name)


@pytest.fixture(
    scope="module",
    params=[(EXITS, 5), (IGNORES_SIGTERM, 30)],
    ids=["exits-at-once", "ignores-sigterm"],
)
def drained(
    session_cluster: Cluster, agents: dict[str, Agent], request: pytest.FixtureRequest
) -> Iterator[DrainResult]:
    """Drain node-a, and wait until everything runs on node-b and the agent reports its claims as released."""
    command, grace = request.param
    api = session_cluster.api
    namespace = Namespace(session_cluster, f"leaving-with-{grace}-s")
    session_cluster.namespaces.append(namespace.name)
    reclaimed = agents["node-a"]
    try:
        cordon(session_cluster, "node-b")
        create_workloads(namespace, command, grace)
        namespace.pod("plain", node="node-a")
        before = {app: run_on(namespace, app, "node-a", count) for app, count in WORKLOADS.items()}
        api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
        namespace.pod("elsewhere", template="one-gpu", node="node-b")
        namespace.running("plain", "elsewhere")
        others = {name: namespace.get_pod(name) for name in ("plain", "elsewhere")}
        claims = api.list(CLAIMS, namespace.name)
        claims = [claim for claim in claims if nodes_of(claim) == {"node-a"}]
        assert len(claims) == len(WORKLOADS), "one claim each"
        with History(namespace) as history:
            found = DrainResult(
                agents, namespace, grace, before, others, {c["metadata"]["uid"]: c for c in claims}, history
            )
            found.noticed = announce(reclaimed, NOTICE_S)
            found.released = all_released(reclaimed)
            found.duration = time.monotonic() - found.noticed
            found.slowdown = api.slowdown()
            for app, count in WORKLOADS.items():
                run_on(namespace, app, "node-b", count)
        yield found
    finally:
        cancel(reclaimed)
        namespace.remove()
        api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


@pytest.mark.parametrize("app", WORKLOADS)
def test_workload_moves_to_the_other_node(drained: DrainResult, app: str) -> None:
    old = {pod["metadata"]["uid"] for pod in drained.before[app]}
    current = run_on(drained.namespace, app, "node-b", WORKLOADS[app])
    assert not old & {pod["metadata"]["uid"] for pod in current}
    history = drained.history
    deletions = [history.deleted(uid) for uid in old]
    for deletion in deletions:
        assert deletion.at > drained.noticed
        reasons = [c.get("reason") for c in deletion.object["status"]["conditions"] if c["type"] == "DisruptionTarget"]
        agent, taint = ["EvictionByEvictionAPI"], ["DeletionByDeviceTaintManager"]
        if app == "extended":  # taint eviction skips extended resources
            assert reasons == agent
        elif drained.grace >= NOTICE_S:  # the agent evicts early, but taint eviction can be faster
            assert reasons in (agent, taint)
        else:
            assert reasons == taint
    ended = max(history.ended(uid).at for uid in old)
    created = history.created(app, but=old).at
    runs = history.runs(app, "node-b").at
    print_times(
        drained, app, deleted=min(deletion.at for deletion in deletions), ended=ended, created=created, runs=runs
    )
    if app in SUCCESSOR_TIMEOUT_S:
        assert runs - min(deletion.at for deletion in deletions) < SUCCESSOR_TIMEOUT_S[app] * drained.slowdown
        if drained.grace > SUCCESSOR_TIMEOUT_S[app] * drained.slowdown:
            assert runs < ended, "its successor does not wait for its end"
    elif app in ("careful-job", "stateful-set"):
        assert created >= ended, "never two pods at once"
    else:
        free = history.allocated("node-b", lambda claim: claim["metadata"]["name"] == "shared").at
        skew = CLOCK_SKEW_S * drained.slowdown
        assert ended - skew <= free <= runs + skew, "the claim is deallocated when both of its pods have ended"


def print_times(drained: DrainResult, app: str, **moments: float) -> None:
    """Print the seconds since the notice."""
    print(app, " ".join(f"{name} {moment - drained.noticed:.2f}" for name, moment in moments.items()))


def test_every_claim_is_released_and_allocated_again(drained: DrainResult) -> None:
    assert {str(record["uid"]) for record in drained.released} == set(drained.claims)
    # A grace period as long as the notice is cut to the remaining time; a busy machine needs some seconds more.
    assert drained.duration < (NOTICE_S if drained.grace < NOTICE_S else NOTICE_S + 10) * drained.slowdown
    # Every existing claim is allocated on the other node, for a pod that runs.
    for claim in drained.namespace.api.list(CLAIMS, drained.namespace.name):
        assert nodes_of(claim) == {"node-b"}, claim["metadata"]["name"]
        assert claim["status"]["reservedFor"]
    assert no_specs(drained.agents["node-a"])


def test_other_pods_are_not_affected(drained: DrainResult) -> None:
    assert effects(drained.agents["node-a"]) == {"NoExecute"}
    assert effects(drained.agents["node-b"]) == {""}
    for name, before in drained.others.items():
        after = drained.namespace.running(name)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert "deletionTimestamp" not in after["metadata"]
        counts = [status["restartCount"] for status in after["status"]["containerStatuses"]]
        assert counts == [0]
    # The eviction does not count as an attempt of a Job with a podFailurePolicy.
    assert not drained.namespace.api.get(JOBS, "careful-job", drained.namespace.name)["status"].get("failed")
    assert "Traceback" not in drained.agents["node-a"].read_log() + drained.agents["node-b"].read_log()

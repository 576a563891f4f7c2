"""A notice of 30 s on a node with workloads of every kind: each runs on the other node, and what it held is free.

All of them leave at once, as they would, first such whose containers end when they are asked to, then such that ignore
it for their whole grace period of 30 s. Each kind is then looked at by a test of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

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
from cluster.kube.workload import Namespace, close, container, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
AGENT_CONFIG = '[reclaim]\nevict = "auto"\ncordon = true\n'
CHART_VALUES = ("podEviction=evict", "cordon=true")
NOTICE = 30.0
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}
SHARED = {"name": "devices", "resourceClaimName": "shared"}
EXTENDED = "deviceclass.resource.kubernetes.io/gpu"
WORKLOADS = {"deployment": 1, "job": 1, "careful-job": 1, "stateful-set": 1, "shared": 2, "extended": 1}
"""How many pods each has."""
SKEW = 0.5
"""Seconds by which the watches of pods and of claims may differ, times the machine's pace."""
AT_ONCE = {"deployment": 10.0, "extended": 10.0, "job": 20.0}
"""Whose owners do not wait until a pod has ended; seconds until the successor runs, times the machine's pace. The Job
controller waits 10 s after a pod that failed, and counts one that is being deleted as such."""


@dataclass
class Left:
    """What there was before a notice, and what happened since."""

    agents: dict[str, Agent]
    namespace: Namespace
    grace: int
    before: dict[str, list[Object]]
    """The pods of each workload."""
    others: dict[str, Object]
    """Pods that the notice is not about."""
    claims: dict[str, Object]
    """The claims on the doomed node, by uid."""
    history: History
    noticed: float = 0.0
    released: list[dict[str, object]] = field(default_factory=list)
    took: float = 0.0
    """Seconds from the notice until every claim was released."""
    pace: float = 1.0
    """The machine's, while they left."""


def make(namespace: Namespace, command: str, grace: int) -> None:
    """Make one workload of each kind."""
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.claim("shared", request("gpu", "gpu"))

    def pod(app: str, claim: Object = OF_TEMPLATE) -> Object:
        return template(app, command, grace, claims=[claim])

    asks = pod("extended")
    del asks["spec"]["resourceClaims"]
    asks["spec"]["containers"] = [container("main", command=command, resources={"limits": {EXTENDED: "1"}})]
    for kind, body in (
        deployment("deployment", pod("deployment")),
        job("job", pod("job")),
        job("careful-job", pod("careful-job"), **DISRUPTIONS_ARE_NO_FAILURES),
        stateful_set("stateful-set", pod("stateful-set")),
        deployment("shared", pod("shared", SHARED), replicas=2),
        deployment("extended", asks),
    ):
        namespace.api.create(kind, body, namespace.name)


@pytest.fixture(
    scope="module",
    params=[(EXITS, 5), (IGNORES_SIGTERM, 30)],
    ids=["exits-at-once", "ignores-sigterm"],
)
def left(session_cluster: Cluster, agents: dict[str, Agent], request: pytest.FixtureRequest) -> Iterator[Left]:
    """Have everything leave node-a, and wait until it runs on node-b and the agent calls its claims released."""
    command, grace = request.param
    api = session_cluster.api
    namespace = Namespace(session_cluster, f"leaving-with-{grace}-s")
    session_cluster.namespaces.append(namespace.name)
    doomed = agents["node-a"]
    try:
        close(session_cluster, "node-b")
        make(namespace, command, grace)
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
            found = Left(agents, namespace, grace, before, others, {c["metadata"]["uid"]: c for c in claims}, history)
            found.noticed = announce(doomed, NOTICE)
            found.released = all_released(doomed)
            found.took = time.monotonic() - found.noticed
            found.pace = api.pace()
            for app, count in WORKLOADS.items():
                run_on(namespace, app, "node-b", count)
        yield found
    finally:
        cancel(doomed)
        namespace.remove()
        api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


@pytest.mark.parametrize("app", WORKLOADS)
def test_leaves_for_the_other_node(left: Left, app: str) -> None:
    old = {pod["metadata"]["uid"] for pod in left.before[app]}
    now = run_on(left.namespace, app, "node-b", WORKLOADS[app])
    assert not old & {pod["metadata"]["uid"] for pod in now}
    history = left.history
    asked_to_go = [history.deleted(uid) for uid in old]
    for seen in asked_to_go:
        assert seen.at > left.noticed
        reasons = [c.get("reason") for c in seen.object["status"]["conditions"] if c["type"] == "DisruptionTarget"]
        agent, taint = ["EvictionByEvictionAPI"], ["DeletionByDeviceTaintManager"]
        if app == "extended":  # the taint overlooks it
            assert reasons == agent
        elif left.grace >= NOTICE:  # the agent asks first where it can, but the taint does not wait long for that
            assert reasons in (agent, taint)
        else:
            assert reasons == taint
    ended = max(history.over(uid).at for uid in old)
    created = history.created(app, but=old).at
    runs = history.runs(app, "node-b").at
    say(left, app, asked=min(seen.at for seen in asked_to_go), ended=ended, created=created, runs=runs)
    if app in AT_ONCE:
        assert runs - min(seen.at for seen in asked_to_go) < AT_ONCE[app] * left.pace
        if left.grace > AT_ONCE[app] * left.pace:
            assert runs < ended, "its successor does not wait for it"
    elif app in ("careful-job", "stateful-set"):
        assert created >= ended, "never two of them at once"
    else:
        free = history.allocated("node-b", lambda claim: claim["metadata"]["name"] == "shared").at
        skew = SKEW * left.pace
        assert ended - skew <= free <= runs + skew, "the claim leaves when both of its pods have ended"


def say(left: Left, app: str, **moments: float) -> None:
    """Print the seconds since the notice, for people."""
    print(app, " ".join(f"{name} {moment - left.noticed:.2f}" for name, moment in moments.items()))


def test_every_claim_is_released_and_none_is_lost(left: Left) -> None:
    assert {str(record["uid"]) for record in left.released} == set(left.claims)
    # Who may take as long as the notice is asked with what is left of it; a busy machine needs some seconds more.
    assert left.took < (NOTICE if left.grace < NOTICE else NOTICE + 10) * left.pace
    # Nothing is lost: every claim there is is allocated on a node that lives, for a pod that runs.
    for claim in left.namespace.api.list(CLAIMS, left.namespace.name):
        assert nodes_of(claim) == {"node-b"}, claim["metadata"]["name"]
        assert claim["status"]["reservedFor"]
    assert no_specs(left.agents["node-a"])


def test_nobody_else_is_touched(left: Left) -> None:
    assert effects(left.agents["node-a"]) == {"NoExecute"}
    assert effects(left.agents["node-b"]) == {""}
    for name, before in left.others.items():
        after = left.namespace.running(name)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert "deletionTimestamp" not in after["metadata"]
        counts = [status["restartCount"] for status in after["status"]["containerStatuses"]]
        assert counts == [0]
    # Leaving costs a job no attempt, where it says so.
    assert not left.namespace.api.get(JOBS, "careful-job", left.namespace.name)["status"].get("failed")
    assert "Traceback" not in left.agents["node-a"].said() + left.agents["node-b"].said()

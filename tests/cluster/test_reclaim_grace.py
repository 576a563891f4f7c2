"""Pods whose grace period is longer than the notice: they are asked with what is left, before the taint's own turn."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import NODES
from cluster.kube.cluster import Cluster
from cluster.kube.drain_probe import (
    IGNORES_SIGTERM,
    KEY,
    History,
    all_released,
    announce,
    cancel,
    deployment,
    run_on,
    stateful_set,
    template,
)
from cluster.kube.workload import Namespace, close, request
from cluster.test_reclaim_choices import budget_that_allows_none

HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
AGENT_CONFIG = '[reclaim]\nevict = "auto"\n'
CHART_VALUES = ("podEviction=evict",)
NOTICE = 20.0
BUSY = 8.0
"""Seconds beyond the graces, times the machine's pace; on a quiet one all is over before the notice is."""
LONG = 300
"""Seconds of grace that no spot host has."""


@pytest.fixture
def doomed(agents: dict[str, Agent], cluster: Cluster) -> Iterator[Agent]:
    """The agent of node-a; node-b is closed to pods until a test opens it."""
    close(cluster, "node-b")
    yield agents["node-a"]
    cancel(agents["node-a"])


def test_a_grace_that_is_longer_than_the_notice(doomed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    patient = {"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 8}
    namespace.template("patient", request("gpu", "gpu", tolerations=[patient]))

    def claims(name: str) -> list[dict[str, str]]:
        return [{"name": "devices", "resourceClaimTemplateName": name}]

    made = [
        deployment("at-once", template("at-once", IGNORES_SIGTERM, LONG, claims=claims("one-gpu"))),
        deployment("budget", template("budget", IGNORES_SIGTERM, LONG, claims=claims("one-gpu"))),
        deployment("patient", template("patient", IGNORES_SIGTERM, LONG, claims=claims("patient"))),
        stateful_set("stateful", template("stateful", IGNORES_SIGTERM, LONG, claims=claims("one-gpu"))),
    ]
    apps = ("at-once", "budget", "patient", "stateful")
    for kind, body in made:
        namespace.api.create(kind, body, namespace.name)
    before = {app: run_on(namespace, app, "node-a")[0]["metadata"]["uid"] for app in apps}
    budget_that_allows_none(namespace, "budget")
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
    with History(namespace) as history:
        noticed = announce(doomed, NOTICE)
        all_released(doomed)
        took = time.monotonic() - noticed
        busy = BUSY * cluster.api.pace()
        for app in apps:
            run_on(namespace, app, "node-b")
    for app, uid in before.items():
        asked = history.deleted(uid)
        grace = asked.object["metadata"]["deletionGracePeriodSeconds"]
        print(app, f"asked {asked.at - noticed:.2f} over {history.over(uid).at - noticed:.2f} grace {grace}")
        assert 1 <= grace < NOTICE, f"{app} was asked with {grace} s"
        assert history.over(uid).at - noticed < NOTICE + busy
        reasons = [c["reason"] for c in asked.object["status"]["conditions"] if c["type"] == "DisruptionTarget"]
        # Where a budget forbids an eviction it is deleted, which tells a pod nothing.
        assert reasons == ([] if app == "budget" else ["EvictionByEvictionAPI"])
    after = history.deleted(before["patient"]).at - noticed
    assert 5 <= after < 5 + 4 * cluster.api.pace(), "the time that it asked for, less 2 s"
    assert took < NOTICE + busy

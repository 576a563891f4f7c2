"""Pods with a grace period longer than the notice are evicted early, with the remaining time as their grace."""

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
from cluster.kube.workload import Namespace, cordon, request
from cluster.test_reclaim_policies import create_budget_of_zero

HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}
AGENT_CONFIG = '[reclaim]\nevict = "auto"\n'
CHART_VALUES = ("podEviction=evict",)
NOTICE_S = 20.0
SLACK_S = 8.0
"""Seconds beyond the grace periods, times the slowdown; on an idle machine the drain ends before the deadline."""
LONG_GRACE_S = 300
"""A grace period longer than any spot notice."""


@pytest.fixture
def reclaimed(agents: dict[str, Agent], cluster: Cluster) -> Iterator[Agent]:
    """The agent of node-a; node-b is cordoned until a test uncordons it."""
    cordon(cluster, "node-b")
    yield agents["node-a"]
    cancel(agents["node-a"])


def test_a_grace_period_longer_than_the_notice_is_cut(reclaimed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    patient = {"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 8}
    namespace.template("patient", request("gpu", "gpu", tolerations=[patient]))

    def claims(name: str) -> list[dict[str, str]]:
        return [{"name": "devices", "resourceClaimTemplateName": name}]

    workloads = [
        deployment("at-once", template("at-once", IGNORES_SIGTERM, LONG_GRACE_S, claims=claims("one-gpu"))),
        deployment("budget", template("budget", IGNORES_SIGTERM, LONG_GRACE_S, claims=claims("one-gpu"))),
        deployment("patient", template("patient", IGNORES_SIGTERM, LONG_GRACE_S, claims=claims("patient"))),
        stateful_set("stateful", template("stateful", IGNORES_SIGTERM, LONG_GRACE_S, claims=claims("one-gpu"))),
    ]
    apps = ("at-once", "budget", "patient", "stateful")
    for kind, body in workloads:
        namespace.api.create(kind, body, namespace.name)
    before = {app: run_on(namespace, app, "node-a")[0]["metadata"]["uid"] for app in apps}
    create_budget_of_zero(namespace, "budget")
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
    with History(namespace) as history:
        noticed = announce(reclaimed, NOTICE_S)
        all_released(reclaimed)
        elapsed = time.monotonic() - noticed
        slack = SLACK_S * cluster.api.slowdown()
        for app in apps:
            run_on(namespace, app, "node-b")
    for app, uid in before.items():
        deletion = history.deleted(uid)
        grace = deletion.object["metadata"]["deletionGracePeriodSeconds"]
        print(app, f"asked {deletion.at - noticed:.2f} over {history.ended(uid).at - noticed:.2f} grace {grace}")
        assert 1 <= grace < NOTICE_S, f"{app} was deleted with grace {grace} s"
        assert history.ended(uid).at - noticed < NOTICE_S + slack
        reasons = [c["reason"] for c in deletion.object["status"]["conditions"] if c["type"] == "DisruptionTarget"]
        # Where a budget forbids an eviction the pod is deleted, without a DisruptionTarget condition.
        assert reasons == ([] if app == "budget" else ["EvictionByEvictionAPI"])
    delay = history.deleted(before["patient"]).at - noticed
    assert 5 <= delay < 5 + 4 * cluster.api.slowdown(), "its tolerationSeconds, less 2 s"
    assert elapsed < NOTICE_S + slack

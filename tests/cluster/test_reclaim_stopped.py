"""SIGTERM during a reclaim: the agent serves until the claims are released, and then exits."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import NODES, PODS
from cluster.kube.cluster import Cluster
from cluster.kube.drain_probe import (
    IGNORES_SIGTERM,
    KEY,
    announce,
    deployment,
    no_specs,
    run_on,
    status,
    tainted,
    template,
)
from cluster.kube.process import until
from cluster.kube.workload import Namespace, cordon, request

OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}
GRACE_PERIOD_S = 30
"""Seconds during which the agent waits for its pod."""

StartAgent = Callable[..., Agent]


@pytest.fixture
def reclaimed(start_agent: StartAgent, cluster: Cluster) -> Agent:
    """The agent of node-a; node-b has an agent, too, and is cordoned at first."""
    start_agent("node-b", "l40s")
    agent = start_agent("node-a", "l40s")
    cordon(cluster, "node-b")
    return agent


def test_a_stopping_agent_releases_the_claims_first(reclaimed: Agent, cluster: Cluster, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    kind, body = deployment("serve", template("serve", IGNORES_SIGTERM, GRACE_PERIOD_S, claims=[OF_TEMPLATE]))
    namespace.api.create(kind, body, namespace.name)
    (pod,) = run_on(namespace, "serve", "node-a")
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
    announce(reclaimed, 60)
    reclaimed.process.signal(signal.SIGTERM)
    reclaimed.wait_for_log("claims must be released first")
    tainted(reclaimed, "NoExecute")
    assert not status(reclaimed)["complete"] and not no_specs(reclaimed)
    until(lambda: not reclaimed.process.running, "the agent exits once no claim is prepared")
    assert reclaimed.end() == 0
    assert no_specs(reclaimed)
    # The pod terminates, although the agent has exited since.
    name = pod["metadata"]["name"]
    namespace.api.wait(lambda: namespace.api.find(PODS, name, namespace.name) is None, "the pod is gone")
    run_on(namespace, "serve", "node-b")
    assert "Traceback" not in reclaimed.read_log()


def test_a_stopping_agent_does_not_wait_for_pods_that_stay(reclaimed: Agent, namespace: Namespace) -> None:
    toleration = {"key": KEY, "operator": "Exists", "effect": "NoExecute"}
    namespace.template("stays", request("gpu", "gpu", tolerations=[toleration]))
    namespace.pod("stays", template="stays", node="node-a")
    namespace.running("stays")
    noticed = announce(reclaimed, 10)
    reclaimed.process.signal(signal.SIGTERM)
    until(lambda: not reclaimed.process.running, "the agent exits before the deadline")
    ended = time.monotonic() - noticed
    assert 7 < ended < 10 + 3 * reclaimed.node.api.slowdown()
    assert reclaimed.end() == 0
    # For the cleanup: without an agent no pod can terminate.
    reclaimed.start()
    until(lambda: not no_specs(reclaimed), "its claim is still prepared")
    namespace.running("stays")

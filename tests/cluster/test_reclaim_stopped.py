"""An agent that is told to stop while its host is taken: it serves until the claims are given back, and no longer."""

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
from cluster.kube.workload import Namespace, close, request

OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}
GRACE = 30
"""Seconds in which the test looks at an agent that waits for its pod."""

StartAgent = Callable[..., Agent]


@pytest.fixture
def doomed(start_agent: StartAgent, cluster: Cluster) -> Agent:
    """The agent of node-a; node-b has one, too, and is closed to pods at first."""
    start_agent("node-b", "l40s")
    agent = start_agent("node-a", "l40s")
    close(cluster, "node-b")
    return agent


def test_claims_are_given_back_through_an_agent_that_was_told_to_stop(
    doomed: Agent, cluster: Cluster, namespace: Namespace
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    kind, body = deployment("serve", template("serve", IGNORES_SIGTERM, GRACE, claims=[OF_TEMPLATE]))
    namespace.api.create(kind, body, namespace.name)
    (pod,) = run_on(namespace, "serve", "node-a")
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
    announce(doomed, 60)
    doomed.process.signal(signal.SIGTERM)
    doomed.wait_for_log("claims must be released first")
    tainted(doomed, "NoExecute")
    assert not status(doomed)["complete"] and not no_specs(doomed)
    until(lambda: not doomed.process.running, "the agent ends once nothing is held through it")
    assert doomed.end() == 0
    assert no_specs(doomed)
    # The pod could end, although the agent has gone since.
    name = pod["metadata"]["name"]
    namespace.api.wait(lambda: namespace.api.find(PODS, name, namespace.name) is None, "the pod is gone")
    run_on(namespace, "serve", "node-b")
    assert "Traceback" not in doomed.said()


def test_it_waits_for_nobody_who_stays_until_the_host_is_gone(doomed: Agent, namespace: Namespace) -> None:
    toleration = {"key": KEY, "operator": "Exists", "effect": "NoExecute"}
    namespace.template("stays", request("gpu", "gpu", tolerations=[toleration]))
    namespace.pod("stays", template="stays", node="node-a")
    namespace.running("stays")
    noticed = announce(doomed, 10)
    doomed.process.signal(signal.SIGTERM)
    until(lambda: not doomed.process.running, "the agent ends before the host does")
    ended = time.monotonic() - noticed
    assert 7 < ended < 10 + 3 * doomed.node.api.pace()
    assert doomed.end() == 0
    # For those who tidy up: without an agent no pod can go.
    doomed.start()
    until(lambda: not no_specs(doomed), "its claim is still prepared")
    namespace.running("stays")

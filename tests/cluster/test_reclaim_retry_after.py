"""A reclaim notice after the API server has requested a long pause: the taint does not wait for its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.kube.agent import Agent
from cluster.kube.cluster import Cluster
from cluster.kube.drain_probe import announce, cancel, tainted
from cluster.kube.process import until
from cluster.kube.refusing_proxy import RefusingProxy
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
RETRY_AFTER_S = 300
TAINTED_AFTER_S = 5.0
"""Seconds from the moment at which the server accepts writes again: a pause of a second, and a request."""


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[RefusingProxy]:
    keys = cluster.control_plane.keys
    with RefusingProxy((cluster.api.host, cluster.api.port), keys.authority, keys.server) as proxy:
        yield proxy


def test_a_notice_while_the_server_requests_a_long_pause(
    start_agent: StartAgent, cluster: Cluster, namespace: Namespace, proxy: RefusingProxy, tmp_path: Path
) -> None:
    kubeconfig = proxy.kubeconfig(cluster.identity().kubeconfig("node-a"), tmp_path / "kubeconfig")
    agent = start_agent("node-a", "l40s", kubeconfig=kubeconfig)
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claim="one", node="node-a")
    namespace.running("user")

    proxy.refuse("/resourceslices", RETRY_AFTER_S)
    announce(agent, 120)
    until(lambda: proxy.refused >= 2, "the agent retries within the requested pause")
    proxy.accept()
    accepted = time.monotonic()
    tainted(agent, "NoExecute")
    slowdown = cluster.api.slowdown()
    took = time.monotonic() - accepted
    assert took < TAINTED_AFTER_S * slowdown, f"tainted after {took:.1f} s, slowdown {slowdown:.1f}"
    namespace.wait_until_deleted("user")
    cancel(agent)

"""A reclaim notice during a rolling update while the leader is stopped: the other agent taints the devices."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from cluster.kube.agent import Agent
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from cluster.test_rolling_update_stalled import is_tainted

StartAgent = Callable[..., Agent]
HARDWARE = "l40s"
LEADS = "this agent leads now"
TAKEN_OVER_AFTER_S = 10.0
"""Seconds from the notice to the last write: 5 s without a beat, two intervals, and a request."""


def test_a_notice_while_the_leader_is_stopped(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace, tmp_path: Path
) -> None:
    notice, config = tmp_path / "notice", tmp_path / "config.toml"
    config.write_text(f'[reclaim]\nfile = "{notice}"\ncloud = "none"\nlogind = "off"\n')
    flags = ("--config", str(config))
    old = start_agent("node-a", HARDWARE, *flags, "--pod-uid", "0d9cbd40-old", instance="old")
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claim="one", node="node-a")
    namespace.running("user")
    new = start_agent("node-a", HARDWARE, *flags, "--pod-uid", "0d9cbd40-new", instance="new")
    old.wait_for_log("another agent leads now")

    led = new.read_log().count(LEADS)
    new.process.signal(signal.SIGSTOP)
    try:
        notice.touch()
        until(lambda: is_tainted(old), "every device is tainted")
        until(lambda: "dra_agent_reclaim_taint_publish_duration_seconds" in old.metrics(), "the old agent recorded it")
        duration = old.metrics()["dra_agent_reclaim_taint_publish_duration_seconds"]
        slowdown = cluster.api.slowdown()
        assert duration < TAKEN_OVER_AFTER_S * slowdown, f"tainted after {duration:.2f} s, slowdown {slowdown:.1f}"
    finally:
        new.process.signal(signal.SIGCONT)
    until(lambda: new.read_log().count(LEADS) > led, "the one that continues knows that the other one led")
    namespace.wait_until_deleted("user")  # the kubelet calls the newest agent
    assert is_tainted(new), "the one that continues keeps the taint"
    notice.unlink()
    until(lambda: not is_tainted(new), "the leader removes the taint")
    for agent in (old, new):
        assert "Traceback" not in agent.read_log()

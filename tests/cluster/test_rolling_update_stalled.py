"""A reclaim notice during a rolling update that is stalled because the new agent cannot reach the API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
HARDWARE = "l40s"
TAINTED_AFTER_S = 1.0
"""Seconds from the notice to the last write that the API server has accepted."""


def is_tainted(agent: Agent) -> bool:
    keys = [[taint["key"] for taint in device.get("taints", [])] for device in agent.devices().values()]
    return bool(keys) and all(f"{DRIVER}/reclaim" in found for found in keys)


def unreachable_kubeconfig(kubeconfig: Path, copy: Path) -> Path:
    """Write a kubeconfig whose API server does not exist."""
    document = yaml.safe_load(kubeconfig.read_text())
    for entry in document["clusters"]:
        entry["cluster"]["server"] = "https://127.0.0.1:9"
    copy.write_text(yaml.safe_dump(document))
    return copy


def test_a_notice_during_a_stalled_rolling_update(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace, tmp_path: Path
) -> None:
    notice, config = tmp_path / "notice", tmp_path / "config.toml"
    config.write_text(f'[reclaim]\nfile = "{notice}"\ncloud = "none"\nlogind = "off"\n')
    flags = ("--config", str(config))
    old = start_agent("node-a", HARDWARE, *flags, "--pod-uid", "0d9cbd40-old", instance="old")
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claim="one", node="node-a")
    namespace.running("user")

    unreachable = unreachable_kubeconfig(cluster.identity().kubeconfig("node-a"), tmp_path / "away.kubeconfig")
    new = start_agent(
        "node-a", HARDWARE, *flags, "--pod-uid", "0d9cbd40-new", instance="new", kubeconfig=unreachable, ready=False
    )
    new.wait_for_log("info ready")
    new.wait_for_log("slices cannot be followed")
    until(lambda: new.get("/readyz")[0] == 503, "the new agent is not ready")

    notice.touch()
    until(lambda: is_tainted(old), "every device is tainted")
    until(lambda: "dra_agent_reclaim_taint_publish_duration_seconds" in old.metrics(), "the old agent has recorded it")
    duration = old.metrics()["dra_agent_reclaim_taint_publish_duration_seconds"]
    slowdown = cluster.api.slowdown()
    assert duration < TAINTED_AFTER_S * slowdown, f"tainted after {duration:.2f} s, slowdown {slowdown:.1f}"
    namespace.wait_until_deleted("user")
    for agent in (old, new):
        assert "Traceback" not in agent.read_log()

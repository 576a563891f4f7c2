"""A rolling update that stalls because the new agent cannot reach the API server, while the host is being taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
HARDWARE = "l40s"
TAINTED_AFTER_S = 1.0


def tainted(agent: Agent) -> bool:
    keys = [[taint["key"] for taint in device.get("taints", [])] for device in agent.devices().values()]
    return bool(keys) and all(f"{DRIVER}/reclaim" in found for found in keys)


def out_of_reach(kubeconfig: Path, copy: Path) -> Path:
    """A kubeconfig whose API server does not exist."""
    document = yaml.safe_load(kubeconfig.read_text())
    for entry in document["clusters"]:
        entry["cluster"]["server"] = "https://127.0.0.1:9"
    copy.write_text(yaml.safe_dump(document))
    return copy


@pytest.mark.timeout(300)
def test_a_stalled_rolling_update_and_a_notice(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace, tmp_path: Path
) -> None:
    notice, config = tmp_path / "notice", tmp_path / "config.toml"
    config.write_text(f'[reclaim]\nfile = "{notice}"\ncloud = "none"\nlogind = "off"\n')
    flags = ("--config", str(config))
    old = start_agent("node-a", HARDWARE, *flags, "--pod-uid", "0d9cbd40-old", instance="old")
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claim="one", node="node-a")
    namespace.running("user")

    away = out_of_reach(cluster.identity().kubeconfig("node-a"), tmp_path / "away.kubeconfig")
    new = start_agent(
        "node-a", HARDWARE, *flags, "--pod-uid", "0d9cbd40-new", instance="new", kubeconfig=away, ready=False
    )
    new.wait_for_log("info ready")
    new.wait_for_log("slices cannot be followed", 60)
    until(lambda: new.get("/readyz")[0] == 503, "the update does not go on", 60)

    notice.touch()
    until(lambda: tainted(old), "every device is tainted", 60)
    until(lambda: "dra_agent_reclaim_taint_publish_duration_seconds" in old.metrics(), "the old agent has seen it", 60)
    assert old.metrics()["dra_agent_reclaim_taint_publish_duration_seconds"] < TAINTED_AFTER_S
    namespace.gone("user", at_most=60)
    for agent in (old, new):
        assert "Traceback" not in agent.said()

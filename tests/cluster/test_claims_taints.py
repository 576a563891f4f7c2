"""Taints on nodes and on single devices repel pods with claims; tolerations admit them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER
from cluster.kube.api import NODES, TAINT_RULES
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, request, wait_until_no_pod_fits

KEY = "example.com/reserved"
ON_NODE = {"key": KEY, "value": "training", "effect": "NoSchedule"}


@pytest.fixture
def reserved(cluster: Cluster) -> object:
    """node-b has a taint."""
    cluster.api.patch(NODES, "node-b", {"spec": {"taints": [ON_NODE]}})
    try:
        wait_until_no_pod_fits(cluster, "node-b")
        yield
    finally:
        cluster.api.patch(NODES, "node-b", {"spec": {"taints": None}})


def test_node_taint_repels_pods_without_toleration(
    start_agent: StartAgent, namespace: Namespace, cluster: Cluster, reserved: object
) -> None:
    start_agent("node-b", "l40s")
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("stranger", claim="one")
    namespace.wait_for_scheduling_failure("stranger", "untolerated taint")
    assert namespace.results("one") == [], "nothing is allocated where the pod cannot run"
    namespace.claim("two", request("gpu", "gpu"))
    namespace.pod("guest", claim="two", tolerations=[{"key": KEY, "operator": "Exists"}])
    assert namespace.running("guest")["spec"]["nodeName"] == "node-b"
    cluster.api.patch(NODES, "node-b", {"spec": {"taints": None}})
    namespace.running("stranger")


def test_device_taint_repels_claims_without_toleration(
    start_agent: StartAgent, namespace: Namespace, tmp_path: Path
) -> None:
    (tmp_path / "agent.toml").write_text("[health]\nevent_seconds = 60\n")
    agent = start_agent("node-a", "vm-1gpu", "--config", str(tmp_path / "agent.toml"))
    (gpu,) = [name for name in agent.devices() if name.startswith("gpu-")]
    agent.simulate("xid", "0000:00:04.0", "48")
    namespace.api.wait(lambda: agent.devices()[gpu].get("taints"), "the GPU is tainted")
    namespace.wait_until_no_device(request("gpu", "gpu"))
    agent.simulate("xid", "0000:00:04.0", "48")  # a second event extends the taint
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("careful", claim="one")
    namespace.wait_for_scheduling_failure("careful", "cannot allocate all claims")
    agent.simulate("xid", "0000:00:04.0", "48")
    other = {"key": f"{DRIVER}/ecc", "operator": "Exists", "effect": "NoSchedule"}
    namespace.claim("two", request("gpu", "gpu", tolerations=[other]))
    namespace.pod("mistaken", claim="two")
    namespace.wait_for_scheduling_failure("mistaken", "cannot allocate all claims")
    namespace.delete_pod("mistaken")
    namespace.wait_until_deleted("mistaken")
    this = {"key": f"{DRIVER}/xid-48", "operator": "Exists", "effect": "NoSchedule"}
    namespace.claim("three", request("gpu", "gpu", tolerations=[this]))
    namespace.pod("brave", claim="three")
    namespace.running("brave")
    assert namespace.results("three")[0]["device"] == gpu
    namespace.delete_pod("brave")
    namespace.wait_until_deleted("brave")
    # The taint is removed with its cause, without any action.
    namespace.running("careful")


def test_claims_tolerate_the_taints_of_agent_and_rule(
    start_agent: StartAgent, namespace: Namespace, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "agent.toml").write_text("[health]\nevent_seconds = 600\n")
    agent = start_agent("node-a", "vm-1gpu", "--config", str(tmp_path / "agent.toml"))
    (gpu,) = [name for name in agent.devices() if name.startswith("gpu-")]
    agent.simulate("xid", "0000:00:04.0", "48")
    namespace.api.wait(lambda: agent.devices()[gpu].get("taints"), "the GPU is tainted")
    rule = f"{namespace.name}-maintenance"
    selector = {"driver": DRIVER, "pool": "node-a/gpu", "device": gpu}
    maintenance = {"key": "example.com/maintenance", "effect": "NoSchedule"}
    cluster.api.create(
        TAINT_RULES, {"metadata": {"name": rule}, "spec": {"deviceSelector": selector, "taint": maintenance}}
    )
    try:
        of_agent, of_rule = (
            {"key": key, "operator": "Exists", "effect": "NoSchedule"}
            for key in (f"{DRIVER}/xid-48", maintenance["key"])
        )
        for name, tolerations in (("one", [of_agent]), ("other", [of_rule])):
            namespace.claim(name, request("gpu", "gpu", tolerations=tolerations))
            namespace.pod(name, claim=name)
            namespace.wait_for_scheduling_failure(name, "cannot allocate all claims")
        namespace.claim("both", request("gpu", "gpu", tolerations=[of_agent, of_rule]))
        namespace.pod("both", claim="both")
        namespace.running("both")
        (taint,) = agent.devices()[gpu]["taints"]
        assert taint["key"] == of_agent["key"], "the rule of others does not change the slices of the agent"
        namespace.delete_pod("both")
        namespace.wait_until_deleted("both")
    finally:
        cluster.api.delete(TAINT_RULES, rule)
    namespace.running("one")

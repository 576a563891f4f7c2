"""A kubelet without its state, as after `kubeadm reset`, unprepares nothing: the agent releases the claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.kube.agent import Agent
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
HARDWARE = "vm-1gpu"


def forget_claims(agent: Agent) -> None:
    """End the kubelet, and remove its record of prepared claims: it never unprepares them."""
    agent.node.kubelet.kill()
    (agent.node.kubelet_dir / "dra_manager_state").unlink()


def test_claim_unknown_to_the_kubelet_is_released(
    start_agent: StartAgent, namespace: Namespace, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[claims]\nrelease_gone_after = 2\n")
    agent = start_agent("node-a", HARDWARE, "--config", str(config))
    namespace.template("gpu", request("gpu", "gpu"))
    namespace.pod("first", template="gpu", node="node-a")
    namespace.running("first")
    forget_claims(agent)
    namespace.delete_pod("first", grace=0)
    namespace.wait_until_deleted("first")
    agent.node.kubelet.start()
    namespace.pod("second", template="gpu", node="node-a")
    agent.wait_for_log("orphaned claim was released")
    namespace.running("second")
    assert len(agent.node.cdi_files()) == 1


@pytest.mark.parametrize("moves", [False, True], ids=["deallocated", "moved"])
def test_claim_that_lost_its_devices_is_released(
    start_agent: StartAgent, namespace: Namespace, tmp_path: Path, moves: bool
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[claims]\nrelease_gone_after = 2\n")
    agent = start_agent("node-a", HARDWARE, "--config", str(config))
    namespace.claim("training", request("gpu", "gpu"))
    namespace.pod("first", claim="training", node="node-a")
    namespace.running("first")
    forget_claims(agent)
    namespace.delete_pod("first", grace=0)
    namespace.wait_until_deleted("first")
    # The claim has no user any more: its controller removes the allocation.
    namespace.api.wait(lambda: not namespace.results("training"), "claim training is deallocated")
    if moves:
        start_agent("node-b", HARDWARE)
        namespace.pod("elsewhere", claim="training", node="node-b")
        namespace.running("elsewhere")
        assert [result["pool"] for result in namespace.results("training")] == ["node-b/gpu"]
    agent.node.kubelet.start()
    namespace.template("gpu", request("gpu", "gpu"))
    namespace.pod("second", template="gpu", node="node-a")
    agent.wait_for_log("orphaned claim was released")
    namespace.running("second")
    assert len(agent.node.cdi_files()) == 1
    if moves:
        assert namespace.get_pod("elsewhere")["status"]["phase"] == "Running"

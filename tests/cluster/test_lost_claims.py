"""A kubelet without its state, as after `kubeadm reset`, unprepares nothing: the agent releases the claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cluster.kube.agent import Agent
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
HARDWARE = "vm-1gpu"


def test_claim_unknown_to_the_kubelet_is_released(
    start_agent: StartAgent, namespace: Namespace, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[claims]\nrelease_gone_after = 2\n")
    agent = start_agent("node-a", HARDWARE, "--config", str(config))
    namespace.template("gpu", request("gpu", "gpu"))
    namespace.pod("first", template="gpu", node="node-a")
    namespace.running("first")
    agent.node.kubelet.kill()
    (agent.node.kubelet_dir / "dra_manager_state").unlink()
    namespace.delete_pod("first", grace=0)
    namespace.wait_until_deleted("first")
    agent.node.kubelet.start()
    namespace.pod("second", template="gpu", node="node-a")
    agent.wait_for_log("claim that does not exist was released")
    namespace.running("second")
    assert len(agent.node.cdi_files()) == 1

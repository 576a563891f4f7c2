"""The load that NVIDIA GPUs of a node play is that of the claims of pods: a whole GPU, and a partition."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import Agent
from cluster.kube.workload import Namespace, request
from cluster.test_mig import AGENT_CONFIG, FIRST, SECOND, gpu_selector
from dra_simulate import mig

CONFIG = AGENT_CONFIG + '\n[telemetry]\ninterval = 1\nclaim_labels = "on"\n'
MIB = 1 << 20
POWER_WATTS = 450.0
BUSY = f"0,97,60,12000,{POWER_WATTS:g}\n"
OF_PARTITION = "0,0,0,7168,0\n"
IDLE = "0,0,0,12000,70\n"


@pytest.fixture
def agent(start_agent: StartAgent, tmp_path: Path) -> Agent:
    (tmp_path / "agent.toml").write_text(CONFIG)
    return start_agent(
        "node-a", "dgx-h100", "--config", str(tmp_path / "agent.toml"), "--metrics-address", "127.0.0.1:0"
    )


def play(agent: Agent, tmp_path: Path, address: str, load: str, *flags: str) -> None:
    file = tmp_path / "load.csv"
    file.write_text(f"seconds,gpu_percent,memory_percent,memory_mib,power_watts\n{load}")
    agent.simulate("load", address, str(file), *flags)


def value(agent: Agent, name: str, claim: str) -> float | None:
    """Return a value of a claim; None if there is no series."""
    label = f'claim="{claim}"'
    found = [number for series, number in agent.metrics().items() if series.startswith(f"{name}{{") and label in series]
    assert len(found) <= 1, f"claim {claim} has one device"
    return found[0] if found else None


def test_claims_have_the_load_of_their_gpu_or_partition(agent: Agent, namespace: Namespace, tmp_path: Path) -> None:
    namespace.claim("train", request("gpu", "gpu", gpu_selector(None, FIRST)))
    namespace.claim("part", request("gpu", "mig", gpu_selector("1g.10gb", SECOND)))
    for name in ("train", "part"):
        namespace.pod(name, claim=name)
    namespace.running("train", "part")
    play(agent, tmp_path, FIRST, BUSY)
    (instance,) = [one for gpu in mig.read(agent.host).values() for one in gpu.gpu_instances]
    play(agent, tmp_path, SECOND, OF_PARTITION, "--instance", str(instance.id))

    def played() -> bool:
        values = {
            name: value(agent, f"dra_agent_claim_{name}", "train")
            for name in ("gpu_utilization_ratio", "memory_used_bytes", "power_watts")
        }
        expected = {"gpu_utilization_ratio": 0.97, "memory_used_bytes": 12_000 * MIB, "power_watts": POWER_WATTS}
        return values == pytest.approx(expected) if None not in values.values() else False

    namespace.api.wait(played, "the claim has what its GPU plays")
    namespace.api.wait(
        lambda: value(agent, "dra_agent_claim_memory_used_bytes", "part") == 7168 * MIB,
        "the claim has what its partition plays",
    )
    assert value(agent, "dra_agent_claim_power_watts", "part") is None, "the power of the GPU is not the partition's"


def test_energy_and_idle_time_continue_after_a_restart(agent: Agent, namespace: Namespace, tmp_path: Path) -> None:
    energy, idle = "dra_agent_claim_energy_joules_total", "dra_agent_claim_idle_seconds_total"
    namespace.claim("train", request("gpu", "gpu", gpu_selector(None, FIRST)))
    namespace.pod("train", claim="train")
    namespace.running("train")
    play(agent, tmp_path, FIRST, BUSY)
    namespace.api.wait(lambda: (value(agent, energy, "train") or 0) > POWER_WATTS, "energy is counted")
    assert not value(agent, idle, "train"), "the GPU is busy"
    play(agent, tmp_path, FIRST, IDLE)
    namespace.api.wait(lambda: (value(agent, idle, "train") or 0) >= 2, "idle time is counted")
    read_at, joules, idle_s = time.monotonic(), value(agent, energy, "train"), value(agent, idle, "train")
    assert joules is not None and idle_s is not None
    agent.kill()
    agent.start().ready()
    namespace.api.wait(lambda: (value(agent, idle, "train") or 0) > idle_s, "idle time is counted again")
    elapsed_s = time.monotonic() - read_at
    after, idle_after_s = value(agent, energy, "train"), value(agent, idle, "train")
    assert after is not None and joules <= after <= joules + POWER_WATTS * elapsed_s
    assert idle_after_s is not None and idle_after_s <= idle_s + elapsed_s + 1, "time without the agent counts once"

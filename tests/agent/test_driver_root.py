"""An agent and a driver container: the driver appears late, leaves while a claim holds its GPU, and comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dra_simulate
from dra_simulate import driver_container
from eventually import eventually

from .conftest import Start
from .test_claims import cli

__all__ = ["cli"]

ROOT = "/run/nvidia/driver"
MISSING = 'dra_agent_device_causes{cause="driver-missing",device="gpu-0000-00-04-0"} 1'


def test_a_driver_that_comes_leaves_and_returns(start: Start, state: Path, cli: Callable[..., str]) -> None:
    host = state / "simulated" / dra_simulate.folder_name("vm-1gpu")
    dra_simulate.build("vm-1gpu", host)
    driver_container.remove(host)
    driver_container.load_modules(host, loaded=False)
    agent = start("--nvidia-driver-root", ROOT, "--metrics-address", "127.0.0.1:0").ready()
    assert "nic-0000-00-05-0" in cli("devices") and "gpu-" not in cli("devices", "-o", "name")
    assert "dra_agent_host_problems 0" not in agent.get("/metrics")[1]
    # As a driver container: the modules first, then its root.
    driver_container.load_modules(host, loaded=True)
    agent.wait_for("NVIDIA's driver is missing")
    driver_container.install(host)
    eventually(lambda: "dra_agent_host_problems 0" in agent.get("/metrics")[1], agent.log_text)
    cli("claim", "apply", "-f", "claim.yaml", "--wait", "60s")
    driver_container.announce_stop(host)
    eventually(lambda: MISSING in agent.get("/metrics")[1], agent.log_text)
    driver_container.load_modules(host, loaded=False)
    driver_container.remove(host)
    agent.wait_for("stay published with a taint")
    assert MISSING in agent.get("/metrics")[1] and "team/training" in cli("claims")
    driver_container.load_modules(host, loaded=True)
    driver_container.install(host)
    eventually(lambda: "dra_agent_host_problems 0" in agent.get("/metrics")[1], agent.log_text)
    assert "team/training" in cli("claims")
    assert agent.log_text().count("NVIDIA's driver is not loaded") == 2, "once for each time"
    cli("claim", "delete", "team/training")

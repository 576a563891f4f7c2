"""Claims of a running agent: they survive its restarts, hardware changes, and a hanging library."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
import preloaded
import tiers
from dra_simulate import inject
from eventually import eventually

from .conftest import AgentProcess, Start

CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: any-gpu
spec:
  selectors:
  - cel:
      expression: device.attributes["dra-agent.internal"].type == "gpu"
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: training
  namespace: team
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: any-gpu
        allocationMode: ExactCount
        count: 1
"""


@pytest.fixture
def cli(state: Path, tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "claim.yaml").write_text(CLAIM)

    def run(*arguments: str) -> str:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        variables["DRA_AGENT_STATE_DIR"] = str(state)
        result = preloaded.run(arguments, env=variables, cwd=tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


def claim(cli: Callable[..., str]) -> dict[str, Any]:
    claim_: dict[str, Any] = json.loads(cli("claim", "get", "-n", "team", "training", "-o", "json"))
    return claim_


def devices_in(agent: AgentProcess, state: str) -> float:
    """Return the number of devices of all families in this state."""
    lines = [line for line in agent.get("/metrics")[1].splitlines() if line.startswith("dra_agent_devices{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'state="{state}"' in line)


def metric(agent: AgentProcess, name: str) -> float:
    text = agent.get("/metrics")[1]
    return float(next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name + " ")))


def test_a_prepared_claim_survives_sigkill_and_sigterm(start: Start, cli: Callable[..., str], tmp_path: Path) -> None:
    agent = start("--metrics-address", "127.0.0.1:0").ready()
    cli("claim", "apply", "-f", "claim.yaml")
    before = claim(cli)
    assert before["phase"] == "Prepared"
    assert len(before["devices"]) == 1
    assert metric(agent, "dra_agent_prepared_claims") == 1
    assert devices_in(agent, "prepared") == 1
    assert metric(agent, 'dra_agent_dra_requests_total{operation="prepare",result="ok"}') >= 1
    specs = {path.name: path.read_bytes() for path in (tmp_path / "cdi").glob("*.json")}
    assert len(specs) == 1
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
        assert agent.end(number) == code
        agent = start("--metrics-address", "127.0.0.1:0").ready()
        assert "damaged" not in agent.log_text()
        after = claim(cli)
        assert (after["phase"], after["devices"]) == ("Prepared", before["devices"])
        assert {path.name: path.read_bytes() for path in (tmp_path / "cdi").glob("*.json")} == specs
    cli("claim", "delete", "-n", "team", "training")
    assert metric(agent, "dra_agent_prepared_claims") == 0
    assert list((tmp_path / "cdi").glob("*.json")) == []


def test_an_unplugged_gpu_leaves_the_slices_until_replugged(start: Start, cli: Callable[..., str], state: Path) -> None:
    agent = start("--metrics-address", "127.0.0.1:0").ready()
    before = devices_in(agent, "free")
    host = state / "simulated" / "vm-1gpu"
    inject.unplug(host, "0000:00:04.0")
    agent.wait_for(r"devices changed removed=gpu-0000-00-04-0")
    eventually(lambda: devices_in(agent, "free") == before - 1, agent.log_text)  # counted once the change is logged
    inject.replug(host, "0000:00:04.0")
    agent.wait_for(r"devices changed added=gpu-0000-00-04-0")
    eventually(lambda: devices_in(agent, "free") == before, agent.log_text)


@tiers.PATIENCE
def test_a_hanging_nvidia_library_blocks_neither_claims_nor_health(
    start: Start, cli: Callable[..., str], state: Path, tmp_path: Path
) -> None:
    config, hangs = tmp_path / "config.toml", tmp_path / "hangs"
    config.write_text("[inventory]\nnvml_timeout = 0.5\n")
    # Only calls that hang have a short timeout: on a slow machine others may take longer.
    patch = (
        "from pathlib import Path\n"
        "from dra_agent.nvml.client import NvmlWorker\n"
        "call = NvmlWorker.call\n"
        "NvmlWorker.call = lambda worker, lane, timeout, *arguments: call(\n"
        f"    worker, lane, 0.5 if Path({str(hangs)!r}).exists() else timeout, *arguments)"
    )
    agent = start("--metrics-address", "127.0.0.1:0", patch=patch).ready()
    free = devices_in(agent, "free")
    hangs.touch()
    inject.hang(state / "simulated" / "vm-1gpu", None)
    agent.wait_for(r"device is not monitored")
    assert agent.get("/healthz") == (200, "ok\n")
    # Its taint reports the hang, and does not prevent allocation.
    cause = 'dra_agent_device_causes{cause="unmonitored",device="gpu-0000-00-04-0"} 1.0'
    eventually(lambda: cause in agent.get("/metrics")[1], agent.log_text)
    assert devices_in(agent, "free") == free
    assert json.loads(cli("claim", "list", "-o", "json")) == []
    cli("claim", "apply", "-f", "claim.yaml")
    claim_ = claim(cli)
    assert (claim_["phase"], [entry["device"] for entry in claim_["devices"]]) == ("Prepared", ["gpu-0000-00-04-0"])
    rows = [line.split() for line in cli("devices", "--config", str(config), "--simulate", "vm-1gpu").splitlines()]
    (row,) = [row for row in rows if row[0] == "gpu-0000-00-04-0"]
    assert "unmonitored," in row, row
    inject.clear(state / "simulated" / "vm-1gpu")
    assert agent.end() == 0


def test_an_agent_with_a_slow_start_sends_heartbeats(start: Start, state: Path, tmp_path: Path) -> None:
    host = state / "simulated" / "vm-1gpu"
    state.mkdir()
    dra_simulate.build("vm-1gpu", host)
    inject.hang(host, None)
    config = tmp_path / "config.toml"
    config.write_text("[inventory]\nnvml_timeout = 600\n")
    # Every heartbeat is logged; the machine decides how long the start takes.
    patch = (
        "from dra_agent.agent import liveness\n"
        "liveness.LivenessMonitor.heartbeat = lambda self: print('beat', file=sys.stderr, flush=True)"
    )
    agent = start("--config", str(config), patch=patch)
    agent.wait_for("(?s)beat.*beat")
    assert "info ready" not in agent.log_text()
    inject.clear(host)
    agent.ready()


def test_an_agent_starts_although_the_nvidia_library_hangs(start: Start, state: Path, tmp_path: Path) -> None:
    host = state / "simulated" / "vm-1gpu"
    state.mkdir()
    dra_simulate.build("vm-1gpu", host)
    inject.hang(host, None)
    config = tmp_path / "config.toml"
    config.write_text("[inventory]\nnvml_timeout = 0.3\n")
    agent = start("--config", str(config)).ready()
    assert "NVML" in agent.log_text()
    assert agent.end() == 0

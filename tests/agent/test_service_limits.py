"""The unit's limits of memory and tasks: both are far above what the agent needs."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
import yaml

from agent.conftest import Start
from dra_agent.agent.agent import MAX_WORKER_THREADS
from dra_agent.agent.housekeeping import MAX_HUNG_REPAIRS
from dra_agent.bounded_http import MAX_THREADS as MAX_HTTP_THREADS
from dra_agent.inventory.nvidia.gpu_start import MAX_THREADS as MAX_START_THREADS
from dra_agent.kube_client.name_lookup import MAX_LOOKUPS
from dra_agent.kubelet_plugin.plugin import MAX_CALLS, MAX_OTHER_CALLS
from dra_agent.kubelet_plugin.plugin import MAX_THREADS as MAX_CLAIM_THREADS
from dra_agent.reclaim.notice_files import MAX_WRITERS
from dra_agent.standalone.claim_workers import MAX_CONCURRENT_CLAIMS
from dra_agent.telemetry.sampler import MAX_THREADS as MAX_TELEMETRY_THREADS
from eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "systemd/dra-agent.service"
MIB = 1 << 20
IDLE_TASKS = 100
"""As the comment in the unit states."""
OTHER_TASKS = 200
"""Threads without a pool: those of gRPC, one for each lane of NVIDIA's library, and short-lived processes."""


def setting(file: Path, name: str) -> str:
    values = re.findall(rf"^{name}=(.*)$", file.read_text(), re.MULTILINE)
    assert len(values) == 1, f"{file}: {name}= is set {len(values)} times"
    return str(values[0])


def size(quantity: str) -> int:
    """Return the bytes of a size as systemd and Kubernetes write it."""
    found = re.fullmatch(r"(\d+)Mi?", quantity)
    assert found, quantity
    return int(found[1]) * MIB


def test_the_memory_limit_is_above_the_limit_of_the_pod() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/dra-agent/values.yaml").read_text())
    assert size(setting(UNIT, "MemoryMax")) == 2 * size(values["resources"]["limits"]["memory"])


def test_all_thread_pools_fit_in_the_limit_of_tasks() -> None:
    kubernetes = MAX_CALLS + MAX_OTHER_CALLS + MAX_CLAIM_THREADS + MAX_LOOKUPS
    own = MAX_WORKER_THREADS + MAX_HUNG_REPAIRS + MAX_START_THREADS + MAX_WRITERS + MAX_TELEMETRY_THREADS
    servers = 2 * MAX_HTTP_THREADS  # metrics and probes
    mode = max(kubernetes, MAX_CONCURRENT_CLAIMS)
    assert mode + own + servers + OTHER_TASKS <= int(setting(UNIT, "TasksMax"))


@pytest.mark.parametrize("name", ["MemoryMax", "TasksMax"])
def test_programs_that_use_mps_are_not_limited_by_the_unit(name: str) -> None:
    assert setting(ROOT / "systemd/mps.conf", name) == "infinity"


def test_an_agent_with_many_devices_needs_a_small_part(start: Start) -> None:
    agent = start("--simulate", "dgx-h100", "--metrics-address", "127.0.0.1:0", new_interpreter=True).ready()
    process = psutil.Process(agent.process.pid)
    # NVIDIA's library has another process.
    eventually(process.children, agent.log_text)
    processes = [process, *process.children(recursive=True)]
    assert sum(one.num_threads() for one in processes) < IDLE_TASKS
    assert sum(one.memory_info().rss for one in processes) < size(setting(UNIT, "MemoryMax")) / 2

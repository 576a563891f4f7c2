"""The agent as a process: start to ready, resident memory with 64 claims, and growth over many claims.

Results depend on the machine, so the benchmark never fails. `PAIRS` sets how many
claims are applied and deleted to measure the growth (default 2000).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from process_memory import family, pages_once_mib, rollup
from results import GROWTH_NOISE_MIB, Measure, Target, measure, this_machine
from results_table import publish

from dra_agent.standalone.protocol import Apply, Client, Delete
from dra_simulate import build

AGENT = Path(sys.executable).with_name("dra-agent")
PROFILE = "dgx-h100"
STARTS = 7
CLAIMS = 64
IDLE_AFTER_S = 10.0
"""Seconds after the start: libraries may still initialize GPUs before."""
IDLE_S = 60.0
PAIRS = int(os.environ.get("PAIRS", "2000"))


def main() -> None:
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="dra-bench-") as directory:
        state = Path(directory)
        build(PROFILE, state / "simulated" / PROFILE)
        bare = [python_start() for _ in range(STARTS)]
        starts = []
        for number in range(STARTS):
            agent, seconds = start(state)
            starts.append(seconds)
            if number < STARTS - 1:
                stop(agent)
        first = measure(
            "start to ready",
            "ms",
            [one * 1000 for one in starts],
            compared_with="an empty Python",
            reference=[one * 1000 for one in bare],
            target=Target("value", "at most", 500),
        )
        try:
            publish("agent", [first, measure_idle(agent), *measure_memory(agent, state)], machine)
        finally:
            stop(agent)


def measure_idle(agent: subprocess.Popen[bytes]) -> Measure:
    """Measure the CPU time of the agent and its workers while nothing happens."""
    time.sleep(IDLE_AFTER_S)
    before = cpu_s(agent.pid)
    time.sleep(IDLE_S)
    share = (cpu_s(agent.pid) - before) / IDLE_S * 100
    return measure("CPU while idle", "%", [share], target=Target("value", "at most", 1))


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its children, in seconds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    stats = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in (pid, *children)]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def measure_memory(agent: subprocess.Popen[bytes], state: Path) -> list[Measure]:
    measures = memory("idle", agent)
    with Client(state / "agent.sock") as client:
        client.call(Apply([device_class()]))
        for number in range(CLAIMS):
            (applied,) = client.call(Apply([claim(f"held-{number}")]))
            assert applied["claim"]["phase"] == "Prepared", applied["claim"]["message"]
        measures += memory(f"{CLAIMS} claims", agent, Target("value", "at most", 48))
        pairs(client, 200)
        before = rollup(agent.pid)["Rss"]
        began = time.perf_counter()
        pairs(client, PAIRS)
        each = (time.perf_counter() - began) / PAIRS
        grown = rollup(agent.pid)["Rss"] - before
    return [
        *measures,
        measure(
            f"growth over {PAIRS} claims",
            "MiB",
            [grown],
            target=Target("value", "at most", 1),
            noise=GROWTH_NOISE_MIB,
        ),
        measure("claim applied and deleted, mean", "ms", [each * 1000]),
    ]


def pairs(client: Client, count: int) -> None:
    for _ in range(count):
        client.call(Apply([claim("passing")]))
        client.call(Delete("ResourceClaim", "passing", "default", 30.0))


def device_class() -> dict[str, object]:
    selector = {"cel": {"expression": 'device.driver == "dra-agent.internal"'}}
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}}
    return {**meta, "spec": {"selectors": [selector]}}


def claim(name: str) -> dict[str, object]:
    # Admin access, because one host does not have 64 free devices for 64 claims; such claims are prepared like others.
    request = {"name": "r", "exactly": {"deviceClassName": "any", "adminAccess": True}}
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**meta, "spec": {"devices": {"requests": [request]}}}


def start(state: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], float]:
    command: list[str | Path] = [
        AGENT,
        "run",
        "--standalone",
        "--state-dir",
        state,
        "--cdi-dir",
        state / "cdi",
        "--simulate",
        PROFILE,
        *arguments,
    ]
    (state / "cdi").mkdir(exist_ok=True)
    began = time.perf_counter()
    agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(state / "agent.sock")) == 0:
                return agent, time.perf_counter() - began
        assert agent.poll() is None, "the agent ended"
        time.sleep(0.002)


def python_start() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return time.perf_counter() - began


def stop(agent: subprocess.Popen[bytes]) -> None:
    agent.send_signal(signal.SIGTERM)
    agent.wait(30)


def memory(phase: str, agent: subprocess.Popen[bytes], target: Target | None = None) -> list[Measure]:
    mib = rollup(agent.pid)
    return [
        measure(f"agent and NVML process, pages counted once, {phase}", "MiB", [charged(agent)], target=target),
        measure(f"resident, {phase}", "MiB", [mib["Rss"]]),
        measure(f"private, {phase}", "MiB", [mib["Anonymous"]]),
    ]


def charged(agent: subprocess.Popen[bytes]) -> float:
    return pages_once_mib(family(agent.pid))


if __name__ == "__main__":
    main()

"""Measures what telemetry costs: CPU time and memory of an agent that samples, compared with one that does not.

Two agents run at the same time on equal simulated hosts with equal claims, and only one of them has `[telemetry]`, with
a sample each second. Both are measured over the same seconds, with the process of the NVML library, so the difference
includes the work of the simulated library and of the ledger that each sample reads. The hosts are a DGX H100 with

  whole devices   a claim for each of its 8 GPUs and 10 NICs
  MIG devices     64 claims: 56 MIG devices that are created for them, and 8 NICs

A missed target is never a failure: the machine may be busy.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from process_memory import family, pages_once_mib, rollup
from results import GROWTH_NOISE_MIB, Measure, Target, measure, this_machine
from results_table import publish

from agent import PROFILE, start, stop
from dra_agent.standalone.protocol import Apply, Client, Get
from dra_agent.telemetry.control import CurrentValues, query
from dra_simulate import build

INTERVAL_S = 1
"""Of telemetry in the agent that samples: the shortest one."""
TIMEOUT_S = 300.0
POLL_INTERVAL_S = 0.05
MAX_DEVICE_MS = 1.0
"""The target for each device that a sample reads."""
MORE_MEMORY = Target("value", "at most", 4)
DRIVER = "dra-agent.internal"
PARTITIONS = '[[inventory.partition]]\nmode = "mig"\nwhen = \'device.attributes["dra-agent.internal"].type == "gpu"\'\n'
CPU_CLOCK = 2
"""CPUCLOCK_SCHED: nanoseconds that a process and its ended threads have run (Linux, include/linux/posix-timers.h)."""

Json = dict[str, Any]


class Kind(NamedTuple):
    """The claims of one host: how many of each type of device."""

    title: str
    config: str
    claims: dict[str, int]
    quick_claims: dict[str, int]


KINDS = (
    Kind("whole devices", "", {"gpu": 8, "nic": 10}, {"gpu": 1, "nic": 1}),
    Kind("MIG devices", PARTITIONS, {"mig": 56, "nic": 8}, {"mig": 1, "nic": 1}),
)
SELECTORS = {"mig": f'device.attributes["{DRIVER}"].profile == "1g.10gb"'}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="(default: 10)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round (default: 5)")
    parser.add_argument("--quick", action="store_true", help="few claims, one short round: for the test of this script")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where the results are written (target/bench)")
    args = parser.parse_args()
    rounds, seconds = (1, 2.0 * INTERVAL_S) if args.quick else (args.rounds, args.seconds)
    machine, measures = this_machine(), list[Measure]()
    for kind in KINDS:
        claims = kind.quick_claims if args.quick else kind.claims
        measures += measure_kind(kind, claims, rounds, seconds)
    publish("sampling", measures, machine, directory=args.results)


def measure_kind(kind: Kind, claims: dict[str, int], rounds: int, seconds: float) -> list[Measure]:
    """Measure one pair of agents."""
    telemetry = f"[telemetry]\ninterval = {INTERVAL_S}\n"
    with running(kind.config + telemetry, claims) as (sampling, state), running(kind.config, claims) as (other, _):
        devices = len(wait_for_values(state, sum(claims.values())).devices)
        on, off = list[float](), list[float]()
        for _ in range(rounds):
            for times, one in zip((on, off), cpu_seconds([sampling.pid, other.pid], seconds), strict=True):
                times.append(one / seconds * 1000)
        with_samples, without = (pages_once_mib(family(agent.pid)) for agent in (sampling, other))
        private = [sum(rollup(pid)["Anonymous"] for pid in family(agent.pid)) for agent in (sampling, other)]
    return [
        measure(f"{kind.title}: CPU time per second", "ms", on, compared_with="telemetry off", reference=off),
        measure(
            f"{kind.title}: CPU time of a sample of {devices} devices",
            "ms",
            [(one - another) * INTERVAL_S for one, another in zip(on, off, strict=True)],
            target=Target("value", "at most", devices * MAX_DEVICE_MS),
        ),
        measure(
            f"{kind.title}: agent and NVML process, pages counted once",
            "MiB",
            [with_samples],
            compared_with="telemetry off",
            reference=[without],
        ),
        measure(
            f"{kind.title}: additional memory",
            "MiB",
            [with_samples - without],
            target=MORE_MEMORY,
            noise=GROWTH_NOISE_MIB,
        ),
        measure(f"{kind.title}: private", "MiB", private[:1], compared_with="telemetry off", reference=private[1:]),
    ]


def cpu_seconds(agents: list[int], seconds: float) -> list[float]:
    """Return the CPU time of each agent with its children over the same time."""

    def now() -> list[dict[int, float]]:
        return [{pid: time.clock_gettime((~pid << 3) | CPU_CLOCK) for pid in family(agent)} for agent in agents]

    before = now()
    time.sleep(seconds)
    return [
        sum(total - earlier.get(pid, 0.0) for pid, total in later.items())
        for earlier, later in zip(before, now(), strict=True)
    ]


def wait_for_values(state: Path, claims: int) -> CurrentValues:
    """Return the first values in which each claim has some."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        values = query(state)
        known = {one.uid for one in values.claims if one.values != type(one.values)()}
        if len(known) == claims:
            return values
        assert time.monotonic() < end, f"{len(known)} of {claims} claims have values: {values.failures}"
        time.sleep(POLL_INTERVAL_S)


@contextmanager
def running(config: str, claims: dict[str, int]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run an agent with prepared claims; yield it and its state directory."""
    with tempfile.TemporaryDirectory(prefix="dra-bench-") as directory:
        state = Path(directory)
        build(PROFILE, state / "simulated" / PROFILE)
        (state / "agent.toml").write_text(config)
        agent, _ = start(state, "--config", str(state / "agent.toml"))
        try:
            with Client(state / "agent.sock") as client:
                prepare(client, claims)
            yield agent, state
        finally:
            stop(agent)


def prepare(client: Client, claims: dict[str, int]) -> None:
    """Apply claims for devices of these types, and wait until all are prepared."""
    names = [(kind, f"{kind}-{number}") for kind, count in claims.items() for number in range(count)]
    client.call(Apply([*map(device_class, claims), *(claim(kind, name) for kind, name in names)]), timeout_s=TIMEOUT_S)
    for _, name in names:
        view = client.call(Get("default", name, TIMEOUT_S))
        assert view["phase"] == "Prepared", view["message"]


def device_class(kind: str) -> Json:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
    if kind in SELECTORS:
        expression += f" && {SELECTORS[kind]}"
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": kind}}
    return {**meta, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def claim(kind: str, name: str) -> Json:
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**meta, "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": kind}}]}}}


if __name__ == "__main__":
    main()

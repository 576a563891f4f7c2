"""Measures the notice in the container: how soon it can be read, and the work that it saves over SIGTERM alone.

Part 1, a real agent without Kubernetes: the time from a metadata service's announcement until the notice file of a
prepared claim has the phase `notice`. GCP answers a request that waits for the change; AWS is polled once per second.

Part 2, jobs that lose work if they end: each checkpoints every 10 minutes, and a spot notice of 120 s arrives at a
random time. All times are divided by `--scale`. The jobs of one round run at the same time:
  default   dies at SIGTERM, as a program without a handler
  sigterm   starts a checkpoint at SIGTERM, and is killed after the default grace period of 30 s
  file      starts a checkpoint when the file has the notice; its pod is deleted at the end of the notice
The pods of the first two are deleted at the notice, as by an eviction. The lost work of a job are its steps after its
last complete checkpoint, in seconds before scaling. It prints results, which are never failures.

    .venv/bin/python benchmarks/notice_file.py
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from results import Measure, Target, measure, this_machine
from results_table import publish

from dra_agent.reclaim.control import Cancel, Start, send_request

ROOT = Path(__file__).resolve().parent.parent
CLASS = ROOT / "examples/notice/class.yaml"
CLOUDS = {"gcp": ("GCP, a request that waits", 100.0), "aws": ("AWS, a poll per second", 1500.0)}
"""Their names, and the limit of the p99 in ms."""
TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.002
CHECKPOINT_INTERVAL_S, NOTICE_S, GRACE_S = 600.0, 120.0, 30.0
"""Of part 2, before scaling: the grace period is Kubernetes' default, the notice that of AWS."""
CHECKPOINTS_S = (10.0, 60.0)
"""Durations of a checkpoint, shorter and longer than the default grace period."""
JOBS = ("default", "sigterm", "file")
JOB = """
import json, os, signal, sys, time
kind, notice, out, interval, duration, step = sys.argv[1], sys.argv[2], sys.argv[3], *map(float, sys.argv[4:])
asked = False
def ask(*_):
    global asked
    asked = True
if kind == "sigterm":
    signal.signal(signal.SIGTERM, ask)
done = saved = 0.0
def report():
    with open(out + ".new", "w") as file:
        json.dump([done, saved], file)
    os.rename(out + ".new", out)
def save():
    global saved
    at, end = done, time.monotonic() + duration
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)
    saved = at
    report()
report()
next_save = interval
while True:
    time.sleep(step)
    done += step
    report()
    if kind == "file" and json.load(open(notice))["phase"] == "notice":
        asked = True
    if asked:
        save()
        sys.exit()
    if done >= next_save:
        save()
        next_save += interval
"""


class Agent:
    """`dra-agent run` without Kubernetes on a simulated host, with one prepared claim."""

    def __init__(self, folder: Path, config: str) -> None:
        folder.mkdir()
        self.state = folder / "s"
        (folder / "config.toml").write_text(config)
        program = [sys.executable, "-m", "dra_agent"]
        command = [*program, "run", "--standalone", "--simulate", "vm-1gpu", "--config", str(folder / "config.toml")]
        command += ["--state-dir", str(self.state), "--cdi-dir", str(folder / "cdi"), "--node-name", "n"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        apply = [*program, "claim", "apply", "-f", str(CLASS), "--wait-for-agent", "60", "--state-dir", str(self.state)]
        subprocess.run(apply, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait(lambda: list(self.state.glob("notices/*/notice.json")))
        (self.file,) = self.state.glob("notices/*/notice.json")

    def phase(self) -> str:
        return str(json.loads(self.file.read_text())["phase"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def wait(condition: Callable[[], object]) -> None:
    """Wait until the condition is true."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"nothing happened within {TIMEOUT_S:.0f} s")
        time.sleep(POLL_INTERVAL_S)


class Metadata:
    """The metadata service of one cloud, in a separate process."""

    def __init__(self, cloud: str) -> None:
        command = [sys.executable, "-P", "-m", "reclaim.metadata", cloud]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()

    def set(self, values: dict[str, Any]) -> float:
        """Change what the service announces; returns the Unix time of the change."""
        body = json.dumps({"set": values}).encode()
        with urllib.request.urlopen(f"{self.endpoint}/control", body, timeout=TIMEOUT_S) as response:
            return float(json.load(response)["t0"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def announcement(cloud: str, active: bool) -> dict[str, Any]:
    """Return the state of a metadata service with or without a notice."""
    if cloud == "gcp":
        return {"maintenance": "TERMINATE_ON_HOST_MAINTENANCE" if active else "NONE"}
    at = (datetime.now(UTC) + timedelta(seconds=NOTICE_S)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"spot": {"action": "terminate", "time": at} if active else None}


def measure_delays(folder: Path, rounds: int) -> Iterator[Measure]:
    """Part 1."""
    for cloud, (name, limit_ms) in CLOUDS.items():
        delays: list[float] = []
        with closing(Metadata(cloud)) as service:
            config = f'[reclaim]\ncloud = "{cloud}"\nendpoint = "{service.endpoint}"\n'
            with closing(Agent(folder / cloud, config)) as agent:
                for _ in range(rounds):
                    # The source has seen that there is no notice, and polls or waits again.
                    time.sleep(random.uniform(2.2, 3.2))
                    start = service.set(announcement(cloud, True))
                    wait(lambda agent=agent: agent.phase() == "notice")  # type: ignore[misc]
                    delays.append((time.time() - start) * 1e3)
                    # Not by the source, which cannot withdraw a spot notice; and before it ends there, so that the
                    # next one is new.
                    send_request(agent.state, Cancel(everything=True))
                    service.set(announcement(cloud, False))
        yield measure(f"{name}: p50", "ms", delays)
        yield measure(f"{name}: p99", "ms", delays, at=0.99, target=Target("value", "at most", limit_ms))


def run_jobs(agent: Agent, folder: Path, duration_s: float, scale: float) -> dict[str, float]:
    """Return the lost work of each job in one round, in seconds before scaling."""
    settings = [str(seconds / scale) for seconds in (CHECKPOINT_INTERVAL_S, duration_s, 1.0)]
    outputs = {kind: folder / f"{kind}.json" for kind in JOBS}
    for output in outputs.values():
        output.unlink(missing_ok=True)
    jobs = {
        kind: subprocess.Popen([sys.executable, "-S", "-c", JOB, kind, str(agent.file), str(output), *settings])
        for kind, output in outputs.items()
    }
    try:
        wait(lambda: all(output.exists() for output in outputs.values()))
        time.sleep(random.uniform(1.0, 2.0) * CHECKPOINT_INTERVAL_S / scale)
        send_request(agent.state, Start("notice", NOTICE_S / scale, "a benchmark"))
        for kind in ("default", "sigterm"):
            jobs[kind].terminate()
        time.sleep(GRACE_S / scale)
        for kind in ("default", "sigterm"):
            jobs[kind].kill()
        try:
            jobs["file"].wait((NOTICE_S - GRACE_S) / scale)
        except subprocess.TimeoutExpired:
            jobs["file"].kill()
    finally:
        for job in jobs.values():
            job.kill()
            job.wait()
        send_request(agent.state, Cancel())
    work = {kind: json.loads(output.read_text()) for kind, output in outputs.items()}
    return {kind: (done - saved) * scale for kind, (done, saved) in work.items()}


def measure_lost_work(folder: Path, rounds: int, scale: float) -> Iterator[Measure]:
    """Part 2."""
    with closing(Agent(folder / "operator", "")) as agent:
        for duration_s in CHECKPOINTS_S:
            lost = [run_jobs(agent, folder, duration_s, scale) for _ in range(rounds)]
            for kind in ("default", "sigterm"):
                yield measure(
                    f"lost work, a checkpoint takes {duration_s:.0f} s: file / {kind}",
                    "s",
                    [one["file"] for one in lost],
                    compared_with=kind,
                    reference=[one[kind] for one in lost],
                )


def main() -> None:
    """Measure and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="of part 1, for each cloud; 0 skips it")
    parser.add_argument("--jobs", type=int, default=10, help="rounds of part 2, for each duration; 0 skips it")
    parser.add_argument("--scale", type=float, default=100.0, help="of the times of part 2")
    args = parser.parse_args()
    machine = this_machine()
    os.environ.pop("DRA_AGENT_CONFIG", None)
    with tempfile.TemporaryDirectory(prefix="dra") as temporary:
        folder = Path(temporary)
        measures = list(measure_delays(folder, args.rounds)) if args.rounds else []
        if args.jobs:
            measures += measure_lost_work(folder, args.jobs, args.scale)
    publish("notice_file", measures, machine)


if __name__ == "__main__":
    main()

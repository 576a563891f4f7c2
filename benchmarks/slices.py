"""Measures partitions of GPUs on a real API server: published data, scheduling time, and prepare time.

The agent publishes the eight GPUs of the simulated DGX H100 in MIG partitions. 56 pods, each with a claim for one
1g.10gb, are scheduled by a real kube-scheduler; the probe then acts as the kubelet for the allocated claims, with one
claim per call. At the end, every call of the simulated NVML for one GPU takes a second, and a claim of that GPU is
prepared repeatedly while claims of the other GPUs are measured. Resident memory is recorded after every step, and over
many pairs of prepare and unprepare. Slow results do not cause a failure.

Requires Go and openssl, and uses etcd, kube-apiserver and kube-scheduler of the test cluster (tests/cluster).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drivers import AGENT, HERE, NAMES, PROFILE, STEPS, binaries
from drivers_claims import GROUP, Claim, make_namespace, make_node, published
from drivers_contenders import PAGES_ONCE, Contender, Probe
from drivers_plane import ControlPlane
from process_memory import rollup
from results import Measure, Target, measure, this_machine
from results_table import publish
from run_directory import run_directory
from slices_scheduler import allocate, allocated, make_class, make_pods, make_ready, scheduling, stop

from dra_simulate import inject

DRIVER = "dra-agent.internal"
NODE = "node-of-slices"
GPUS, EACH = 8, 7
HOUSEKEEPING_PERIOD_S = 65.0
"""Seconds within which the agent's periodic cleanup runs, which returns freed memory to the system."""
HELD_PHASE = "all claims held, after housekeeping"
MEMORY_TARGET = Target("value", "at most", 55)
CONFIG = f"""\
[[inventory.partition]]
when = 'device.attributes["{DRIVER}"].vendor == "nvidia"'
mode = "mig"
"""
CLASS = (
    f'device.driver == "{DRIVER}" && has(device.attributes["{DRIVER}"].profile)'
    f' && device.attributes["{DRIVER}"].profile == "1g.10gb"'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, help="directory of the control plane (default: built once)")
    parser.add_argument("--agent", type=Path, default=AGENT, help="the command to measure")
    parser.add_argument("--dir", type=Path, default=Path(), help="a directory on the file system to measure")
    parser.add_argument("--rounds", type=int, default=5, help="number of times that each claim is prepared")
    parser.add_argument("--pairs", type=int, default=10_000, help="prepare and unprepare pairs to measure the growth")
    args = parser.parse_args()
    with (
        run_directory(args.dir) as directory,
        running(args, Path(directory)) as it,
    ):
        machine = this_machine()
        it.publishing()
        claims = it.scheduling()
        it.preparing(claims, args.rounds)
        it.during_a_slow_call(claims, args.rounds)
        it.holding(claims)
        it.growing(claims, args.pairs)
        publish("slices", it.measures, machine)
        print(f"load {os.getloadavg()[0]:.1f} at the end")


class Slices:
    """The agent on one control plane with a scheduler."""

    def __init__(self, folder: Path, programs: Path, plane: ControlPlane, probe: Probe, agent: Contender) -> None:
        self.folder = folder
        self.programs = programs
        self.plane = plane
        self.probe = probe
        self.agent = agent
        self.root = agent.folder / "state/simulated" / PROFILE
        self.measures: list[Measure] = []
        self.resident: list[tuple[str, float, float, float, float]] = []
        """Steps, each with MiB: resident, anonymous, resident in the library's process, and of both, pages once."""

    def publishing(self) -> None:
        self.agent.start(self.probe)  # builds the simulated host, and compiles byte code
        self.agent.stop(self.probe)
        took = self.agent.start(self.probe)
        self.note("registered with the kubelet")
        deadline = time.monotonic() + 60
        # The slices of a pool exist before those of the next pool.
        while len(pools := {pool for pool, _ in published(self.plane, DRIVER)}) < 2:
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {pools} are published; see {self.agent.folder / 'log'}")
            time.sleep(0.1)
        time.sleep(3)
        self.note("published")
        items = self.plane.ask("GET", f"{GROUP}/resourceslices")["items"]
        gpus = [one for one in items if one["spec"]["pool"]["name"].endswith("/gpu")]
        counters = sum(len(one["spec"].get("sharedCounters", ())) for one in gpus)
        devices = sum(len(one["spec"].get("devices", ())) for one in gpus)
        sizes = [len(json.dumps(one["spec"], separators=(",", ":"))) for one in gpus]
        print(f"{devices} devices and {counters} counter sets of {GPUS} GPUs in {len(gpus)} ResourceSlices")
        self.add("start to registered", "ms", [took * 1000])
        self.add("specs as JSON, sum", "bytes", [sum(sizes)])
        self.add("specs as JSON, largest", "bytes", [max(sizes)])

    def scheduling(self) -> dict[str, list[Claim]]:
        make_ready(self.plane, NODE)
        make_class(self.plane, "one-g", CLASS)
        count = GPUS * EACH
        with scheduling(self.programs, self.plane, self.folder / "scheduler") as process:
            make_pods(self.plane, "first", 1, "one-g", NODE)
            allocate(self.plane, process, 1)  # it has its caches
            stop(process)
            make_pods(self.plane, "slice", count - 1, "one-g", NODE)
            took = allocate(self.plane, process, count)
        self.note("slices allocated by the scheduler")
        claims = allocated(self.plane)
        by_gpu = [sum(name.startswith(gpu) for name in claims) for gpu in sorted({name[:16] for name in claims})]
        self.add(f"allocation of {count - 1} partitions to as many pods, mean", "ms", [took / (count - 1) * 1000])
        print(f"devices: {len(claims)} different ones, by GPU {by_gpu}")
        return claims

    def preparing(self, claims: dict[str, list[Claim]], rounds: int) -> None:
        everything = [claim for found in claims.values() for claim in found]
        self.probe.calls(DRIVER, everything[:1], STEPS)
        self.note("one claim prepared and unprepared")
        took = self.probe.calls(DRIVER, everything, STEPS, rounds)
        self.add_calls("all GPUs", took)
        self.note("every claim prepared and unprepared by turns")

    def during_a_slow_call(self, claims: dict[str, list[Claim]], rounds: int) -> None:
        first = min(name[:16] for name in claims)
        slow = [claim for name, found in claims.items() if name.startswith(first) for claim in found][:1]
        others = [claim for name, found in claims.items() if not name.startswith(first) for claim in found]
        quiet = self.probe.calls(DRIVER, others, STEPS, rounds)
        address = first.removeprefix("gpu-").replace("-", ":", 2).replace("-", ".")
        inject.delay(self.root, None, 1000, address)
        other_probe = Probe(self.programs / "probe")
        with other_probe.registering(DRIVER, self.agent.registry) as registered:
            registered()
        over = threading.Event()
        slow_calls: list[float] = []

        def ask() -> None:
            while not over.is_set():
                began = time.monotonic()
                try:
                    other_probe.calls(DRIVER, slow, ["prepare", "unprepare"])
                except RuntimeError as error:
                    print(f"the slow GPU's claim: {error}")
                slow_calls.append(time.monotonic() - began)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(1)
        took = self.probe.calls(DRIVER, others, STEPS, rounds)
        over.set()
        inject.clear(self.root)
        asking.join()
        other_probe.close()
        self.add_calls("other GPUs while one is slow", took, quiet)
        if slow_calls:
            self.add("prepare and unprepare on the slow GPU", "s", slow_calls)

    def holding(self, claims: dict[str, list[Claim]]) -> None:
        everything = [claim for found in claims.values() for claim in found]
        self.note("after a slow GPU")
        self.probe.calls(DRIVER, everything, ["prepare"])
        self.note(f"{len(everything)} claims held")
        time.sleep(HOUSEKEEPING_PERIOD_S)
        self.note(HELD_PHASE)
        self.probe.calls(DRIVER, everything, ["unprepare"])

    def growing(self, claims: dict[str, list[Claim]], pairs: int) -> None:
        everything = [claim for found in claims.values() for claim in found]
        made, part = 0, max(1, pairs // len(everything) // 5)
        began = time.monotonic()
        while made < pairs:
            self.probe.calls(DRIVER, everything, ["prepare", "unprepare"], part)
            made += part * len(everything)
            self.note(f"{made} pairs of prepare and unprepare")
        each = (time.monotonic() - began) / max(1, made) * 1000
        self.add("prepare and unprepare, mean of the pairs", "ms", [each])
        for phase, *sizes, once in self.resident:
            for kind, size in zip(("agent", "private", "library"), sizes, strict=True):
                self.add(f"resident, {kind}, {phase}", "MiB", [size])
            target = MEMORY_TARGET if phase == HELD_PHASE else None
            self.measures.append(measure(f"pages counted once, {phase}", "MiB", [once], target=target))

    def add(self, name: str, unit: str, samples: list[float], *, at: float = 0.5) -> None:
        self.measures.append(measure(name, unit, samples, at=at))

    def add_calls(self, title: str, took: list[list[int]], quiet: list[list[int]] | None = None) -> None:
        """Add the times in ns of each step; `quiet` are those of the same calls without the disturbance."""
        for name, times, others in zip(NAMES, took, quiet or [[]] * len(took), strict=True):
            for share in (0.5, 0.99):
                label = f"{name}, {title}, p{share * 100:.0f}"
                ours, theirs = ([one / 1e6 for one in some] for some in (times, others))
                compared = "no slow GPU" if others else ""
                self.measures.append(measure(label, "ms", ours, at=share, compared_with=compared, reference=theirs))

    def note(self, phase: str) -> None:
        assert self.agent.process is not None
        pid = self.agent.process.pid
        own, together = rollup(pid), self.agent.memory()
        library = together["Rss"] - own["Rss"]
        self.resident.append((phase, own["Rss"], own["Anonymous"], library, together[PAGES_ONCE]))


@contextmanager
def running(args: argparse.Namespace, folder: Path) -> Iterator[Slices]:
    """Start the control plane, the probe and, later, the agent; stop all of them in any case."""
    programs = args.binaries or binaries()
    tools = folder / "go"
    subprocess.run(
        ["go", "build", "-ldflags=-s -w", "-o", f"{tools}/", "./..."],
        cwd=HERE / "godriver",
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    (tools / "kube-scheduler").symlink_to(programs / "kube-scheduler")
    config = folder / "agent.toml"
    config.write_text(CONFIG)
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "byte-code")}
    with ExitStack() as stack:
        plane = ControlPlane(programs, folder / "control-plane", ["dra-agent"])
        stack.callback(plane.close)
        probe = Probe(tools / "probe")
        stack.callback(probe.close)
        program = [str(args.agent), "run", f"--simulate={PROFILE}", f"--config={config}"]
        agent = Contender("slices", program, DRIVER, NODE, folder / "agent", plane.kubeconfig("dra-agent"), compiled)
        stack.callback(agent.kill)
        make_namespace(plane)
        account = {"metadata": {"name": "default"}}
        plane.ask("POST", "/api/v1/namespaces/bench/serviceaccounts", account)
        make_node(plane, NODE)
        yield Slices(folder, tools, plane, probe, agent)
        agent.stop(probe)


if __name__ == "__main__":
    main()

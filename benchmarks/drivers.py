"""Compares the agent with a minimal Go driver on the upstream helper, on one API server in one run.

A probe acts as the kubelet for both: it registers them and calls them on their own sockets, in alternating batches.
Claims are allocated in advance by writing their status. Latencies are those of the caller, with one claim per call, and
the claim is read from a real kube-apiserver. Prints each result with its target; a missed target is not a failure.

Requires Go and openssl, and uses etcd and kube-apiserver of the test cluster (tests/cluster).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drivers_claims import Claim, make_claims, make_namespace, make_node, published
from drivers_contenders import PAGES_ONCE, Contender, Probe
from drivers_plane import ControlPlane
from results import GROWTH_NOISE_MIB, Measure, Target, measure, this_machine
from results_table import publish
from run_directory import run_directory

from dra_simulate import build

HERE = Path(__file__).resolve().parent
AGENT = Path(sys.executable).with_name("dra-agent")
PROFILE = "dgx-h100"
DEVICES = 18
HELD = 64
BATCH = 20
STEPS = ("prepare", "prepare", "unprepare")
NAMES = ("prepare", "prepare again", "unprepare")
TARGETS = (Target("ratio", "at most", 1), Target("ratio", "at most", 1.2), Target("ratio", "at most", 1))
GROWTH = Target("value", "at most", 1)
"""MiB, with any number of pairs."""
IDLE_TARGETS = (Target("value", "at most", 10), Target("value", "at most", 0))
"""Reads and writes per hour."""
READS = ("get", "list", "watch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, help="directory of etcd and kube-apiserver (default: built once)")
    parser.add_argument("--agent", type=Path, default=AGENT, help="the command to measure")
    parser.add_argument("--dir", type=Path, default=Path(), help="a directory on the file system to measure")
    parser.add_argument("--claims", type=int, default=400, help="claims per driver and measurement")
    parser.add_argument("--pairs", type=int, default=10_000, help="prepare and unprepare pairs to measure the growth")
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--idle", type=float, default=600, help="seconds in which idle requests are counted")
    parser.add_argument("--quick", action="store_true", help="small numbers, to test the benchmark itself")
    args = parser.parse_args()
    if args.quick:
        args.claims, args.pairs, args.starts, args.idle = 20, 100, 1, 10
    with (
        run_directory(args.dir) as directory,
        running(args, Path(directory)) as it,
    ):
        it.measure(args)


class Comparison:
    """Both drivers on one control plane, with separate claims."""

    def __init__(self, plane: ControlPlane, probe: Probe, ours: Contender, theirs: Contender) -> None:
        self.plane = plane
        self.probe = probe
        self.ours = ours
        self.theirs = theirs
        self.both = (ours, theirs)
        self.measures: list[Measure] = []

    def measure(self, args: argparse.Namespace) -> None:
        machine = this_machine()
        self.starts(args.starts)
        claims = {one.name: self.claims(one, "measured", args.claims) for one in self.both}
        self.latencies("no other claim held", claims)
        for one in self.both:
            self.probe.calls(one.driver, self.claims(one, "held", HELD, admin=True), ["prepare"])
        time.sleep(5)
        self.memory(f"idle, {HELD} claims held", Target("value", "at most", 48))
        self.latencies(f"{HELD} other claims held", claims)
        self.growth({name: made[:DEVICES] for name, made in claims.items()}, args.pairs)
        self.idle(args.idle)
        publish("drivers", self.measures, machine)
        print(f"load {os.getloadavg()[0]:.1f} at the end")

    def claims(self, one: Contender, start: str, count: int, *, admin: bool = False) -> list[Claim]:
        devices = self.devices(one)
        name = f"{one.name}-{start}"
        return make_claims(self.plane, name, count, driver=one.driver, node=one.node, devices=devices, admin=admin)

    def devices(self, one: Contender) -> list[tuple[str, str]]:
        """Wait until the driver has published all its devices."""
        deadline = time.monotonic() + 30
        while len(found := published(self.plane, one.driver)) < DEVICES:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{one.name} published {len(found)} of {DEVICES} devices; see {one.folder / 'log'}")
            time.sleep(0.1)
        return found

    def starts(self, count: int) -> None:
        took: dict[str, list[float]] = {one.name: [] for one in self.both}
        for number in range(count + 1):
            for one in self.turns(number):
                took[one.name].append(one.start(self.probe) * 1000)
                self.devices(one)
            if number < count:
                for one in self.both:
                    one.stop(self.probe)
        took = {name: times[1:] for name, times in took.items()}  # the first start fills caches
        target = Target("value", "at most", 500)
        self.add("start to registered", "ms", took[self.ours.name], took[self.theirs.name], target=target)

    def latencies(self, title: str, claims: dict[str, list[Claim]]) -> None:
        took: dict[str, list[list[int]]] = {name: [[] for _ in STEPS] for name in claims}
        for one in self.both:
            self.probe.calls(one.driver, claims[one.name][:BATCH], STEPS)
        for number, first in enumerate(range(0, len(claims[self.ours.name]), BATCH)):
            for one in self.turns(number):
                batch = claims[one.name][first : first + BATCH]
                for all_times, times in zip(took[one.name], self.probe.calls(one.driver, batch, STEPS), strict=True):
                    all_times += times
        for step, name in enumerate(NAMES):
            ours, theirs = ([time / 1e6 for time in took[one.name][step]] for one in self.both)
            for share in (0.5, 0.99):
                self.add(f"{name}, {title}, p{share * 100:.0f}", "ms", ours, theirs, at=share, target=TARGETS[step])

    def memory(self, title: str, target: Target | None = None) -> dict[str, float]:
        ours, theirs = (one.memory() for one in self.both)
        for field, name, limit in (
            (PAGES_ONCE, "pages counted once", target),
            ("Rss", "resident", None),
            ("Pss", "proportional", None),
            ("Anonymous", "private", None),
        ):
            self.add(f"{name}, {title}", "MiB", [ours[field]], [theirs[field]], target=limit)
        return {one.name: kinds["Rss"] for one, kinds in zip(self.both, (ours, theirs), strict=True)}

    def growth(self, claims: dict[str, list[Claim]], pairs: int) -> None:
        before = self.memory("before the pairs")
        rounds = max(1, pairs // DEVICES)
        each = []
        for one in self.both:
            began = time.perf_counter()
            self.probe.calls(one.driver, claims[one.name], ["prepare", "unprepare"], rounds)
            each.append((time.perf_counter() - began) / (rounds * DEVICES) * 1000)
        self.add("prepare and unprepare, mean of the pairs", "ms", each[:1], each[1:])
        after = self.memory("after the pairs")
        ours, theirs = ([after[one.name] - before[one.name]] for one in self.both)
        self.add(f"growth over {rounds * DEVICES} pairs", "MiB", ours, theirs, target=GROWTH, noise=GROWTH_NOISE_MIB)

    def idle(self, seconds: float) -> None:
        time.sleep(min(seconds, 60))  # the requests that the calls above caused are complete
        before = {one.name: self.plane.requests(one.name) for one in self.both}
        time.sleep(seconds)
        hourly: dict[str, list[float]] = {"API reads when idle": [], "API writes when idle": []}
        for one in self.both:
            asked = self.plane.requests(one.name) - before[one.name]
            reads = sum(count for verb, count in asked.items() if verb in READS)
            for counts, count in zip(hourly.values(), (reads, sum(asked.values()) - reads), strict=True):
                counts.append(count * 3600 / seconds)
        for (name, (ours, theirs)), target in zip(hourly.items(), IDLE_TARGETS, strict=True):
            self.add(name, "1/h", [ours], [theirs], target=target)

    def add(
        self,
        name: str,
        unit: str,
        ours: list[float],
        theirs: list[float],
        *,
        at: float = 0.5,
        target: Target | None = None,
        noise: float = 0.0,
    ) -> None:
        compared = self.theirs.name
        self.measures.append(
            measure(name, unit, ours, at=at, compared_with=compared, reference=theirs, target=target, noise=noise)
        )

    def turns(self, number: int) -> tuple[Contender, ...]:
        return self.both if number % 2 == 0 else self.both[::-1]


@contextmanager
def running(args: argparse.Namespace, folder: Path) -> Iterator[Comparison]:
    """Build the Go programs, start the control plane and the probe; stop all of them in any case."""
    for name in ("go", "openssl", "unshare"):
        if shutil.which(name) is None:
            sys.exit(f"no {name}: needed to build the Go driver, run an API server and show the agent a host")
    if os.geteuid() != 0:
        sys.exit("not root: the agent gets a simulated host as its /sys, in a new mount namespace")
    control_plane = args.binaries or binaries()
    programs = folder / "go"
    subprocess.run(
        ["go", "build", "-ldflags=-s -w", "-o", f"{programs}/", "./..."],
        cwd=HERE / "godriver",
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    host = build(PROFILE, folder / PROFILE)
    with ExitStack() as stack:
        plane = ControlPlane(control_plane, folder / "control-plane", ["dra-agent", "go-driver"])
        stack.callback(plane.close)
        probe = Probe(programs / "probe")
        stack.callback(probe.close)
        # Compile byte code once, as pip does at installation; compilation at every start costs time and 15 MiB.
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "byte-code")}
        # Read the tree like a real host: building a simulated one at start needs 2 MiB that no real agent needs.
        routes = folder / "routes"
        routes.mkdir()
        (routes / "route").write_text("Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n")
        roots = {"DRA_AGENT_DEV_ROOT": str(host.dev), "DRA_AGENT_NET_ROOT": str(routes)}
        agent = {**roots, "LD_LIBRARY_PATH": str(folder / PROFILE / "lib"), **compiled}
        theirs = [str(programs / "godriver"), f"--devices={DEVICES}"]
        contenders = [
            Contender(name, program, driver, f"node-of-{name}", folder / name, plane.kubeconfig(name), variables)
            for name, program, driver, variables in (
                ("dra-agent", [*seeing(host.sysfs), str(args.agent), "run"], "dra-agent.internal", agent),
                ("go-driver", theirs, "go.bench.internal", {}),
            )
        ]
        for one in contenders:
            stack.callback(one.kill)
        make_namespace(plane)
        for one in contenders:
            make_node(plane, one.node)
        yield Comparison(plane, probe, contenders[0], contenders[1])
        for one in contenders:
            one.stop(probe)


def seeing(sysfs: Path) -> list[str]:
    """Return a command prefix that mounts a tree as /sys: as on a real host, the agent relies on the kernel's events.

    With --sysfs-root, the agent would poll every device each second, which is not the load of a real host.
    """
    return ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /sys && exec "$@"', str(sysfs)]


def binaries() -> Path:
    """Return the directory of the control plane's programs, which are built once."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from cluster.kube.build import programs

    return programs()


if __name__ == "__main__":
    main()

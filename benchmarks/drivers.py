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
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drivers_claims import Claim, make_claims, make_namespace, make_node, published
from drivers_contenders import Contender, Probe
from drivers_plane import ControlPlane

from dra_agent.simulate import build

HERE = Path(__file__).resolve().parent
AGENT = Path(sys.executable).with_name("dra-agent")
PROFILE = "dgx-h100"
DEVICES = 18
HELD = 64
BATCH = 20
STEPS = ("prepare", "prepare", "unprepare")
NAMES = ("prepare", "prepare again", "unprepare")
TARGETS = ("at most 1.00", "at most 0.33", "none")


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
        tempfile.TemporaryDirectory(dir=args.dir.resolve(), prefix=".bench-") as directory,
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

    def measure(self, args: argparse.Namespace) -> None:
        print(f"simulated {PROFILE}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the start")
        self.starts(args.starts)
        claims = {one.name: self.claims(one, "measured", args.claims) for one in self.both}
        self.latencies("no other claim held", claims)
        for one in self.both:
            self.probe.calls(one.driver, self.claims(one, "held", HELD, admin=True), ["prepare"])
        time.sleep(5)
        self.memory(f"idle, {HELD} claims held", "at most 60 MiB, then 48")
        self.latencies(f"{HELD} other claims held", claims)
        self.growth({name: made[:DEVICES] for name, made in claims.items()}, args.pairs)
        self.idle(args.idle)
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
        print(f"\n{'start to registered, ms':42}{'least':>9}{'median':>9}   target")
        for name, target in ((self.ours.name, "below 500"), (self.theirs.name, "")):
            print(f"{name:42}{min(took[name]):9.0f}{statistics.median(took[name]):9.0f}   {target}")

    def latencies(self, title: str, claims: dict[str, list[Claim]]) -> None:
        took: dict[str, list[list[int]]] = {name: [[] for _ in STEPS] for name in claims}
        for one in self.both:
            self.probe.calls(one.driver, claims[one.name][:BATCH], STEPS)
        for number, first in enumerate(range(0, len(claims[self.ours.name]), BATCH)):
            for one in self.turns(number):
                batch = claims[one.name][first : first + BATCH]
                for all_times, times in zip(took[one.name], self.probe.calls(one.driver, batch, STEPS), strict=True):
                    all_times += times
        calls = len(took[self.ours.name][0])
        head = f"{title}, {calls} calls each, ms"
        print(
            f"\n{head:42}"
            + "".join(f"{name:>9}" for name in ("p50", "p99", "Go p50", "p99", "ratio", "p99"))
            + "   target"
        )
        for step, name in enumerate(NAMES):
            values = [percentile(took[one.name][step], share) / 1e6 for one in self.both for share in (0.5, 0.99)]
            values += [values[0] / values[2], values[1] / values[3]]
            print(f"{name:42}" + "".join(f"{value:9.2f}" for value in values) + f"   {TARGETS[step]}")

    def memory(self, title: str, target: str) -> dict[str, float]:
        resident = {}
        print(f"\n{f'{title}, MiB':42}{'resident':>9}{'share':>9}{'its own':>9}   target")
        for one in self.both:
            kinds = one.memory()
            resident[one.name] = kinds["Rss"]
            aim = target if one is self.ours else ""
            print(f"{one.name:42}{kinds['Rss']:9.1f}{kinds['Pss']:9.1f}{kinds['Anonymous']:9.1f}   {aim}")
        return resident

    def growth(self, claims: dict[str, list[Claim]], pairs: int) -> None:
        before = self.memory("before the pairs", "")
        rounds = max(1, pairs // DEVICES)
        for one in self.both:
            began = time.perf_counter()
            self.probe.calls(one.driver, claims[one.name], ["prepare", "unprepare"], rounds)
            each = (time.perf_counter() - began) / (rounds * DEVICES) * 1000
            print(f"{one.name}: {rounds * DEVICES} pairs of prepare and unprepare, {each:.2f} ms each")
        after = self.memory("after the pairs", "")
        for one in self.both:
            aim = "   target below 1 MiB over 100,000" if one is self.ours else ""
            print(f"{one.name + ': growth, MiB':42}{after[one.name] - before[one.name]:+9.2f}{aim}")

    def idle(self, seconds: float) -> None:
        time.sleep(min(seconds, 60))  # the requests that the calls above caused are complete
        before = {one.name: self.plane.requests(one.name) for one in self.both}
        time.sleep(seconds)
        print(f"\nAPI requests when idle, counted for {seconds:.0f} s")
        for one in self.both:
            asked = self.plane.requests(one.name) - before[one.name]
            writes = sum(count for verb, count in asked.items() if verb not in ("get", "list", "watch"))
            kinds = ", ".join(f"{count} {verb}" for verb, count in sorted(asked.items())) or "none"
            hourly = sum(asked.values()) * 3600 / seconds
            aim = "   target: 0 writes" if one is self.ours else ""
            print(f"{one.name:42}{kinds}: {hourly:.0f} an hour, {writes} of them writes{aim}")

    def turns(self, number: int) -> tuple[Contender, ...]:
        return self.both if number % 2 == 0 else self.both[::-1]


@contextmanager
def running(args: argparse.Namespace, folder: Path) -> Iterator[Comparison]:
    """Build the Go programs, start the control plane and the probe; stop all of them in any case."""
    for name in ("go", "openssl", "unshare"):
        if shutil.which(name) is None:
            sys.exit(f"no {name}: needed to build the Go driver, run an API server and show the agent a host")
    if os.geteuid() != 0:
        sys.exit("not root: the agent is shown a simulated host as its /sys, in a mount namespace of its own")
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


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


if __name__ == "__main__":
    main()

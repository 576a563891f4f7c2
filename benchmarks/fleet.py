"""Runs a fleet of agents on one real etcd and kube-apiserver, and counts their requests, bytes, watches and CPU.

Every agent is Kubernetes mode as in production (`fleet_agent.py`), with its own connections and state directory;
hundreds share this process. Devices come from simulated profiles. No kubelet, scheduler or controller runs. The fleet
starts at once, idles, sees a restart of the API server, is updated, loses a tenth of its nodes, and one GPU of each
node fails. A second part measures slices of nodes with MIG partitions. Prints each result with its target; a missed
target is not a failure. The results are in target/bench/fleet-AGENTS.json, and all counts by phase in
target/bench-fleet.json.

Uses etcd and kube-apiserver of the test cluster (tests/cluster), and openssl.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from drivers_claims import make_node
from drivers_plane import ADMIN
from fleet_counts import usage
from fleet_inventory import scan
from fleet_observer import FleetObserver
from fleet_phases import RIGHT_WITHIN_S, Fleet, Meter, Phases
from fleet_plane import API_SERVER, USER, FleetPlane
from fleet_supervisor import supervise
from fleet_table import Phase, extrapolate, save_phases, show_phase
from results import Measure, Target, measure, this_machine
from results_table import publish

from dra_agent.host import Host
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import connect

ROOT = Path(__file__).resolve().parent.parent
PHASES = ROOT / "target" / "bench-fleet.json"
PROFILES = ("dgx-h100", "vm-1gpu", "mi300x", "l40s")
"""Every fourth node has the same."""
MIG_PROFILE = "dgx-h100"
FILES_PER_AGENT = 18
"""Open files of an agent: connections, ledger, locks and sockets; in a rolling update there are two."""
MAX_START_REQUESTS = 8.0
LEAST_START_REQUESTS = 6
"""A list and a watch of the Node, of its slices, and of those without a single node; each slice is one more."""
CREATE = "create resourceslices"
MAX_IDLE_PER_HOUR = 10.0
MAX_LIST_SHARE = 0.10
MAX_RIGHT_S = 30.0
WATCH_RENEWALS_PER_HOUR = 3 * 3600 / 2700
"""Three watches that each end after 30 to 60 minutes, 45 on average (kube_client.client.WATCH_TIMEOUT_S)."""
LISTS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=200, help="agents of the fleet")
    parser.add_argument("--idle", type=float, default=60, help="seconds in which idle requests are counted")
    parser.add_argument("--mig-nodes", type=int, default=50, help="nodes of the part with MIG; 0: without it")
    parser.add_argument("--binaries", type=Path, help="directory of etcd and kube-apiserver (default: the cluster's)")
    parser.add_argument("--phases", type=Path, default=PHASES, help="file of the counts by phase")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.agents < 1 or args.mig_nodes < 0:
        sys.exit("--agents must be 1 or more, --mig-nodes 0 or more")
    binaries = args.binaries or default_binaries()
    check_programs(binaries)
    allow_files(max(args.agents, args.mig_nodes) * FILES_PER_AGENT)
    if args.folder is None:
        sys.exit(supervise(lambda folder: [sys.executable, __file__, *sys.argv[1:], "--folder", str(folder)]))
    run(args, binaries, args.folder)


def run(args: argparse.Namespace, binaries: Path, folder: Path) -> None:
    """Measure everything below a folder, and publish the results."""
    logging.basicConfig(filename=folder / "agents.log", level=logging.WARNING)
    machine = this_machine()
    phases = run_fleet(args, binaries, folder / "fleet")
    by_name = {phase.name: phase for phase in phases}
    measures, steps = measures_of(by_name), extrapolate(by_name)
    if args.mig_nodes:
        measures += run_mig(args.mig_nodes, binaries, folder / "mig", phases)
    print(f"\nextrapolated from {args.agents} agents, not measured:")
    print("\n".join(f"  {step}" for step in steps), end="\n\n")
    settings = {"agents": args.agents, "idle_s": args.idle, "mig_nodes": args.mig_nodes}
    save_phases(args.phases, settings, phases, steps)
    publish(f"fleet-{args.agents}", measures, machine)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def default_binaries() -> Path:
    """Return the directory of the test cluster's programs."""
    sys.path.append(str(ROOT / "tests"))
    from cluster.kube.build import directory

    return directory()


def check_programs(binaries: Path) -> None:
    """Exit with one message if a program is missing."""
    missing = [name for name in ("etcd", API_SERVER) if not os.access(binaries / name, os.X_OK)]
    if missing:
        sys.exit(f"no {' and no '.join(missing)} in {binaries}: build them with `make cluster-programs`")
    if shutil.which("openssl") is None:
        sys.exit("no openssl: it makes the key of the API server; install the package openssl")


def allow_files(count: int) -> None:
    """Raise the limit of open files; exit with one message if it is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = max(count, 4096)
    if hard != resource.RLIM_INFINITY:
        hard = max(hard, count)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    except (ValueError, OSError) as error:
        sys.exit(f"{count} open files are not allowed ({error}): run as root, raise `ulimit -Hn`, or lower --agents")


def run_fleet(args: argparse.Namespace, binaries: Path, folder: Path) -> list[Phase]:
    """Measure all phases."""
    hosts = [scan(profile, folder / "hosts" / profile) for profile in PROFILES]
    plane = FleetPlane(binaries, folder / "plane")
    try:
        return asyncio.run(_phases(args, plane, folder, hosts))
    finally:
        plane.close()


async def _phases(
    args: argparse.Namespace, plane: FleetPlane, folder: Path, hosts: Sequence[tuple[Host, Inventory]]
) -> list[Phase]:
    done: list[Phase] = []
    async with fleet_of(plane, folder, hosts, args.agents) as (run, meter):
        before = (usage(plane.pids[API_SERVER]).resident, plane.metrics().live)
        steps: list[Callable[[], Awaitable[Phase]]] = [run.start_storm, lambda: run.idle(args.idle)]
        for step in steps:
            done.append(await step())
            show_phase(done[-1])
        live = plane.metrics().live - before[1]
        resident = done[-1].resident[API_SERVER] - before[0]
        watches = max(1, meter.watches())
        done[-1].values |= {"resident bytes per watch": resident / watches, "live bytes per watch": live / watches}
        for step in (run.restart, run.rolling_update, run.mass_reclaim, run.health_flap):
            done.append(await step())
            show_phase(done[-1])
    return done


@asynccontextmanager
async def fleet_of(
    plane: FleetPlane, folder: Path, hosts: Sequence[tuple[Host, Inventory]], size: int
) -> AsyncIterator[tuple[Phases, Meter]]:
    """Create nodes and an observer; stop the agents in any case."""
    async with AsyncExitStack() as stack:
        observer = FleetObserver(await stack.enter_async_context(connect(plane.kubeconfig(ADMIN))))
        following = asyncio.create_task(observer.run(), name="observer")
        stack.push_async_callback(_cancel, following)
        fleet = Fleet(plane.kubeconfig(USER), folder / "nodes", hosts, size, observer)
        for node in fleet.nodes:
            await asyncio.to_thread(make_node, plane, node)
        while observer.lag_s:
            await asyncio.sleep(0.05)
        meter = await asyncio.to_thread(Meter, plane)
        stack.push_async_callback(fleet.stop)
        phases = Phases(plane, fleet, observer, meter)
        stack.push_async_callback(_cancel, asyncio.create_task(phases.watch_delay(), name="delay"))
        yield phases, meter


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def measures_of(phases: dict[str, Phase]) -> list[Measure]:
    """Return the measures with their targets."""
    start, idle, restart = phases["start storm"], phases["idle"], phases["API server restart"]
    lists, most = restart.values["lists"], restart.values["most lists in 100 ms"]
    hourly = idle.values["requests per agent and hour"]
    least = LEAST_START_REQUESTS + start.requests.get(CREATE, 0) / start.agents
    measures = [
        measure(
            "requests at start, per agent",
            "count",
            [start.per_agent],
            compared_with="the fewest for watches and slices",
            reference=[least],
            target=at_most(MAX_START_REQUESTS),
        ),
        measure("requests while idle, per agent and hour", "count", [hourly], target=at_most(MAX_IDLE_PER_HOUR)),
        measure(
            "the same with the calculated renewals of watches",
            "count",
            [hourly + WATCH_RENEWALS_PER_HOUR],
            target=at_most(MAX_IDLE_PER_HOUR),
        ),
        measure(
            "share of lists in 100 ms after an API server restart",
            "share",
            [most / max(1.0, lists)],
            compared_with="all at once",
            reference=[1.0],
            target=at_most(MAX_LIST_SHARE),
        ),
    ]
    for phase in phases.values():
        measures += [right_within(f"{phase.name}, {name}", seconds) for name, seconds in phase.right_s.items()]
        measures.append(measure(f"{phase.name}: p50 of requests", "ms", [phase.p50_ms]))
        measures.append(measure(f"{phase.name}: p99 of requests", "ms", [phase.p99_ms]))
        measures.append(measure(f"{phase.name}: CPU of the API server", "s", [phase.cpu_s[API_SERVER]]))
    update = phases["rolling update"]
    disturbed = update.values["nodes with wrong slices at any moment"]
    measures.append(measure("nodes with wrong slices in a rolling update", "count", [disturbed], target=at_most(0)))
    for phase in (update, phases["mass reclaim"], phases["health flap"]):
        measures.append(measure(f"{phase.name}: requests per agent", "count", [phase.per_agent]))
    measures += [
        measure(f"growth of the API server's memory, {name}", "KiB", [idle.values[name] / 1024])
        for name in ("resident bytes per watch", "live bytes per watch")
    ]
    return measures


def at_most(limit: float) -> Target:
    """Return the target of a value."""
    return Target("value", "at most", limit)


def right_within(event: str, seconds: float | None) -> Measure:
    """Return the measure of the time until every slice is right; the limit of the wait if that did not happen."""
    found = RIGHT_WITHIN_S if seconds is None else seconds
    return measure(f"every slice is right: {event}", "s", [found], target=at_most(MAX_RIGHT_S))


def run_mig(nodes: int, binaries: Path, folder: Path, phases: list[Phase]) -> list[Measure]:
    """Measure slices of nodes whose GPUs are published in MIG partitions."""
    host, inventory = scan(MIG_PROFILE, folder / "hosts", mig=True)
    plane = FleetPlane(binaries, folder / "plane")
    try:
        phase, stored = asyncio.run(_mig_phase(plane, folder, (host, inventory), nodes))
        phase.name = "start storm with MIG"
        phases.append(phase)
        show_phase(phase)
        lists = {version: [plane.slices(version) for _ in range(LISTS)] for version in ("", "0")}
    finally:
        plane.close()
    _, size, items = lists[""][-1]
    devices = sum(len(one["spec"].get("devices") or ()) for one in items)
    right = phase.right_s["after all agents started at once"]
    print(f"{nodes} nodes, {len(items)} slices, {devices} devices")
    right = phase.right_s["after all agents started at once"]
    return [
        right_within("start storm with MIG", right),
        measure("MIG: requests at start, per agent", "count", [phase.per_agent], target=at_most(MAX_START_REQUESTS)),
        measure("MIG: growth of etcd per node", "KiB", [stored / nodes / 1024]),
        measure("MIG: JSON of the slices of a node", "KiB", [size / nodes / 1024]),
        measure("MIG: list of all slices, consistent", "ms", [one[0] * 1000 for one in lists[""]]),
        measure("MIG: list of all slices, from the cache", "ms", [one[0] * 1000 for one in lists["0"]]),
    ]


async def _mig_phase(plane: FleetPlane, folder: Path, host: tuple[Host, Inventory], nodes: int) -> tuple[Phase, int]:
    async with fleet_of(plane, folder, [host], nodes) as (run, _):
        before = await asyncio.to_thread(plane.etcd_bytes)
        phase = await run.start_storm()
        return phase, await asyncio.to_thread(plane.etcd_bytes) - before


if __name__ == "__main__":
    main()

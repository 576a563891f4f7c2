"""Compares the evacuation of a node by the agent with `kubectl drain`, alternating on one real cluster.

T0 is when the metadata service of a node starts to announce an interruption of its host (AWS, spot interruption). The
agent has to detect this, while the drain is started at T0. 4 pods with a claim each and a grace period of 1 s run on
the node; the other node has capacity for them. There are three parts: a quiet node, a PodDisruptionBudget that allows
no disruption, and additional plain pods on the node. Prints results with ratios; slow results are not failures.

Every completed round is stored on disk. An interrupted run continues where it stopped when it is restarted with the
same settings, and --show prints the stored results.

It needs the test cluster (docs/tutorials/test-cluster.md), and tests/ in PYTHONPATH: `make bench-reclaim`.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reclaim_hosts import Host, prepare
from reclaim_results import Results
from reclaim_rounds import Round, Watches, leave
from reclaim_table import measures_of, show
from reclaim_workload import CLAIM_PODS, Workload
from results import this_machine
from results_table import publish

from cluster.kube.cluster import Cluster, running

AGENT, DRAIN = "agent", "drain"
QUIET, CROWDED, BUDGET = "quiet", "crowded", "budget"
RESULTS = Path(__file__).resolve().parent.parent / "target" / "bench-reclaim.jsonl"


class Part:
    """One part: its conditions, the number of rounds, and the time limit of each round."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name = name
        self.title, self.rounds, self.limit = {
            QUIET: (f"quiet node, {CLAIM_PODS} pods with a claim each", args.rounds, 60.0),
            BUDGET: ("the same, with a PodDisruptionBudget that allows none", args.budget_rounds, args.budget),
            CROWDED: (f"the same, with {args.plain} plain pods on the node", args.crowded_rounds, 120.0),
        }[name]

    def left(self, done: list[Round]) -> list[tuple[int, str]]:
        """Return the remaining rounds in order, with their numbers."""
        made = {who: sum(1 for one in done if one.who == who) for who in (AGENT, DRAIN)}
        turns = [(n, who) for n in range(self.rounds) for who in ((AGENT, DRAIN) if n % 2 == 0 else (DRAIN, AGENT))]
        return [(number, who) for number, who in turns if number >= made[who]]


class Bench:
    """The cluster with its workload."""

    def __init__(self, cluster: Cluster, hosts: dict[str, Host], args: argparse.Namespace, results: Results) -> None:
        self._cluster = cluster
        self._hosts = hosts
        self._args = args
        self._results = results
        self._workload = Workload(cluster)
        self._watches = Watches(cluster.api, self._workload.namespace.name)
        self._workload.create(next(iter(hosts)))
        self._until = time.monotonic() + 60 * args.minutes

    def measure(self, parts: list[Part]) -> None:
        """Run all remaining rounds."""
        for part in parts:
            if part.left(self._results.of(part.name)):
                self._enter(part.name)
                self._rounds(part)
                if part is not parts[-1]:
                    self._exit(part.name)

    def _enter(self, part: str) -> None:
        if part == CROWDED:
            began = time.monotonic()
            self._workload.add_plain(self._workload.node(), self._args.plain)
            print(f"\n{self._args.plain} plain pods run after {time.monotonic() - began:.0f} s", flush=True)
        elif part == BUDGET:
            self._workload.forbid_disruption()

    def _exit(self, part: str) -> None:
        if part == CROWDED:
            self._workload.remove_plain()
        elif part == BUDGET:
            self._workload.allow_disruption()

    def _rounds(self, part: Part) -> None:
        until = time.monotonic() + self._args.seconds
        for number, who in part.left(self._results.of(part.name)):
            if time.monotonic() > min(until, self._until):
                print(f"out of time after {number} of {part.rounds} rounds each", flush=True)
                break
            self._results.add(part.name, self._round(who, part.limit))

    def _round(self, who: str, limit: float) -> Round:
        workload = self._workload
        # Plain pods stay on their node unless a drain evicts them; pods with claims are scheduled to the same node.
        doomed = self._hosts[workload.plain_node() or workload.node()]
        workload.settled(doomed.name)
        # The random part distributes T0 between two polls of the agent.
        time.sleep(1 + random.random())
        result = leave(who, self._cluster, self._watches, doomed, workload, limit)
        if who == AGENT:
            doomed.forget()
        if self._args.verbose:
            took = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in result.took.items())
            rest = f"{result.plain_moved} plain pods deleted, load {result.load:.1f} {result.error}"
            print(f"  {who} leaves {doomed.name}: {took}; {rest}", flush=True)
        return result


@contextmanager
def hosts_of(cluster: Cluster) -> Iterator[dict[str, Host]]:
    """Run an agent on each node; stop all of them in any case."""
    prepare(cluster)
    hosts: list[Host] = []
    try:
        for node in cluster.nodes:
            hosts.append(Host(cluster, node.name))
            hosts[-1].agent.start()
        for host in hosts:
            host.agent.ready()
        yield {host.name: host for host in hosts}
    finally:
        for host in hosts:
            host.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each, in each part")
    parser.add_argument("--crowded-rounds", type=int, help="in that part (default: as --rounds)")
    parser.add_argument("--budget-rounds", type=int, help="in that part (default: as --rounds)")
    parser.add_argument("--plain", type=int, default=100, help="plain pods on the node")
    parser.add_argument(
        "--budget", type=float, default=15, help="timeout of a drain if a budget allows no eviction, in seconds"
    )
    parser.add_argument("--parts", nargs="+", default=[QUIET, BUDGET, CROWDED], choices=[QUIET, BUDGET, CROWDED])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no round of a part after this time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no round after this time")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file for the rounds")
    parser.add_argument("--restart", action="store_true", help="start with an empty file")
    parser.add_argument("--show", action="store_true", help="only print the results in the file")
    parser.add_argument("--quick", action="store_true", help="small numbers, to test the benchmark itself")
    parser.add_argument("--verbose", action="store_true", help="print every round")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.plain, args.budget = 1, 10, 5.0
    args.crowded_rounds = args.rounds if args.crowded_rounds is None else args.crowded_rounds
    args.budget_rounds = args.rounds if args.budget_rounds is None else args.budget_rounds
    settings = {"plain": args.plain, "budget": args.budget}
    if args.show and not args.results.exists():
        raise SystemExit(f"{args.results} does not exist: nothing was measured yet")
    results = Results(args.results, settings, restart=args.restart and not args.show)
    parts = [Part(name, args) for name in args.parts]
    machine = this_machine()
    try:
        if not args.show and any(part.left(results.of(part.name)) for part in parts):
            # On SIGTERM, print the tables of the completed rounds and stop all processes.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            with running() as cluster, hosts_of(cluster) as hosts:
                Bench(cluster, hosts, args, results).measure(parts)
    finally:
        measures = []
        for part in parts:
            rounds = results.of(part.name)
            show(part.title, rounds, part.limit)
            measures += measures_of(part.name, rounds, part.limit)
        if measures:
            publish("reclaim", measures, machine)


if __name__ == "__main__":
    main()

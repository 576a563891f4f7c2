"""A node is left: by the agent, whose host is taken, and by `kubectl drain`; by turns, on one real cluster in one run.

T0 is when the metadata service of a node begins to say that its host is taken (AWS, spot interruption): the agent has
to notice that by itself, while the drain is started at T0. On the node are 4 pods with a claim each, whose grace period
is 1 s; the other node has room for them. Three times: on a quiet node, with a PodDisruptionBudget that allows no
disruption, and with plain pods beside them. Prints what is, with ratios; nothing here fails.

Every round is on disk when it has ended. A run that was interrupted goes on where it stopped when it is started again
with the same settings, and --show prints what there is.

Needs what the test cluster needs (docs/test-cluster.md), and tests/ on the path: `make bench-reclaim`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reclaim_hosts import Host, prepare
from reclaim_results import Results
from reclaim_rounds import Eyes, Round, leave
from reclaim_table import show
from reclaim_workload import CLAIM_PODS, Workload

from cluster.kube.cluster import Cluster, running

AGENT, DRAIN = "agent", "drain"
QUIET, CROWDED, BUDGET = "quiet", "crowded", "budget"
RESULTS = Path(__file__).resolve().parent.parent / "target" / "bench-reclaim.jsonl"


class Part:
    """One part: what is beside the pods with claims, how often it is left, and how long each may take."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name = name
        self.title, self.rounds, self.limit = {
            QUIET: (f"quiet node, {CLAIM_PODS} pods with a claim each", args.rounds, 60.0),
            BUDGET: ("the same, with a PodDisruptionBudget that allows none", args.budget_rounds, args.budget),
            CROWDED: (f"the same, with {args.plain} plain pods on the node", args.crowded_rounds, 120.0),
        }[name]

    def left(self, done: list[Round]) -> list[tuple[int, str]]:
        """The rounds that are still to be made, in their order, with their numbers."""
        made = {who: sum(1 for one in done if one.who == who) for who in (AGENT, DRAIN)}
        turns = [(n, who) for n in range(self.rounds) for who in ((AGENT, DRAIN) if n % 2 == 0 else (DRAIN, AGENT))]
        return [(number, who) for number, who in turns if number >= made[who]]


class Bench:
    """The cluster with what is on it."""

    def __init__(self, cluster: Cluster, hosts: dict[str, Host], args: argparse.Namespace, results: Results) -> None:
        self._cluster = cluster
        self._hosts = hosts
        self._args = args
        self._results = results
        self._workload = Workload(cluster)
        self._eyes = Eyes(cluster.api, self._workload.namespace.name)
        self._workload.create(next(iter(hosts)))
        self._until = time.monotonic() + 60 * args.minutes

    def measure(self, parts: list[Part]) -> None:
        """Make every round that is still to be made."""
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
        # The plain pods stay where they are unless a drain moves them: the pods with claims join them.
        doomed = self._hosts[workload.plain_node() or workload.node()]
        workload.settled(doomed.name)
        # Also so that T0 is anywhere between two questions of the agent.
        time.sleep(1 + random.random())
        result = leave(who, self._cluster, self._eyes, doomed, workload, limit)
        if who == AGENT:
            doomed.forget()
        if self._args.verbose:
            took = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in result.took.items())
            rest = f"{result.plain_moved} plain pods deleted, load {result.load:.1f} {result.said}"
            print(f"  {who} leaves {doomed.name}: {took}; {rest}", flush=True)
        return result


@contextmanager
def hosts_of(cluster: Cluster) -> Iterator[dict[str, Host]]:
    """An agent on each node; all are ended in any case."""
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
    parser.add_argument("--budget", type=float, default=15, help="seconds that a drain gets where a budget allows none")
    parser.add_argument("--parts", nargs="+", default=[QUIET, BUDGET, CROWDED], choices=[QUIET, BUDGET, CROWDED])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no round later than that in a part")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no round later than that at all")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the rounds are kept")
    parser.add_argument("--anew", action="store_true", help="begin the file anew")
    parser.add_argument("--show", action="store_true", help="only print what is in the file")
    parser.add_argument("--quick", action="store_true", help="few of everything: shows that it works, measures nothing")
    parser.add_argument("--verbose", action="store_true", help="tell of every round")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.plain, args.budget = 1, 10, 5.0
    args.crowded_rounds = args.rounds if args.crowded_rounds is None else args.crowded_rounds
    args.budget_rounds = args.rounds if args.budget_rounds is None else args.budget_rounds
    settings = {"plain": args.plain, "budget": args.budget}
    if args.show and not args.results.exists():
        raise SystemExit(f"{args.results} is not there: nothing was measured yet")
    results = Results(args.results, settings, anew=args.anew and not args.show)
    parts = [Part(name, args) for name in args.parts]
    try:
        if not args.show and any(part.left(results.of(part.name)) for part in parts):
            print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the start", flush=True)
            # Whoever ends it gets the tables of what there is, and no process is left behind.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            with running() as cluster, hosts_of(cluster) as hosts:
                Bench(cluster, hosts, args, results).measure(parts)
    finally:
        for part in parts:
            show(part.title, results.of(part.name), part.limit)


if __name__ == "__main__":
    main()

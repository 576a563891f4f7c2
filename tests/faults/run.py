"""The run of a campaign: its cases, progress and results; SIGTERM ends it after the current cases."""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dra_agent import revision
from faults.results import Results, Shard

PROGRESS_EVERY = 50
"""Number of cases between two lines of progress."""
LOG_LINES = 30
"""Lines of the agent's log that are shown with a failure."""


@dataclass(frozen=True)
class Selection:
    """The selected cases. Points are numbers of calls, in the order in which an agent makes them."""

    every: int = 1
    seed: int = 0
    first: int = 0
    point: int | None = None
    fault: str | None = None
    jobs: int = 1
    """Number of cases that run at the same time."""
    shard: Shard | None = None
    results: Path | None = None
    """Directory of the results of shards."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, faults: Iterable[str]) -> None:
        """Add the options that `of` reads."""
        parser.add_argument("--every", type=int, default=1, help="run every N-th case only")
        parser.add_argument("--seed", type=int, default=0, help="offset of the first case")
        parser.add_argument("--from", type=int, default=0, dest="first", metavar="POINT", help="continue at this point")
        parser.add_argument("--point", type=int, help="only this point")
        parser.add_argument("--fault", choices=list(faults), help="only this fault")
        parser.add_argument(
            "--shard", type=Shard.parse, metavar="K/N", help="the K-th of N parts; continues an earlier run"
        )
        parser.add_argument("--results", type=Path, metavar="DIR", help="the directory of the results of shards")
        jobs = os.cpu_count() or 1
        parser.add_argument("--jobs", type=int, default=jobs, help=f"cases at the same time (default: {jobs})")

    @classmethod
    def of(cls, args: argparse.Namespace, default_results: Path) -> Selection:
        """Return the selection of the command line."""
        results = args.results or default_results
        jobs = max(1, args.jobs)
        return cls(args.every, args.seed, args.first, args.point, args.fault, jobs, args.shard, results)

    def cases(self, points: int, faults: Iterable[str]) -> Iterator[tuple[int, str]]:
        """Yield combinations of a point and a fault, point by point."""
        both = [(point, fault) for point in range(points) for fault in faults]
        selected = both[random.Random(self.seed).randrange(self.every) :: self.every]
        if self.shard is not None:
            selected = selected[self.shard.number - 1 :: self.shard.count]
        for point, fault in selected:
            if point >= self.first and self.point in (None, point) and self.fault in (None, fault):
                yield point, fault

    def saved(self, cases: int) -> Results | None:
        """Return where results of a shard are saved, and what an earlier run of it has saved; None: not a shard."""
        if self.shard is None or self.results is None:
            return None
        return Results(self.results, self.shard, revision.read(), cases)


@dataclass
class Tally:
    """The results of the cases that were run."""

    passed: int = 0
    failed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """Count of each result that a case returned."""
    next_point: int | None = None
    """The point at which an interrupted run continues; None: every case was run."""


class Termination:
    """Records a SIGTERM during the block, so that the current cases can finish."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Termination:
        self._before = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _request(self, number: int, frame: object) -> None:
        self.requested = True


class Worker(Protocol):
    """Runs cases one after another, independently of other workers."""

    def case(self, point: int, fault: str) -> str:
        """Run a case; return its result, "" for nothing to count. An exception is a failure."""

    def log(self) -> str:
        """Return the agent's log of the last case."""


def run(
    cases: Sequence[tuple[int, str]],
    workers: Sequence[Worker],
    describe: Callable[[int], str],
    termination: Termination,
    results: Results | None = None,
) -> Tally:
    """Run cases in order until all are done or a SIGTERM ends the run, and print failures. Each worker has a thread.

    Cases that `results` has are left out.
    """
    tally = Tally()
    started = time.monotonic()
    lock = threading.Lock()
    if results is not None:
        cases = [case for case in cases if case not in results.done]
    waiting = iter(cases)

    def next_case() -> tuple[int, str] | None:
        with lock:
            case = None if tally.next_point is not None else next(waiting, None)
            if case is not None and termination.requested:
                tally.next_point, case = case[0], None
            return case

    def work(worker: Worker) -> None:
        while (case := next_case()) is not None:
            point, fault = case
            try:
                outcome, broken = worker.case(point, fault), None
            except Exception as error:  # noqa: BLE001 - every failure is reported, and the campaign continues
                outcome, broken = "", error
            with lock:
                if results is not None:
                    results.add(case, outcome, "" if broken is None else repr(broken))
                if broken is None:
                    tally.passed += 1
                    tally.outcomes[outcome] += 1
                else:
                    tally.failed += 1
                    print(f"FAILED --point {point} --fault '{fault}' ({describe(point)}): {broken!r}", flush=True)
                    print("\n".join(f"    {line}" for line in worker.log().splitlines()[-LOG_LINES:]), flush=True)
                done = tally.passed + tally.failed
                if done % PROGRESS_EVERY == 0:
                    seconds = time.monotonic() - started
                    print(f"{done} of {len(cases)} cases, at point {point}, {seconds:.0f} s", flush=True)

    try:
        others = [threading.Thread(target=work, args=[worker]) for worker in workers[1:]]
        for thread in others:
            thread.start()
        work(workers[0])
        for thread in others:
            thread.join()
    finally:
        for name, count in sorted(tally.outcomes.items()):
            print(f"{count:6} {name}", flush=True)
        print(f"{tally.passed} passed, {tally.failed} failed in {time.monotonic() - started:.0f} s", flush=True)
        if tally.next_point is not None:
            print(f"ended by SIGTERM; ARGS='--from {tally.next_point}' continues it", flush=True)
    return tally


def exit_code(tally: Tally) -> int:
    """Return 0 if every case was run and passed."""
    if tally.next_point is not None:
        return 128 + signal.SIGTERM
    return 1 if tally.failed else 0

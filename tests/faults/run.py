"""The run of a campaign: its cases, progress and results; SIGTERM ends it after the current case."""

from __future__ import annotations

import argparse
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

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

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, faults: Iterable[str]) -> None:
        """Add the options that `of` reads."""
        parser.add_argument("--every", type=int, default=1, help="run every N-th case only")
        parser.add_argument("--seed", type=int, default=0, help="offset of the first case")
        parser.add_argument("--from", type=int, default=0, dest="first", metavar="POINT", help="continue at this point")
        parser.add_argument("--point", type=int, help="only this point")
        parser.add_argument("--fault", choices=list(faults), help="only this fault")

    @classmethod
    def of(cls, args: argparse.Namespace) -> Selection:
        """Return the selection of the command line."""
        return cls(args.every, args.seed, args.first, args.point, args.fault)

    def cases(self, points: int, faults: Iterable[str]) -> Iterator[tuple[int, str]]:
        """Yield combinations of a point and a fault, point by point."""
        both = [(point, fault) for point in range(points) for fault in faults]
        for point, fault in both[random.Random(self.seed).randrange(self.every) :: self.every]:
            if point >= self.first and self.point in (None, point) and self.fault in (None, fault):
                yield point, fault


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
    """Records a SIGTERM during the block, so that the current case can finish."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Termination:
        self._before = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _request(self, number: int, frame: object) -> None:
        self.requested = True


def run(
    cases: Sequence[tuple[int, str]],
    case: Callable[[int, str], str],
    describe: Callable[[int], str],
    log: Callable[[], str],
    termination: Termination,
) -> Tally:
    """Run cases one by one until all are done or a SIGTERM ends the run, and print failures.

    `case` returns its result, "" for nothing to count; an exception is a failure. `log` returns the agent's log of the
    last case.
    """
    tally = Tally()
    started = time.monotonic()
    try:
        for number, (point, fault) in enumerate(cases):
            if termination.requested:
                tally.next_point = point
                break
            try:
                outcome = case(point, fault)
            except Exception as error:  # noqa: BLE001 - every failure is reported, and the campaign goes on
                tally.failed += 1
                print(f"FAILED --point {point} --fault '{fault}' ({describe(point)}): {error!r}", flush=True)
                print("\n".join(f"    {line}" for line in log().splitlines()[-LOG_LINES:]), flush=True)
            else:
                tally.passed += 1
                tally.outcomes[outcome] += 1
            if (number + 1) % PROGRESS_EVERY == 0:
                seconds = time.monotonic() - started
                print(f"{number + 1} of {len(cases)} cases, at point {point}, {seconds:.0f} s", flush=True)
    finally:
        for name, count in sorted(tally.outcomes.items()):
            print(f"{count:6} {name}", flush=True)
        print(f"{tally.passed} passed, {tally.failed} failed in {time.monotonic() - started:.0f} s", flush=True)
        if tally.next_point is not None:
            print(f"ended by SIGTERM; ARGS='--from {tally.next_point}' goes on", flush=True)
    return tally


def exit_code(tally: Tally) -> int:
    """Return 0 if every case was run and passed."""
    if tally.next_point is not None:
        return 128 + signal.SIGTERM
    return 1 if tally.failed else 0

"""Compares two results of `make bench`, two files or two directories of them, with the noise of both.

    python benchmarks/compare.py OLD NEW

For each measure it prints the cost ratio new / old (above 1 is slower) with a 99 % interval, which comes from a
bootstrap of the samples of both runs. A measure that has a reference in both runs is first divided by it, so that a
machine that was slower in one run changes nothing. A measure that can be 0 or less, such as growth, has a difference
that is noise, and a larger one counts. Exit code 1: a measure is slower, or missing in NEW. 2: bad input.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from results import Measure, Results, ResultsError, load, quantile
from results_table import columns, number

THRESHOLD_SHARE = 0.05
"""The smallest relative change that is reported."""
SINGLE_VALUE_NOISE_SHARE = 0.1
"""Relative noise of a measure with too few samples to compute it; an assumption."""
MIN_SAMPLES = 5
RESAMPLES = 2000
CONFIDENCE = 0.99

Verdict = Literal["slower", "faster", "within noise", "not comparable", "missing", "new"]


@dataclass(frozen=True)
class Change:
    """One measure of both runs."""

    benchmark: str
    name: str
    verdict: Verdict
    old: str = ""
    new: str = ""
    ratio: float | None = None
    """Above 1 means slower (or larger, or less of what should be more)."""
    low: float = math.nan
    high: float = math.nan
    reason: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the comparison fails."""
        return self.verdict in ("slower", "missing")


def compare(old: Results, new: Results, *, threshold: float = THRESHOLD_SHARE, force: bool = False) -> list[Change]:
    """Compare two runs of one benchmark; `force` compares results of different machines."""
    before = {measure.name: measure for measure in old.measures}
    after = {measure.name: measure for measure in new.measures}
    other_machine = "" if force or old.machine.is_same(new.machine) else "another machine"
    changes = []
    for name, one in before.items():
        if name not in after:
            changes.append(Change(old.benchmark, name, "missing", reason="not in the new results"))
        else:
            changes.append(_change(old.benchmark, one, after[name], threshold, other_machine))
    changes += [
        Change(old.benchmark, name, "new", reason="not in the old results") for name in after if name not in before
    ]
    return changes


def _change(benchmark: str, old: Measure, new: Measure, threshold: float, refusal: str) -> Change:
    shown = (f"{number(old.value)} {old.unit}", f"{number(new.value)} {new.unit}")
    for field in ("unit", "better", "quantile"):
        if getattr(old, field) != getattr(new, field):
            refusal = f"another {field}: {getattr(old, field)}, {getattr(new, field)}"
    if refusal:
        return Change(benchmark, old.name, "not comparable", *shown, reason=refusal)
    if noise := max(old.noise, new.noise):
        return _difference(benchmark, old, new, noise, shown)
    references = (*old.reference, *new.reference)
    normalized = old.compared_with == new.compared_with and bool(references) and min(references) > 0
    sides = [(new.samples, 1), (old.samples, -1)]
    if normalized:
        sides += [(new.reference, -1), (old.reference, 1)]
    if new.better == "higher":
        sides = [(samples, -power) for samples, power in sides]
    if old.value == new.value and not normalized:
        return Change(benchmark, old.name, "within noise", *shown, 1.0, 1.0, 1.0)
    if old.value == 0 and new.value > 0:
        return Change(benchmark, old.name, "slower" if new.better == "lower" else "faster", *shown, reason="it was 0")
    if any(min(samples) <= 0 for samples, _ in sides):
        return Change(benchmark, old.name, "not comparable", *shown, reason="a value is not positive")
    ratio, low, high = _interval(sides, new.quantile)
    verdict: Verdict = "within noise"
    if ratio >= 1 + threshold and low > 1:
        verdict = "slower"
    elif ratio <= 1 / (1 + threshold) and high < 1:
        verdict = "faster"
    reason = f"divided by {old.compared_with!r}" if normalized else ""
    return Change(benchmark, old.name, verdict, *shown, ratio, low, high, reason)


def _difference(benchmark: str, old: Measure, new: Measure, noise: float, shown: tuple[str, str]) -> Change:
    """Compare a measure for which a ratio has no meaning."""
    worse = new.value - old.value if new.better == "lower" else old.value - new.value
    verdict: Verdict = "slower" if worse > noise else "faster" if -worse > noise else "within noise"
    return Change(
        benchmark, old.name, verdict, *shown, reason=f"differences up to {number(noise)} {new.unit} are noise"
    )


def _interval(sides: Sequence[tuple[Sequence[float], int]], share: float) -> tuple[float, float, float]:
    """Return the product of the sides' quantiles, each to its power, and its interval.

    The order statistic k of n samples drawn with replacement is the sample at n times a Beta(k, n + 1 - k) variate
    (the k-th of n uniform variates has that distribution), so nothing is drawn n times.
    """
    chance = random.Random(0)
    ordered = [(sorted(samples), power) for samples, power in sides]
    ratio = math.prod(quantile(samples, share) ** power for samples, power in sides)
    draws = []
    for _ in range(RESAMPLES):
        drawn = 1.0
        for samples, power in ordered:
            count = len(samples)
            place = min(int(count * share), count - 1) + 1
            drawn *= samples[min(int(count * chance.betavariate(place, count + 1 - place)), count - 1)] ** power
        draws.append(drawn)
    draws.sort()
    tail = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    few = sum(len(samples) < MIN_SAMPLES for samples, _ in sides)
    assumed = 1 + SINGLE_VALUE_NOISE_SHARE if few else 1.0
    return ratio, draws[tail] / assumed, draws[-1 - tail] * assumed


def pairs(old: Path, new: Path) -> list[tuple[Results, Results | None]]:
    """Return the results of both by benchmark; None if the new directory does not have it.

    Raises:
        ResultsError: A file is invalid, or there is nothing to compare.
    """
    if old.is_dir() != new.is_dir():
        raise ResultsError(f"{old}, {new}: one is a directory and the other is not; name two of a kind")
    if not old.is_dir():
        before, after = load(old), load(new)
        if before.benchmark != after.benchmark:
            raise ResultsError(f"{new}: benchmark: {after.benchmark!r}, the old results are of {before.benchmark!r}")
        return [(before, after)]
    names = sorted(path.name for path in old.glob("*.json"))
    if not names:
        raise ResultsError(f"{old}: no NAME.json; run `make bench` first, and copy target/bench")
    return [(load(old / name), load(new / name) if (new / name).exists() else None) for name in names]


def report(changes: Sequence[Change]) -> list[str]:
    """Return the lines to print, failures last."""
    rows: list[tuple[str, ...]] = [("benchmark", "measure", "old", "new", "new / old", "99 % interval", "verdict", "")]
    for one in sorted(changes, key=lambda change: change.is_failure):
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        interval = "" if one.ratio is None else f"{one.low:.2f} to {one.high:.2f}"
        rows.append((one.benchmark, one.name, one.old, one.new, ratio, interval, one.verdict, one.reason))
    return columns(rows, (True, True, False, False, False, True, True, True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the results of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a file, or a directory like target/bench")
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--threshold",
        type=float,
        default=THRESHOLD_SHARE,
        help="smallest relative change that is reported (default: 0.05)",
    )
    parser.add_argument("--force", action="store_true", help="compare results of different machines")
    args = parser.parse_args(arguments)
    changes: list[Change] = []
    try:
        for old, new in pairs(args.old, args.new):
            if new is None:
                reason = f"no results in {args.new}"
                changes += [Change(old.benchmark, one.name, "missing", reason=reason) for one in old.measures]
            else:
                changes += compare(old, new, threshold=args.threshold, force=args.force)
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(report(changes)))
    if any(one.reason == "another machine" for one in changes):
        print("CPU, cores or kernel differ: times of different machines are not comparable; --force compares them")
        return 2
    return int(any(one.is_failure for one in changes))


if __name__ == "__main__":
    sys.exit(main())

"""Prints the rounds of one part as a table: the agent, the drain, and the ratio of the drain's times to the agent's."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from reclaim_rounds import OWN, PHASES, Round

SHARES = (0.5, 0.95)
SHARED_PHASES = PHASES[2:5]
"""The phases that agent and drain have in common."""
EQUAL = 1.25
"""Times are equal up to this ratio."""
FROM_NOTICE = "from the notice"
TARGETS = {OWN: "below 0.10", f"pods ready there, {FROM_NOTICE}": "at most 1.00"}


@dataclass(frozen=True)
class Line:
    """One line of the table: the time of each round, infinite if it did not reach the phase. None: does not apply."""

    name: str
    ours: Sequence[float] | None
    theirs: Sequence[float] | None

    def cells(self) -> dict[str, dict[str, float | None]]:
        """Return p50, p95 and failures of both; None means that the phase was not reached."""
        sides = {"agent": self.ours, "drain": self.theirs}
        return {who: _summary(times) for who, times in sides.items() if times}


def lines_of(rounds: Sequence[Round]) -> list[Line]:
    """Return the lines of a part in order."""
    ours = [one for one in rounds if one.who == "agent"]
    theirs = [one for one in rounds if one.who == "drain"]
    lines = []
    for phase in PHASES:
        # Only the agent writes a taint, and only a drain returns.
        drained = _times(theirs, phase) if phase in PHASES[2:] else None
        lines.append(Line(phase, None if phase == PHASES[-1] else _times(ours, phase), drained))
    for phase in PHASES[1:4]:
        from_notice = [one.took.get(phase, math.inf) - one.took.get("noticed", 0.0) for one in ours]
        drained = _times(theirs, phase) if phase in SHARED_PHASES else None
        lines.append(Line(f"{phase}, {FROM_NOTICE}", from_notice, drained))
    lines.append(Line(OWN, _times(ours, OWN), None))
    return lines


def show(title: str, rounds: Sequence[Round], limit: float) -> None:
    """Print the table. Times are in seconds since T0; a phase that was not reached within the limit is a failure."""
    ours = [one for one in rounds if one.who == "agent"]
    theirs = [one for one in rounds if one.who == "drain"]
    if not ours or not theirs:
        print(f"\n{title}: no round of each was finished", flush=True)
        return
    loads = [one.load for one in rounds]
    print(
        f"\n{title}\n{len(ours)} rounds of the agent and {len(theirs)} of the drain, {limit:.0f} s for each;", end=" "
    )
    print(f"load {min(loads):.1f} to {max(loads):.1f}, median {statistics.median(loads):.1f}")
    names = ("agent p50", "p95", "failed", "drain p50", "p95", "failed", "ratio p50", "p95")
    print(f"{'seconds from T0':42}" + "".join(f"{name:>10}" for name in names))
    for line in lines_of(rounds):
        _row(line)
    for who, some in (("agent", ours), ("drain", theirs)):
        print(f"plain pods deleted in a round of the {who}: {statistics.mean(one.plain_moved for one in some):.0f}")
    errors = [one.error.partition(": ")[2] or one.error for one in theirs if one.error]
    for error in sorted(set(errors)):
        print(f"{errors.count(error)} drains ended with an error: {error}")
    sys.stdout.flush()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least value that this share of values does not exceed, infinite if too few reached the phase."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def _times(rounds: Sequence[Round], phase: str) -> list[float]:
    return [one.took.get(phase, math.inf) for one in rounds]


def _summary(times: Sequence[float]) -> dict[str, float | None]:
    values = {f"p{share * 100:.0f}": percentile(times, share) for share in SHARES}
    known = {name: None if math.isinf(value) else round(value, 3) for name, value in values.items()}
    return {**known, "failed": sum(1 for took in times if math.isinf(took)), "rounds": len(times)}


def _row(line: Line) -> None:
    text = f"{line.name:42}" + _cells(line.ours) + _cells(line.theirs)
    if line.ours is not None and line.theirs is not None:
        pairs = [(percentile(line.ours, share), percentile(line.theirs, share)) for share in SHARES]
        text += "".join(f"{_ratio(*pair):>10}" for pair in pairs) + f"   {_comparison(*pairs[0])}"
    if line.name in TARGETS:
        text += f"   target: {TARGETS[line.name]}"
    print(text.rstrip())


def _cells(times: Sequence[float] | None) -> str:
    if times is None:
        return " " * 30
    failed = sum(1 for took in times if math.isinf(took))
    cells = [_seconds(percentile(times, share)) for share in SHARES] + [str(failed)]
    return "".join(f"{cell:>10}" for cell in cells)


def _seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}"


def _ratio(ours: float, theirs: float) -> str:
    return "-" if math.isinf(ours) or math.isinf(theirs) else f"{theirs / ours:.2f}"


def _comparison(ours: float, theirs: float) -> str:
    """Compare the agent with the drain at the median."""
    if math.isinf(ours) and math.isinf(theirs):
        return "both failed"
    if theirs > ours * EQUAL:
        return "faster"
    return "slower" if ours > theirs * EQUAL else "equal"

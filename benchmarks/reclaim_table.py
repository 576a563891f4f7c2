"""The rounds of one part as measures: the agent, compared with the drain."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from reclaim_rounds import OWN, PHASES, Round
from results import Measure, Target, measure, percentile

SHARES = (0.5, 0.95)
SHARED_PHASES = PHASES[2:5]
"""The phases that agent and drain have in common."""
FROM_NOTICE = "from the notice"
TARGETS = {
    OWN: Target("value", "at most", 0.10),
    f"pods ready there, {FROM_NOTICE}": Target("value", "at most", 1.0),
}


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


def measures_of(title: str, rounds: Sequence[Round], limit: float) -> list[Measure]:
    """Return the measures of a part, the drain as the reference.

    A round that did not reach a phase within the limit counts as the limit, and in "not reached".
    """
    measures = []
    for line in lines_of(rounds):
        if not line.ours:
            continue
        ours, theirs = ([min(took, limit) for took in times or ()] for times in (line.ours, line.theirs))
        name, compared = f"{title}: {line.name}", "drain" if theirs else ""
        measures += [
            measure(
                f"{name}, p{share * 100:.0f}",
                "s",
                ours,
                at=share,
                compared_with=compared,
                reference=theirs,
                target=TARGETS.get(line.name) if share == SHARES[0] else None,
            )
            for share in SHARES
        ]
        failed = [[float(sum(map(math.isinf, times)))] if times else [] for times in (line.ours, line.theirs)]
        measures.append(
            measure(f"{name}, not reached", "rounds", failed[0], compared_with=compared, reference=failed[1])
        )
    return measures


def show(title: str, rounds: Sequence[Round], limit: float) -> None:
    """Print the conditions of a part."""
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
    for who, some in (("agent", ours), ("drain", theirs)):
        print(f"plain pods deleted in a round of the {who}: {statistics.mean(one.plain_moved for one in some):.0f}")
    errors = [one.error.partition(": ")[2] or one.error for one in theirs if one.error]
    for error in sorted(set(errors)):
        print(f"{errors.count(error)} drains ended with an error: {error}")
    sys.stdout.flush()


def _times(rounds: Sequence[Round], phase: str) -> list[float]:
    """Return the seconds to the phase; infinite for rounds that did not reach it."""
    return [one.took.get(phase, math.inf) for one in rounds]


def _summary(times: Sequence[float]) -> dict[str, float | None]:
    values = {f"p{share * 100:.0f}": percentile(times, share) for share in SHARES}
    known = {name: None if math.isinf(value) else round(value, 3) for name, value in values.items()}
    return {**known, "failed": sum(1 for took in times if math.isinf(took)), "rounds": len(times)}

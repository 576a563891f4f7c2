"""The score of `make mutants-rust`, read from the outcomes of cargo-mutants.

`python tests/mutants/rust.py DIRECTORY...` prints a Markdown row for each crate and the survivors, and exits with 1 if
a crate is below the goal. Several directories of one crate, such as shards, are added up.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import msgspec

GOAL_PERCENT = 90
HEAD = "| crate | mutants run | killed | of these by timeout | survived | unviable | score | duration |"


class Phase(msgspec.Struct):
    duration: float
    """Seconds."""


class Mutant(msgspec.Struct):
    name: str
    package: str


class Scenario(msgspec.Struct):
    mutant: Mutant = msgspec.field(name="Mutant")


class Outcome(msgspec.Struct):
    summary: str
    phase_results: list[Phase]
    scenario: Scenario | str
    """The text "Baseline" is the run without a mutant."""


class Outcomes(msgspec.Struct):
    outcomes: list[Outcome]


class Score:
    """The mutants of one crate."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.names: dict[str, list[str]] = defaultdict(list)

    def add(self, outcome: Outcome) -> None:
        self.seconds += sum(phase.duration for phase in outcome.phase_results)
        if isinstance(outcome.scenario, Scenario):
            self.names[outcome.summary].append(outcome.scenario.mutant.name)

    @property
    def timeouts(self) -> list[str]:
        return self.names["Timeout"]

    @property
    def survivors(self) -> list[str]:
        return self.names["MissedMutant"]

    @property
    def killed(self) -> int:
        return len(self.names["CaughtMutant"]) + len(self.timeouts)

    @property
    def percent(self) -> float:
        """The share of the mutants that compile. A crate without such mutants has score 0."""
        viable = self.killed + len(self.survivors)
        return 100 * self.killed / viable if viable else 0

    def row(self, crate: str) -> str:
        unviable = len(self.names["Unviable"])
        run = self.killed + len(self.survivors) + unviable
        return (
            f"| `{crate}` | {run} | {self.killed} | {len(self.timeouts)} | {len(self.survivors)} | {unviable}"
            f" | {self.percent:.1f} % | {self.seconds / 60:.0f} min |"
        )


def scores(directories: list[Path]) -> dict[str, Score]:
    """The scores by crate. Raises msgspec.DecodeError or OSError for a directory without outcomes."""
    found: dict[str, Score] = defaultdict(Score)
    for directory in directories:
        outcomes = msgspec.json.decode((directory / "mutants.out/outcomes.json").read_bytes(), type=Outcomes).outcomes
        crate = next((o.scenario.mutant.package for o in outcomes if isinstance(o.scenario, Scenario)), None)
        if crate is None:
            raise OSError(f"{directory} holds no mutant")
        for outcome in outcomes:
            found[crate].add(outcome)
    return found


def main(directories: list[Path]) -> int:
    try:
        found = scores(directories)
    except (OSError, msgspec.DecodeError) as error:
        print(f"the outcomes of cargo-mutants cannot be read: {error}; run `make mutants-rust`", file=sys.stderr)
        return 2
    print(HEAD)
    print("|" + "---|" * HEAD.count(" | ") + "---|")
    for crate, score in found.items():
        print(score.row(crate))
    for title, names in (
        ("Timeouts", [name for score in found.values() for name in score.timeouts]),
        ("Survivors", [name for score in found.values() for name in score.survivors]),
    ):
        print(f"\n{title}:" if names else f"\n{title}: none")
        for name in names:
            print(f"- {name}")
    below = [crate for crate, score in found.items() if score.percent < GOAL_PERCENT]
    if below:
        print(f"\nbelow {GOAL_PERCENT} %: {', '.join(below)}", file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))

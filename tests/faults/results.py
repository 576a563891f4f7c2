"""The results of a campaign in numbered shards: one file for each, to which every finished case is appended.

    make faults-disk ARGS='--shard 2/8'     # the second of eight shards; again: continues it
    python -m faults.results DIRECTORY      # all shards together

A case counts only for the revision that it was run with, so a file of another revision is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Case = tuple[int, str]
"""A point and the name of a fault."""


class ResultsError(Exception):
    """A file that does not belong to this campaign."""


@dataclass(frozen=True)
class Shard:
    """The `number`-th of `count` equal parts of a campaign, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse "2/8". Raises ValueError."""
        number, _, count = text.partition("/")
        shard = cls(int(number), int(count))
        if not 1 <= shard.number <= shard.count:
            raise ValueError(f"{text}: the first number is one of 1 to {shard.count}")
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


class Results:
    """The finished cases of one shard, on disk. A case that a killed run did not finish is not there."""

    def __init__(self, folder: Path, shard: Shard, revision: str, cases: int) -> None:
        """`cases` is the number of cases of the shard. Raises ResultsError for results of another revision."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"shard-{shard.number}-of-{shard.count}.jsonl"
        header = {"revision": revision, "shard": str(shard), "cases": cases}
        lines = _lines(self._path)
        if lines and lines[0] != header:
            raise ResultsError(f"{self._path} has results of {lines[0]}, this is {header}: remove it")
        if not lines:
            self._path.write_text(json.dumps(header) + "\n")
        self.done: set[Case] = {(line["point"], line["fault"]) for line in lines[1:]}

    def add(self, case: Case, outcome: str, error: str) -> None:
        """Append a case; `error` is "" if it passed."""
        line = {"point": case[0], "fault": case[1], "outcome": outcome, "error": error}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return all whole lines, and remove a line that a killed run did not finish."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]


def collect(folder: Path) -> tuple[str, bool]:
    """Return the report of all shards, and whether every case of every shard was run and passed."""
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    missing: list[str] = []
    planned, counts = 0, set()
    found: set[str] = set()
    for path in sorted(folder.glob("shard-*-of-*.jsonl")):
        header, *lines = _lines(path) or [{}]
        shard = str(header.get("shard", path.stem))
        cases = int(str(header.get("cases", 0)))
        found.add(shard)
        counts.add(shard.partition("/")[2])
        planned += cases
        if len(lines) < cases:
            missing.append(f"shard {shard}: {cases - len(lines)} of {cases} cases are missing")
        for line in lines:
            if line["error"]:
                failures.append(f"FAILED --point {line['point']} --fault '{line['fault']}': {line['error']}")
            else:
                outcomes[str(line["outcome"])] += 1
    if len(counts) != 1:
        missing.append(f"shards of one campaign have one count, these have {sorted(counts) or 'none'}")
    for count in counts:
        names = {f"{number}/{count}" for number in range(1, int(count or 0) + 1)}
        missing += [f"shard {name}: not run" for name in sorted(names - found)]
    done = outcomes.total() + len(failures)
    total = [f"{done} of {planned} cases: {outcomes.total()} passed, {len(failures)} failed"]
    report = [f"{number:6} {name}" for name, number in sorted(outcomes.items())] + failures + missing + total
    return "\n".join(report), not failures and not missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIRECTORY")
    report, is_complete = collect(parser.parse_args().folder)
    print(report)
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())

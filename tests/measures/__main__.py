"""`make measures`: prints a table of the measures now, at the last release, and where they are to go.

make measures                     # the table; walks take a minute
make measures ARGS=--details      # also what is counted, such as the modules of each circle
make measures ARGS=--record       # at a release: writes the numbers of the last commit to last_release.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measures import library_names, python_code, rust_code, walks
from measures.walks import ROOT, NotMeasuredError

LAST_RELEASE = Path(__file__).with_name("last_release.json")
LOWER, NOT_HIGHER = "lower", "not higher"


@dataclass(frozen=True)
class Measure:
    """One row of the table."""

    name: str
    value: float
    target: str
    details: Sequence[str] = ()


def python_measures() -> Iterator[Measure]:
    """Yield the measures of each Python package, and of all of them together."""
    folder = ROOT / "python"
    by_package = {package: python_code.modules(folder, package) for package in python_code.packages(folder)}
    every = [module for modules in by_package.values() for module in modules]
    for package, modules in by_package.items():
        yield from size_measures(package, python_code.size(modules))
        loose = python_code.loose_modules(modules)
        yield Measure(f"{package}: loose modules", len(loose), "at most 6", loose)
    yield Measure("all packages: lines", python_code.size(every).lines, LOWER)
    circles = [" ".join(circle) for modules in by_package.values() for circle in python_code.folder_circles(modules)]
    yield Measure("circles inside Python folders", len(circles), "0", circles)
    private = library_names.private_names(every)
    yield Measure("private names of libraries: uses", len(private), "0", private)
    callables, protocols = python_code.callable_parameters(every), python_code.one_method_protocols(every)
    yield Measure("constructor parameters that are callables", len(callables), LOWER, callables)
    yield Measure("protocols with one method", len(protocols), LOWER, protocols)
    yield Measure("both together", len(callables) + len(protocols), "at most 60")


def size_measures(name: str, size: python_code.Size) -> Iterator[Measure]:
    """Yield the sizes of a package or crate."""
    yield Measure(f"{name}: lines", size.lines, LOWER)
    yield Measure(f"{name}: statements per line", size.statements_per_line, NOT_HIGHER)
    yield Measure(f"{name}: lines of the median function", size.median_function, NOT_HIGHER)
    yield Measure(f"{name}: functions over {python_code.LONG_LINES} lines", size.long_functions, LOWER)


def rust_measures() -> Iterator[Measure]:
    """Yield the measures of each crate, and the largest circle of files."""
    largest: list[str] = []
    for crate in rust_code.crates(ROOT / "rust"):
        yield from size_measures(crate.name, rust_code.size(crate))
        for circle in rust_code.file_circles(crate)[:1]:
            largest = max(largest, [f"{crate.name} {module}" for module in circle], key=len)
    yield Measure("files in the largest Rust circle", len(largest), "at most 5", largest)


def walk_measures() -> Iterator[Measure]:
    """Yield the measures of what runs."""
    measured = walks.measure()
    prepare, notice = (measured[walk] for walk in walks.WALKS)
    yield Measure("NodePrepareResources: files", len(prepare.files), "at most 55", sorted(prepare.files))
    yield Measure("NodePrepareResources: depth of calls", prepare.depth, "at most 20")
    yield Measure("notice to release: files", len(notice.files), "at most 75", sorted(notice.files))


def tree_measures() -> Iterator[Measure]:
    """Yield the measures of the repository."""
    yield Measure("files in the tree", len(git("ls-files").splitlines()), "at most 2,300")


def git(*arguments: str) -> str:
    """Return the output of git in the repository.

    Raises:
        NotMeasuredError: git is missing or fails, as in a source distribution.
    """
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotMeasuredError(f"git {' '.join(arguments)}: {getattr(error, 'stderr', None) or error}") from error


GROUPS = (python_measures, rust_measures, walk_measures, tree_measures)


def measure(groups: Sequence[Callable[[], Iterator[Measure]]]) -> tuple[list[Measure], list[str]]:
    """Return the measures, and a message for each group that has no numbers."""
    measures: list[Measure] = []
    problems: list[str] = []
    for group in groups:
        try:
            measures += group()
        except (NotMeasuredError, OSError, SyntaxError, subprocess.TimeoutExpired) as error:
            problems.append(f"{group.__name__.replace('_', ' ')}: {error}")
    return measures, problems


def table(measures: Sequence[Measure], last: Mapping[str, float], commit: str) -> str:
    """Return the table, with the measures that have a number at the last release only."""
    now = {one.name: one for one in measures}
    rows = [("measure", "now", commit, "target")]
    for name in (*now, *sorted(last.keys() - now.keys())):
        one = now.get(name)
        rows += [(name, number(one.value if one else None), number(last.get(name)), one.target if one else "")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"{name:{widths[0]}}  {value:>{widths[1]}}  {before:>{widths[2]}}  {target}".rstrip()
        for name, value, before, target in rows
    )


def number(value: float | None) -> str:
    """Return a number as the table shows it."""
    return "-" if value is None else f"{value:,.3f}".rstrip("0").rstrip(".")


def main(arguments: Sequence[str]) -> int:
    """Print the table; return 1 if something has no number."""
    parser = argparse.ArgumentParser(prog="make measures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--details", action="store_true", help="list what is counted")
    parser.add_argument("--record", action="store_true", help=f"write the numbers to {LAST_RELEASE.name}")
    options = parser.parse_args(arguments)
    measures, problems = measure(GROUPS)
    last = json.loads(LAST_RELEASE.read_text())
    print(table(measures, last["numbers"], last["commit"]))
    if options.details:
        for one in measures:
            if one.details:
                print("", f"{one.name}:", *(f"  {line}" for line in one.details), sep="\n")
    for problem in problems:
        print(f"\nnot measured: {problem}", file=sys.stderr)
    if options.record and not problems:
        numbers = {one.name: one.value for one in measures}
        recorded = {"commit": git("rev-parse", "--short=8", "HEAD"), "numbers": numbers}
        LAST_RELEASE.write_text(json.dumps(recorded, indent=1) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

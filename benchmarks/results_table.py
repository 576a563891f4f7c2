"""Prints the measures of a benchmark: measured, compared with, ratio, target, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from results import Machine, Measure, save

HEADER = ("measure", "measured", "compared with", "", "ratio", "target", "holds")
_TEXT = (True, False, False, True, False, True, True)
"""Columns that are aligned to the left."""


def publish(benchmark: str, measures: Iterable[Measure], machine: Machine, *, directory: Path | None = None) -> None:
    """Write the results of a benchmark, and print them."""
    path, results = save(benchmark, measures, machine, directory=directory)
    one = results.machine
    print(f"{benchmark} at {results.revision}: {one.cpu}, {one.cores} CPUs, Linux {one.kernel}, load {one.load:.1f}")
    print("\n".join(table(results.measures)))
    print(f"written to {path}", flush=True)


def table(measures: Iterable[Measure]) -> list[str]:
    """Return the lines of the table. A missed target is part of it and never a failure: the machine may be busy."""
    return columns([HEADER, *(_row(measure) for measure in measures)], _TEXT)


def columns(rows: list[tuple[str, ...]], text: tuple[bool, ...]) -> list[str]:
    """Return the rows with aligned columns; `text` names those that are aligned to the left."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(text))]
    return [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, text, strict=True)
        ).rstrip()
        for row in rows
    ]


def _row(measure: Measure) -> tuple[str, ...]:
    reference, ratio, holds = measure.reference_value, measure.ratio, measure.holds
    return (
        measure.name,
        f"{number(measure.value)} {measure.unit}",
        "" if reference is None else number(reference),
        measure.compared_with,
        "" if ratio is None else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.4f}",
        "" if measure.target is None else str(measure.target),
        "" if holds is None else "yes" if holds else "NO",
    )


def number(value: float) -> str:
    """Return a number with at least three significant digits."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"

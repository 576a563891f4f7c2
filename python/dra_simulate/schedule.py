"""Schedules of the load of a simulated GPU: CSV files with utilization, memory and power by seconds."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from dra_agent import user_file
from dra_agent.errors import UsageError
from dra_simulate.nvml import LoadStep

MAX_FILE_BYTES = 16 << 20
COLUMNS = ("seconds", "gpu_percent", "memory_percent", "memory_mib", "power_watts")
_MAX = {
    "seconds": 10 * 365 * 86400.0,
    "gpu_percent": 100.0,
    "memory_percent": 100.0,
    "memory_mib": float(1 << 30),
    "power_watts": 1e6,
}
_HINT = f"the first line is {','.join(COLUMNS)}, and each other line has these numbers from that second on"


def read_schedule(path: Path) -> tuple[LoadStep, ...]:
    """Read a schedule. Raises UsageError with the file, the line and the column."""
    try:
        text = user_file.read(path, MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path), hint=_HINT) from error
    rows = csv.reader(text.splitlines())
    if tuple(name.strip() for name in next(rows, ())) != COLUMNS:
        raise UsageError("is not a schedule of load", where=f"{path}:1", hint=_HINT)
    steps: list[LoadStep] = []
    for row in rows:
        if not row:
            continue
        where = f"{path}:{rows.line_num}"
        if len(row) != len(COLUMNS):
            raise UsageError(f"has {len(row)} values", where=where, hint=_HINT)
        values = {name: _number(name, value, where) for name, value in zip(COLUMNS, row, strict=True)}
        step = LoadStep(
            at_ms=round(values["seconds"] * 1000),
            utilization=(round(values["gpu_percent"]), round(values["memory_percent"])),
            memory_bytes=round(values["memory_mib"] * (1 << 20)),
            power_milliwatts=round(values["power_watts"] * 1000),
        )
        if not steps and step.at_ms != 0:
            raise UsageError("seconds: the first is not 0", where=where, hint=_HINT)
        if steps and step.at_ms <= steps[-1].at_ms:
            raise UsageError("seconds: it is not later than the line before", where=where, hint=_HINT)
        steps.append(step)
    if not steps:
        raise UsageError("has no load", where=str(path), hint=_HINT)
    return tuple(steps)


def _number(column: str, text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MAX[column]:
        raise UsageError(f"{column}: {text!r} is not a number from 0 to {_MAX[column]:g}", where=where, hint=_HINT)
    return value

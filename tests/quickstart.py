"""The quickstarts of README.md: the lines of the block below a heading, and how long each of them takes.

A test of a quickstart writes target/quickstarts/NAME.json; docs/reference/support.md has the values of one run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
REPORTS = ROOT / "target/quickstarts"
IMAGE = "registry.example.com/dra-agent"


def lines(heading: str) -> list[str]:
    """Return the commands of the first `sh` block below the heading, one per line, as they are pasted."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", README.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None, f"README.md has no section {heading!r}"
    block = re.search(r"^```sh\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)
    assert block is not None, f"{heading!r} has no commands"
    return block[1].splitlines()


def timed(commands: Iterable[str], file: Path) -> list[str]:
    """Return the commands for one bash, with the time before and after each of them appended to a file."""
    stamp = f'echo "$EPOCHREALTIME" >> {file}'
    return [stamp, *(line for command in commands for line in (command, stamp))]


def record(heading: str, commands: Sequence[str], file: Path, *, left_out: str) -> dict[str, Any]:
    """Write the report of a run whose times are in a file, print its duration, and return it.

    `left_out` states which lines were not run, or not run as a user does.
    """
    # The decimal point of $EPOCHREALTIME is that of the locale.
    times = [float(line.replace(",", ".")) for line in file.read_text().splitlines()]
    assert len(times) == len(commands) + 1, f"{len(times)} times of {len(commands)} commands"
    durations = [round(after - before, 2) for before, after in itertools.pairwise(times)]
    report = {
        "quickstart": heading,
        "seconds": round(times[-1] - times[0], 1),
        "lines": [{"command": line, "seconds": s} for line, s in zip(commands, durations, strict=True)],
        "left out": left_out,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "CPUs": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    REPORTS.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", heading.lower())
    (REPORTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"quickstart {heading!r}: {report['seconds']} s at load {report['load']}, without {left_out}")
    return report

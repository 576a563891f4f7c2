"""benchmarks/standalone.py on a short queue: every measure with its target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from results import load

from eventually import DEADLINE_S

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "standalone.py"


def test_a_short_queue_is_measured(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, SCRIPT, "--quick", "--results", tmp_path]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=10 * DEADLINE_S)
    measures = {measure.name: measure for measure in load(tmp_path / "standalone.json").measures}
    for kind in ("equal", "different", "selective"):
        targets = {
            name.partition(": ")[2]: (one.unit, one.target.limit)
            for name, one in measures.items()
            if kind in name and one.target is not None
        }
        assert targets == {
            "applied and tried": ("s", 10.0),
            "list during apply, p99": ("s", 0.5),
            "a freed device": ("ms", 50.0),
            "stop": ("s", 2.0),
            "restart": ("s", 2.0),
        }

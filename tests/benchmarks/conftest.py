"""Imports the modules of the benchmarks that have tests. Benchmarks are scripts: their folder is not on the path."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_SCRIPTS = str(Path(__file__).resolve().parents[2] / "benchmarks")

# Only meanwhile: later, names like `agent` are folders of tests.
sys.path.insert(0, _SCRIPTS)
try:
    for _name in ("results", "results_table", "compare", "fleet", "process_memory", "scan_tree", "uevent"):
        importlib.import_module(_name)
finally:
    sys.path.remove(_SCRIPTS)

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from oracle import go

HERE = Path(__file__).parent
ORACLE = HERE.parent / "oracle" / "cel"

Query = dict[str, Any]
Outcome = dict[str, Any]
Evaluate = Callable[[Sequence[Query]], list[Outcome]]
Devices = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def devices() -> Devices:
    """Named devices with their drivers."""
    found: Devices = json.loads((HERE / "devices.json").read_text())
    return found


@pytest.fixture(scope="session")
def evaluate_with_kubernetes() -> Evaluate:
    """Evaluate with Kubernetes' own CEL code, built from `tests/oracle/cel`."""
    binary = go.build(ORACLE, "cel")

    def evaluate(queries: Sequence[Query]) -> list[Outcome]:
        lines = "".join(json.dumps(query) + "\n" for query in queries)
        result = subprocess.run([binary], input=lines, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in result.stdout.splitlines()]

    return evaluate

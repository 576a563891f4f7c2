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

Question = dict[str, Any]
Answer = dict[str, Any]
Ask = Callable[[Sequence[Question]], list[Answer]]
Devices = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def devices() -> Devices:
    """Named devices with their drivers."""
    found: Devices = json.loads((HERE / "devices.json").read_text())
    return found


@pytest.fixture(scope="session")
def ask_kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Kubernetes' own CEL code, built from `tests/oracle/cel`."""
    program = go.build(ORACLE, tmp_path_factory.mktemp("oracle") / "cel")

    def ask(questions: Sequence[Question]) -> list[Answer]:
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ask

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ORACLE = HERE.parent / "oracle" / "cel"

Question = dict[str, Any]
Answer = dict[str, Any]


@pytest.fixture(scope="session")
def devices() -> dict[str, dict[str, Any]]:
    """Named devices with their drivers."""
    return json.loads((HERE / "devices.json").read_text())


@pytest.fixture(scope="session")
def ask_kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[Question]], list[Answer]]:
    """Kubernetes' own CEL code, built from `tests/oracle/cel`."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go, to build Kubernetes' own CEL code")
    program = tmp_path_factory.mktemp("oracle") / "cel"
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    build = [go, "build", "-p", "2", "-o", str(program), "."]
    built = subprocess.run(build, cwd=ORACLE, capture_output=True, text=True, env=environment)
    if built.returncode != 0:
        pytest.skip(f"needs Kubernetes' Go modules: {built.stderr.strip().splitlines()[-1:]}")

    def ask(questions: Sequence[Question]) -> list[Answer]:
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ask

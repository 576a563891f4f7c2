"""Tests wait with tests/eventually.py only, whose deadline suits slow machines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
EXCEPTIONS = {
    "agent/test_update_under_load.py": "prepares claims repeatedly while an instance ends",
    "cel/test_budget.py": "counts loop iterations during an evaluation",
    "cluster": "scenarios of a real cluster have their own helpers and deadlines",
    "eventually.py": "the helper",
    "faults": "standalone programs that report broken guarantees",
    "inventory/test_amd_mode_transition.py": "tests how long a device is published",
    "mutants/plugin.py": "a standalone program that ends slow test runs",
    "prepare/test_sharing.py": "keeps two agents busy",
    "publish/test_publisher.py": "changes devices continuously",
    "reclaim/fake_logind.py": "a server",
    "soak/soak.py": "a standalone program that measures an agent over hours",
    "device_setup/mps_control.py": "a fake MPS control program that hangs",
}


def loops_that_sleep(path: Path) -> Iterator[int]:
    """Yield the lines of `while` loops that call a `sleep`."""
    for loop in ast.walk(ast.parse(path.read_text())):
        if isinstance(loop, ast.While) and any(
            isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "sleep"
            for call in ast.walk(loop)
        ):
            yield loop.lineno


def is_excepted(name: str) -> bool:
    return any(name == exception or name.startswith(f"{exception}/") for exception in EXCEPTIONS)


def test_no_test_has_its_own_wait_loop() -> None:
    found = [
        f"tests/{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if not is_excepted(str(path.relative_to(TESTS)))
        for line in loops_that_sleep(path)
    ]
    assert not found, f"wait with eventually or eventually_async of tests/eventually.py: {found}"


def test_every_exception_has_a_reason_and_is_needed() -> None:
    for name, reason in EXCEPTIONS.items():
        path = TESTS / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        assert reason and any(any(loops_that_sleep(file)) for file in files), name


def test_no_python_test_has_a_tight_timeout() -> None:
    """A timeout of a test detects hangs; below ten minutes it fails on slow machines."""
    marked = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("test_*.py"))
        if path.parts[len(TESTS.parts)] != "cluster" and "mark." + "timeout(" in path.read_text()
    ]
    assert not marked, f"the timeout of pyproject.toml is for every test: {marked}"

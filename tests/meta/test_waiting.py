"""Tests wait in one way: with tests/eventually.py, whose deadline is right for slow machines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
EXCEPTIONS = {
    "agent/test_update_under_load.py": "prepares claims again and again while an instance ends",
    "cel/test_budget.py": "counts the turns that another thread leaves",
    "cluster": "scenarios of a real cluster have helpers and deadlines of their own",
    "eventually.py": "the helper",
    "faults": "programs of their own that report broken promises",
    "inventory/test_amd_mode_transition.py": "the time for which a device is offered is the subject",
    "mutants/plugin.py": "a program of its own that ends a test run which takes too long",
    "prepare/test_sharing.py": "keeps two agents busy",
    "publish/test_publisher.py": "changes devices all the time",
    "reclaim/fake_logind.py": "a server",
    "soak/soak.py": "a program of its own that measures an agent over hours",
    "device_setup/mps_control.py": "a program that stands for NVIDIA's, and hangs",
}


def loops_that_sleep(path: Path) -> Iterator[int]:
    """The lines of `while` loops with a call of something's `sleep` in them."""
    for loop in ast.walk(ast.parse(path.read_text())):
        if isinstance(loop, ast.While) and any(
            isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "sleep"
            for call in ast.walk(loop)
        ):
            yield loop.lineno


def excepted(name: str) -> bool:
    return any(name == exception or name.startswith(f"{exception}/") for exception in EXCEPTIONS)


def test_no_test_has_a_wait_loop_of_its_own() -> None:
    found = [
        f"tests/{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if not excepted(str(path.relative_to(TESTS)))
        for line in loops_that_sleep(path)
    ]
    assert not found, f"wait with eventually or eventually_async of tests/eventually.py: {found}"


def test_every_exception_has_a_reason_and_is_needed() -> None:
    for name, reason in EXCEPTIONS.items():
        path = TESTS / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        assert reason and any(any(loops_that_sleep(file)) for file in files), name


def test_no_python_test_has_a_tight_timeout() -> None:
    """A timeout for a test finds one that hangs; below ten minutes it finds slow machines."""
    marked = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("test_*.py"))
        if path.parts[len(TESTS.parts)] != "cluster" and "mark." + "timeout(" in path.read_text()
    ]
    assert not marked, f"the timeout of pyproject.toml is for every test: {marked}"

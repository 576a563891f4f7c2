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

FIXED_SLEEPS: dict[str, tuple[int, str]] = {
    "agent/test_interfaces.py": (1, "delays a call of the library"),
    "agent/test_update_under_load.py": (1, "the pace of claims"),
    "cel/test_budget.py": (1, "counts loop iterations during an evaluation"),
    "device_setup/hung.py": (1, "a simulated kernel that hangs"),
    "device_setup/mps_control.py": (2, "a fake MPS control program that hangs"),
    "inventory/test_amd_mode_transition.py": (2, "the time that a driver needs after a change"),
    "kubelet_plugin/conftest.py": (1, "a claim that does not arrive"),
    "mutants/plugin.py": (1, "a standalone program that ends slow test runs"),
    "prepare/test_real_ledger.py": (1, "a random moment of SIGKILL"),
    "prepare/test_sharing.py": (3, "keeps two agents busy, and kills one at a random moment"),
    "publish/test_any_sequence.py": (2, "the time between two random events"),
    "publish/test_many_reflectors.py": (6, "virtual time"),
    "publish/test_publisher.py": (2, "blocks the event loop until a retry is due"),
    "reclaim/fake_logind.py": (1, "a server"),
    "reclaim/test_release_hook.py": (1, "the random moment of a cancellation"),
}
"""Files with `sleep` for a fixed time, how often, and for what: a pace, a random moment, or a server or program that is
slow on purpose. A test that something does not happen waits for a later event.
"""


def loops_that_sleep(path: Path) -> Iterator[int]:
    """Yield the lines of `while` loops that call a `sleep`."""
    for loop in ast.walk(ast.parse(path.read_text())):
        if isinstance(loop, ast.While) and any(
            isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "sleep"
            for call in ast.walk(loop)
        ):
            yield loop.lineno


def fixed_sleeps(path: Path) -> Iterator[int]:
    """Yield the lines of calls of `time.sleep` and `asyncio.sleep` for more than 0 seconds."""
    for call in ast.walk(ast.parse(path.read_text())):
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep"), args=[duration]
            ) if not (isinstance(duration, ast.Constant) and duration.value == 0):
                yield call.lineno


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


def test_no_test_waits_for_a_fixed_time() -> None:
    """Such a test passes although the event would happen later, and takes that time on every machine."""
    names = {str(path.relative_to(TESTS)): path for path in sorted(TESTS.rglob("*.py"))}
    excluded = ("cluster/", "eventually.py", "faults/", "soak/")
    found = {
        name: lines
        for name, path in names.items()
        if not name.startswith(excluded)
        if len(lines := sorted(fixed_sleeps(path))) != FIXED_SLEEPS.get(name, (0, ""))[0]
    }
    assert not found, f"wait for a later event, or adapt the count in FIXED_SLEEPS: {found}"
    assert all(name in names and reason for name, (_, reason) in FIXED_SLEEPS.items())


def test_fixed_sleeps_are_found(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text("time.sleep(1)\nasyncio.sleep(0)\nawait asyncio.sleep(delay)\nevent.wait(1)\n")
    assert sorted(fixed_sleeps(path)) == [1, 3]


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

"""The mutation driver: its operators, its exclusions, and that it detects a failing test."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eventually import DEADLINE_S
from mutants.campaign import MUTATED, Record
from mutants.operators import Module, modules
from mutants.plugin import DEADLINE
from mutants.tree import ROOT, SOURCE

EXAMPLE = '''"""A docstring."""
import logging
log = logging.getLogger(__name__)
WAIT_S = 30.0
SIZE_BYTES = 1 << 20
NAME = "a"
_HINT = "do it"

def f(a, b=1, *, c="x"):
    """Another one."""
    if a < b and not c:
        log.warning("a text", extra={"a": a})
        raise ValueError(f"wrong: {a}", "and a text")
    hint = "do it"
    extra = {"todo": hint}
    extra["a"] = a
    extra |= {"b": b}
    log.error("another text", extra=extra | {"todo": hint})
    create_task(g(a), name="a name")
    for x, y in zip(a, b, strict=True):
        g(x, y)
    try:
        return [x for x in g(a, key=b) if x]
    except OSError:
        return None
'''

TESTS = "tests/kubelet_plugin/test_sockets.py"
UNTESTED = "b'='"
"""The characters stripped from the end of a name. Tests do not cover another set."""


@pytest.fixture
def example(tmp_path: Path) -> Module:
    (tmp_path / "example.py").write_text(EXAMPLE)
    return Module(tmp_path, "example.py")


def test_mutation_operators_make_the_expected_changes(example: Module) -> None:
    assert [(mutant.operator, mutant.before, mutant.after) for mutant in example.mutants if mutant.lines[0] > 7] == [
        ("constant", "1", "2"),
        ("constant", "'x'", "'XXx'"),
        ("and/or", "a < b and (not c)", "a < b or not c"),
        ("comparison", "a < b", "a <= b"),
        ("comparison", "a < b", "a >= b"),
        ("drop not", "not c", "c"),
        ("drop statement", "raise ValueError(f'wrong: {a}', 'and a text')", "pass"),
        ("drop statement", "create_task(g(a), name='a name')", "pass"),
        ("drop statement", "g(x, y)", "pass"),
        ("return None", "return [x for x in g(a, key=b) if x]", "return None"),
        ("drop filter", "[x for x in g(a, key=b) if x]", "[x for x in g(a, key=b)]"),
        ("drop key=", "g(a, key=b)", "g(a)"),
        ("handler", "except OSError: return None", "except OSError: raise"),
    ]
    assert [mutant.before for mutant in example.mutants if mutant.lines[0] <= 7] == ["NAME = 'a'", "'a'"]


def test_a_mutant_differs_from_the_original_in_one_place(example: Module) -> None:
    for mutant in example.mutants:
        before, after = (ast.unparse(tree).splitlines() for tree in (example.tree, example.mutated(mutant)))
        different = set(before) ^ set(after)
        assert 1 <= len(different) <= 3, mutant


@pytest.mark.parametrize("package", MUTATED)
def test_every_mutant_compiles(package: str) -> None:
    for file in modules(SOURCE, [package]):
        module = Module(SOURCE, file)
        original = ast.dump(module.tree)
        for mutant in {mutant.operator: mutant for mutant in module.mutants}.values():
            changed = module.mutated(mutant)
            assert dumps(changed, module.tree) != dumps(module.tree, changed), mutant
            compile(changed, file, "exec")
        assert ast.dump(module.tree) == original, "a mutant leaves the module unchanged"


def dumps(module: ast.Module, other: ast.Module) -> list[str]:
    """Dump the statements that another module does not share."""
    shared = set(map(id, other.body))
    return [ast.dump(statement) for statement in module.body if id(statement) not in shared]


def test_covering_tests_are_ordered_by_duration(example: Module) -> None:
    record = Record()
    record.add(
        {
            "": {"lines": {"example.py": [1, 2, 3, 4, 5, 6, 7]}},
            "slow": {"seconds": 3.0, "outcome": "passed", "lines": {"example.py": [11, 13]}},
            "quick": {"seconds": 0.1, "outcome": "passed", "lines": {"example.py": [11, 15]}},
            "elsewhere": {"seconds": 0.1, "outcome": "passed", "lines": {"other.py": [8]}},
            "process": {"seconds": 9.0, "outcome": "passed", "lines": {}, "functions": ["example.py:9"]},
            "broken": {"seconds": 0.1, "outcome": "failed", "lines": {"example.py": [11, 13, 15]}},
        }
    )
    comparison = next(mutant for mutant in example.mutants if mutant.operator == "comparison")

    def every(test: str) -> bool:
        return True

    assert record.covering(comparison, 60.0, every) == ["quick", "slow", "process"]
    assert record.covering(comparison, 5.0, every) == ["quick", "slow"]
    assert record.covering(comparison, 0.01, every) == ["quick"]
    assert record.covering(comparison, 60.0, lambda test: test != "quick") == ["slow", "process"]
    raised = next(mutant for mutant in example.mutants if mutant.before.startswith("raise"))
    assert record.covering(raised, 60.0, every) == ["slow", "process"]
    assert record.excluded == {"broken": "failed"}


def test_mutants_are_killed_only_where_a_test_asserts(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    file = "dra_agent/kubelet_plugin/sockets.py"
    mutants = {
        mutant.name: mutant
        for mutant in Module(SOURCE, file).mutants
        if mutant.before in {"'plugins'", "'dra.sock'", UNTESTED}
    }
    names = [word for name in mutants for word in ("--mutant", name)]
    command = [sys.executable, "-m", "mutants.campaign", "--package", "kubelet_plugin", "--tests", TESTS, *names]
    done = subprocess.run(
        [*command, "--target", str(tmp_path / "target"), "--workers", "1", "--results", str(results)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), DEADLINE: str(DEADLINE_S)},
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE_S,
    )
    verdicts = {mutants[entry["name"]].before: entry["verdict"] for entry in json.loads(results.read_text())}
    assert verdicts == {"'plugins'": "killed", "'dra.sock'": "killed", UNTESTED: "survived"}, done.stdout
    assert done.returncode == 1, "two of three are less than nine of ten"

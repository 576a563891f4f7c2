"""Constants state their unit: a reader does not look up whether a number is in seconds or milliseconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("python", "tests", "benchmarks", "deploy", "demo")
UNITS = re.compile(r".*_(?:S|MS|NS|US|BYTES|MIB|HZ|WATTS|JOULES|PERCENT|SHARE|FACTOR|RATIO|TOLERANCE|PER_[A-Z]+)")
COUNTS = re.compile(r"_?(?:MAX|MIN)_.*")
"""A limit without a unit is one of a count or a ratio, such as MAX_SLOWDOWN."""
EXCEPTIONS = {"CONFIDENCE": "a probability"}
_ARITHMETIC = re.compile(
    r"^(_?[A-Z][A-Z0-9_]*)[ \t]*(?::[^=\n]*)?=[ \t]*[\w.+\-*/%()&|^~<> \t]*\\?(?:#.*)?$", re.MULTILINE
)
"""The first line of each constant that can be arithmetic: to parse all modules takes many times longer."""


def without_unit(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and names of constants of a module with a fraction as value, and no unit in their name."""
    if not any(_lacks_unit(constant[1]) for constant in _ARITHMETIC.finditer(text)):
        return
    for statement in ast.parse(text).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name) and _lacks_unit(name) and _is_number(value):
                yield statement.lineno, name


def _lacks_unit(name: str) -> bool:
    return not UNITS.fullmatch(name) and not COUNTS.fullmatch(name) and name not in EXCEPTIONS


def _is_number(value: ast.expr) -> bool:
    """Whether this is arithmetic with a fraction. Integers may be identifiers of a kernel or a library."""
    nodes = list(ast.walk(value))
    plain = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Name, ast.Load)
    return all(isinstance(node, plain) for node in nodes) and any(
        isinstance(node, ast.Constant) and isinstance(node.value, float) for node in nodes
    )


def test_constants_with_a_fraction_state_their_unit() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in without_unit(path.read_text())
    ]
    assert not found, f"end the name with the unit, such as _S, _BYTES or _SHARE: {found}"


def test_constants_without_unit_are_found() -> None:
    text = (
        "WAIT = 1.0\nWAIT_S = 1.0\nMAX_LOAD = 2.0\nCOUNT = 3\n_PAUSE: float = 2 * 0.5\nnow = 1.0\nTIMES = (0.5, 1.0)\n"
    )
    assert list(without_unit(text)) == [(1, "WAIT"), (5, "_PAUSE")]
    for statement in ("WAIT = 1.0  # a comment\n", "WAIT: float = (\n    1e3\n    - 1\n)\n", "WAIT = \\\n    0.5\n"):
        assert list(without_unit(f"import os\n{statement}")) == [(2, "WAIT")], statement

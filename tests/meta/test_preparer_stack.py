"""The decorators of claim preparers are stacked in one module: its order is the one that a reader sees."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python/dra_agent"
STACK = "agent/preparer_stack.py"


@cache
def modules() -> dict[str, str]:
    """Return the texts of the package: only those with a name that is searched are parsed."""
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}


def wraps_a_preparer(node: ast.ClassDef) -> bool:
    methods = {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}
    if not {"__init__", "prepare", "unprepare"} <= methods.keys():
        return False
    return any(argument.arg == "preparer" for argument in methods["__init__"].args.args)


@cache
def decorators() -> frozenset[str]:
    return frozenset(
        node.name
        for text in modules().values()
        if "preparer" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and wraps_a_preparer(node)
    )


def created_in(text: str) -> set[str]:
    if not any(name in text for name in decorators()):
        return set()
    calls = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return {func.id for func in calls if isinstance(func, ast.Name) and func.id in decorators()}


def test_every_decorator_is_created_in_the_stack() -> None:
    assert len(decorators()) >= 5
    assert created_in(modules()[STACK]) == decorators()


def test_no_other_module_creates_a_decorator() -> None:
    assert not {path: names for path, text in modules().items() if path != STACK and (names := created_in(text))}

"""The decorators of claim preparers are stacked in one module: its order is the one that a reader sees."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python/dra_agent"
STACK = "agent/preparer_stack.py"
MODULES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def wraps_a_preparer(node: ast.ClassDef) -> bool:
    methods = {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}
    if not {"__init__", "prepare", "unprepare"} <= methods.keys():
        return False
    return any(argument.arg == "preparer" for argument in methods["__init__"].args.args)


DECORATORS = {
    node.name
    for tree in MODULES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef) and wraps_a_preparer(node)
}


def created_in(tree: ast.Module) -> set[str]:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {func.id for func in calls if isinstance(func, ast.Name) and func.id in DECORATORS}


def test_every_decorator_is_created_in_the_stack() -> None:
    assert len(DECORATORS) > 5
    assert created_in(MODULES[STACK]) == DECORATORS


def test_no_other_module_creates_a_decorator() -> None:
    assert not {path: names for path, tree in MODULES.items() if path != STACK and (names := created_in(tree))}

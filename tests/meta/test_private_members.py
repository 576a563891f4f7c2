"""Tests use what the code offers to others: none reads, calls or replaces a private member of an object or module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = [path for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__)]
PRIVATE = re.compile(r"_[A-Za-z]\w*")
OWN = frozenset({"self", "cls", "super()"})
"""What a class may use private members of."""
BY_NAME = frozenset({"setattr", "getattr", "delattr", "hasattr", "setitem", "patch", "object"})
"""Functions that take the name of a member as a string."""
PUBLIC = {
    "_native": "the name of the extension module",
    "os._exit": "documented: the end of a forked process",
    "_replace": "documented: a method of named tuples",
    "_fields_": "documented: the fields of a ctypes structure",
    "ctypes._Pointer": "documented: the base of ctypes pointers",
    "ctypes._SimpleCData": "documented: the base of ctypes numbers",
}
"""Members with an underscore that are not private: a member's name, or the whole expression, and the reason."""
EXCEPTIONS: dict[str, dict[str, str]] = {
    "inventory/test_fabric.py": {"reference._obj": "ctypes has no public way from a reference to its object"},
    "inventory/test_mig_pairs.py": {
        "'_nvmlGetFunctionPointer_cache'": "pynvml keeps the functions of the library that it loaded first",
    },
    "kubelet_plugin/test_received_request.py": {
        "served._server": "gRPC lists the calls in progress only in the state of its server",
        "served._server._state": "as above",
    },
    "mutants/plugin.py": {
        "self._session.config._tmp_path_factory": "pytest has no public way to give a forked child its own directory",
        "factory._given_basetemp": "as above",
        "factory._basetemp": "as above",
    },
    "preloaded/server.py": {
        "threading._shutdown": "a forked child ends as the interpreter does, which has no public function for it",
        "atexit._run_exitfuncs": "as above",
    },
    "standalone/test_many_claims.py": {
        "service_module._shut_down": "idle pools get no deadline: how fast they end depends on the machine",
        "'_shut_down'": "as above",
        "agent.service._stepper": "as above: the pool that keeps its deadline",
    },
}
"""Private members that a test needs: file, expression, reason."""


def uses(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the lines, expressions and names of private members that do not belong to the class that uses them."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value, name) if PRIVATE.fullmatch(name) and ast.unparse(value) not in OWN:
                yield node.lineno, ast.unparse(node), name
            case ast.ImportFrom(names=names):
                yield from ((node.lineno, one.name, one.name) for one in names if PRIVATE.fullmatch(one.name))
            case ast.Call(ast.Name(called) | ast.Attribute(attr=called), arguments) if called in BY_NAME:
                for argument in arguments:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        name = argument.value.rpartition(".")[2]
                        if PRIVATE.fullmatch(name):
                            yield argument.lineno, ast.unparse(argument), name


def found(path: Path) -> list[tuple[int, str]]:
    """Return the lines and expressions of a file that use private members."""
    used = uses(ast.parse(path.read_text()))
    return [(line, text) for line, text, name in used if name not in PUBLIC and text not in PUBLIC]


def test_tests_use_no_private_members() -> None:
    problems = []
    for path in FILES:
        name = str(path.relative_to(TESTS))
        allowed = EXCEPTIONS.get(name, {})
        problems += [f"{name}:{line}: {text}" for line, text in found(path) if text not in allowed]
    assert problems == [], "use public behavior, or give the member a public, meaningful name"


def test_every_exception_is_needed() -> None:
    unused = {
        name: sorted(exceptions.keys() - {text for _, text in found(TESTS / name)})
        for name, exceptions in EXCEPTIONS.items()
    }
    assert {name: texts for name, texts in unused.items() if texts} == {}


@pytest.mark.parametrize(
    "line",
    [
        "thing._work.clear()",
        "self.thing._work",
        "monkeypatch.setattr(thing, '_work', None)",
        "monkeypatch.setattr('package.module._WORK', None)",
        "getattr(thing, '_work')",
        "from module import _work",
        "type(self)._work",
    ],
)
def test_a_private_member_is_found(line: str) -> None:
    assert [name.lower() for _, _, name in uses(ast.parse(line))] == ["_work"]


@pytest.mark.parametrize(
    "line", ["self._work", "cls._work()", "super()._work()", "thing.__dict__", "thing.work", "setattr(thing, 'a_b', 1)"]
)
def test_own_and_public_members_are_allowed(line: str) -> None:
    assert list(uses(ast.parse(line))) == []

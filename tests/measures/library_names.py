"""Private names of libraries that the code uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from measures.python_code import Module

PRIVATE = re.compile(r"_[A-Za-z]\w*")
DOCUMENTED = {
    "os._exit": "the end of a forked process",
    "sys._current_frames": "the stacks of all threads",
    "ctypes._Pointer": "the base of ctypes pointers",
    "ctypes._SimpleCData": "the base of ctypes numbers",
    "_asdict": "a method of named tuples",
    "_fields": "an attribute of named tuples",
    "_make": "a method of named tuples",
    "_replace": "a method of named tuples",
    "_fields_": "an attribute of ctypes structures",
    "_length_": "an attribute of ctypes arrays",
    "_type_": "an attribute of ctypes arrays and pointers",
}
"""Names with an underscore that the documentation of Python describes."""
BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr"})
CHANGES = frozenset({"pop", "setdefault", "update", "clear"})


def private_names(of: Sequence[Module]) -> list[str]:
    """Return each use of a private name of a library, as `module:line: expression`.

    A private name is one of a module outside these packages; or of an object, if the packages define no such name. A
    change of `sys.modules` replaces a module of a library, and counts too. Generated code does not count.
    """
    own = {name for module in of for name in _defined(module)}
    packages = {_first(module.name) for module in of}
    found = []
    for module in of:
        if not module.name.endswith("_pb2"):
            used = {(line, text) for line, text, name in _uses(module, packages, own) if name not in DOCUMENTED}
            found += [f"{module.name}:{line}: {text}" for line, text in sorted(used) if text not in DOCUMENTED]
    return found


def _defined(module: Module) -> Iterator[str]:
    """Yield the names that functions, classes and assignments of a module define."""
    for node in module.nodes:
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Name(name, ast.Store()) | ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                yield name


def _uses(module: Module, packages: AbstractSet[str], own: AbstractSet[str]) -> Iterator[tuple[int, str, str]]:
    """Yield line, expression and name of each use."""
    libraries: set[str] = set()
    for line, name, local in _imports(module, packages):
        libraries.add(local)
        yield from _in_text(line, name)
    for node in module.nodes:
        match node:
            case ast.Attribute(_, name) if PRIVATE.fullmatch(name) and (_root(node) in libraries or name not in own):
                yield node.lineno, ast.unparse(node), name
            case ast.Call(ast.Name(called), [_, ast.Constant(str(name)), *_]) if called in BY_NAME:
                if PRIVATE.fullmatch(name) and name not in own:
                    yield node.lineno, ast.unparse(node), name
            case ast.Call(ast.Name("import_module") | ast.Attribute(attr="import_module"), [ast.Constant(str(name))]):
                yield from _in_text(node.lineno, name)
            case ast.Subscript(value, _, ast.Store() | ast.Del()) if ast.unparse(value) == "sys.modules":
                yield node.lineno, ast.unparse(node), "sys.modules"
            case ast.Call(ast.Attribute(value, change)) if change in CHANGES and ast.unparse(value) == "sys.modules":
                yield node.lineno, ast.unparse(node), "sys.modules"


def _imports(module: Module, packages: AbstractSet[str]) -> Iterator[tuple[int, str, str]]:
    """Yield line, full name and name in the module of what is imported from libraries."""
    for node in module.nodes:
        match node:
            case ast.Import(names):
                for one in names:
                    if _first(one.name) not in packages:
                        yield node.lineno, one.name, one.asname or _first(one.name)
            case ast.ImportFrom(str(library), names, 0) if _first(library) not in packages:
                for one in names:
                    yield node.lineno, f"{library}.{one.name}", one.asname or one.name


def _in_text(line: int, dotted: str) -> Iterator[tuple[int, str, str]]:
    if any(PRIVATE.fullmatch(part) for part in dotted.split(".")):
        yield line, dotted, dotted


def _first(dotted: str) -> str:
    return dotted.partition(".")[0]


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""

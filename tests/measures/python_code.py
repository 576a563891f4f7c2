"""What is counted in Python code: sizes, loose modules, circles of imports, callables that constructors get."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from measures.graph import Graph, circles

LONG_LINES = 50
"""Functions with more lines than this are long."""
CALLABLES = frozenset({"Callable", "Awaitable", "Coroutine"})
FIELDS = frozenset({"dataclass", "NamedTuple", "Struct"})
"""A class with one of these as a base or decorator has its fields as parameters of its constructor."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def packages(folder: Path) -> list[str]:
    """Return the names of the packages in a folder."""
    return sorted(path.parent.name for path in folder.glob("*/__init__.py"))


def modules(folder: Path, package: str) -> list[Module]:
    """Return the modules of a package in a folder."""

    def name(path: Path) -> str:
        parts = path.relative_to(folder).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    return [Module(name(path), path) for path in sorted((folder / package).rglob("*.py"))]


@dataclass(frozen=True)
class Size:
    """Sizes of some modules."""

    lines: int
    statements: int
    functions: Sequence[int]
    """Lines of each function, without its decorators."""

    @property
    def statements_per_line(self) -> float:
        return round(self.statements / self.lines, 3) if self.lines else 0

    @property
    def median_function(self) -> float:
        return statistics.median(self.functions) if self.functions else 0

    @property
    def long_functions(self) -> int:
        return sum(lines > LONG_LINES for lines in self.functions)


def size(of: Sequence[Module]) -> Size:
    """Return the size of some modules; empty lines, comments and docstrings are lines too."""
    nodes = [node for module in of for node in module.nodes]
    return Size(
        sum(len(module.text.splitlines()) for module in of),
        sum(isinstance(node, ast.stmt) for node in nodes),
        [(node.end_lineno or 0) - node.lineno + 1 for node in nodes if isinstance(node, _Function)],
    )


def loose_modules(of: Sequence[Module]) -> list[str]:
    """Return the modules that are in no folder of their package, without `__main__`."""
    loose = [module.name for module in of if module.name.count(".") == 1 and not module.is_package]
    return [name for name in loose if not name.endswith(".__main__")]


def import_graph(of: Sequence[Module]) -> dict[str, set[str]]:
    """Return which modules import which, also inside functions and for types only."""
    names = {module.name for module in of}
    return {module.name: _imported(module, names) - {module.name} for module in of}


def _imported(module: Module, names: set[str]) -> set[str]:
    found: set[str] = set()
    for node in module.nodes:
        match node:
            case ast.Import(imported):
                found |= {one.name for one in imported}
            case ast.ImportFrom():
                base = absolute(module, node)
                full = {one: f"{base}.{one.name}" for one in node.names}
                found |= {name if name in names else base for name in full.values()}
    return found & names


def absolute(module: Module, node: ast.ImportFrom) -> str:
    """Return the full name of the module from which something is imported."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def folder_circles(of: Sequence[Module]) -> list[list[str]]:
    """Return the circles inside each folder: its files and sub-folders that import each other.

    The `__init__` of a folder is one of its files.
    """
    graph = import_graph(of)
    return [circle for module in of if module.is_package for circle in circles(_inside(module.name, graph))]


def _inside(folder: str, graph: Graph) -> Graph:
    def child(name: str) -> str:
        return f"{folder}.{name.removeprefix(folder).lstrip('.').partition('.')[0] or '__init__'}"

    inside = {name for name in graph if name == folder or name.startswith(f"{folder}.")}
    children: dict[str, set[str]] = {child(name): set() for name in inside}
    for name in inside:
        children[child(name)] |= {child(other) for other in graph[name] & inside} - {child(name)}
    return children


def callable_parameters(of: Sequence[Module]) -> list[str]:
    """Return the parameters of constructors that are callables or awaitables, as `module.Class.parameter`.

    Fields of dataclasses and the like are parameters of their constructor. An alias of `Callable` counts as `Callable`.
    """
    aliases = _aliases(of)
    found = []
    for module in of:
        names = CALLABLES | _aliases_in(module, aliases)
        for kind in (node for node in module.nodes if isinstance(node, ast.ClassDef)):
            found += [
                f"{module.name}.{kind.name}.{name}"
                for name, annotation in _parameters(kind)
                if not names.isdisjoint(_members(annotation))
            ]
    return found


def _parameters(kind: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield the annotated parameters of the constructor."""
    has_fields = not FIELDS.isdisjoint(_last(node) for node in (*kind.bases, *kind.decorator_list))
    for node in kind.body:
        match node:
            case ast.FunctionDef(name="__init__", args=arguments):
                for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                    if one.annotation is not None:
                        yield one.arg, one.annotation
            case ast.AnnAssign(ast.Name(name), annotation) if has_fields:
                yield name, annotation


def _last(node: ast.expr) -> str:
    """Return the last name of an expression: `dataclass` of `dataclasses.dataclass(frozen=True)`."""
    match node:
        case ast.Call(inner) | ast.Subscript(inner):
            return _last(inner)
        case ast.Attribute(attr=name) | ast.Name(name):
            return name
    return ""


def _members(annotation: ast.expr) -> Iterator[str]:
    """Yield the types of a union, without their parameters."""
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            yield from _members(left)
            yield from _members(right)
        case ast.Subscript(outer, inner) if _last(outer) in {"Optional", "Annotated"}:
            yield from _members(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        case ast.Constant(str(text)):
            yield from _members(ast.parse(text, mode="eval").body)
        case _:
            yield _last(annotation)


def _aliases(of: Sequence[Module]) -> set[str]:
    """Return the full names of aliases of callables, such as `Poll = Callable[[], Result]`."""
    found: set[str] = set()
    for module in of:
        for node in module.tree.body:
            match node:
                case ast.Assign([ast.Name(name)], ast.Subscript() | ast.BinOp() as value) | ast.AnnAssign(
                    ast.Name(name), _, ast.Subscript() | ast.BinOp() as value
                ) if not CALLABLES.isdisjoint(_members(value)):
                    found.add(f"{module.name}.{name}")
    return found


def _aliases_in(module: Module, aliases: set[str]) -> set[str]:
    """Return the aliases as a module names them."""
    found = {alias.removeprefix(f"{module.name}.") for alias in aliases if alias.startswith(f"{module.name}.")}
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom):
            base = absolute(module, node)
            found |= {one.asname or one.name for one in node.names if f"{base}.{one.name}" in aliases}
    return found


def one_method_protocols(of: Sequence[Module]) -> list[str]:
    """Return the protocols with one method and nothing else."""
    return [
        f"{module.name}.{node.name}"
        for module in of
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
        and "Protocol" in map(_last, node.bases)
        and [isinstance(member, _Function) for member in node.body if not _is_text(member)] == [True]
    ]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)

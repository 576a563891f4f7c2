"""The mutants: each is one small change of an expression or statement of a module of the product.

Not mutated, because a test would then assert the wording and not the behavior: docstrings, the arguments of log calls,
the arguments of created exceptions (the type of an exception and `raise` itself are mutated), hints, f-strings. Also
not mutated: annotations and type names, `__all__`, bodies of Protocols, `assert`, `if TYPE_CHECKING`, and the named
numbers of a module or class other than 0 and 1 (timeouts, sizes, `1 << 20`), because a test would only repeat them. The
names of tasks and threads are for people too, and `strict=` of `zip` is an assertion.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitAnd,
}
_LOGGERS = frozenset({"log", "logger", "logging", "warnings"})
_KEYWORDS_WITHOUT_EFFECT = frozenset(
    {("create_task", "name"), ("Thread", "name"), ("ThreadPoolExecutor", "thread_name_prefix"), ("zip", "strict")}
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. `path` leads from the module to the changed node, as (field, index) pairs."""

    file: str
    number: int
    operator: str
    path: tuple[tuple[str, int | None], ...]
    lines: tuple[int, int]
    """The first and last line of the statement, or of the header of a compound statement."""
    functions: tuple[int, ...]
    """The first lines of the enclosing functions, decorators included, outermost first."""
    in_body: bool
    """Whether it is in the body of a function, which does not run when the module is imported."""
    before: str
    after: str

    @property
    def name(self) -> str:
        """A name that is stable as long as the file is."""
        return f"{self.file}#{self.number}"

    def __str__(self) -> str:
        return f"{self.file}:{self.lines[0]} [{self.operator}] {self.before} -> {self.after}"


@dataclass
class _Location:
    path: tuple[tuple[str, int | None], ...]
    functions: tuple[int, ...] = ()
    in_body: bool = False
    lines: tuple[int, int] = (1, 1)


@dataclass
class Module:
    """The mutants of one file."""

    root: Path
    file: str
    tree: ast.Module = field(init=False)
    mutants: list[Mutant] = field(init=False, default_factory=list)
    _replacements: list[ast.AST | None] = field(init=False, default_factory=list)
    _logged: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.tree = ast.parse((self.root / self.file).read_text())
        self._logged = set(_logged(self.tree))
        self._block(self.tree, "body", _Location(()))

    def mutated(self, mutant: Mutant) -> ast.Module:
        """Return the module with the change. Other nodes keep their lines; those that do not contain it are shared."""
        tree = parent = copy.copy(self.tree)
        statement: ast.AST | None = None
        for name, index in mutant.path[:-1]:
            if index is None:
                child = copy.copy(getattr(parent, name))
                setattr(parent, name, child)
            else:
                children = list(getattr(parent, name))
                child = children[index] = copy.copy(children[index])
                setattr(parent, name, children)
            statement = statement or child
            parent = child
        name, index = mutant.path[-1]
        replacement = copy.deepcopy(self._replacements[mutant.number])
        if index is None:
            setattr(parent, name, replacement)
        else:
            siblings = list(getattr(parent, name))
            siblings[index : index + 1] = [] if replacement is None else [replacement]
            setattr(parent, name, siblings)
        ast.fix_missing_locations(statement or tree)
        return tree

    def _add(self, location: _Location, operator: str, old: ast.AST, new: ast.AST | None) -> None:
        if new is not None and isinstance(old, ast.expr | ast.stmt):
            for node in ast.walk(new):
                if isinstance(node, ast.expr | ast.stmt | ast.excepthandler) and not hasattr(node, "lineno"):
                    ast.copy_location(node, old)
        number = len(self.mutants)
        before, after = _short(old), "nothing" if new is None else _short(new)
        self.mutants.append(
            Mutant(
                self.file,
                number,
                operator,
                location.path,
                location.lines,
                location.functions,
                location.in_body,
                before,
                after,
            )
        )
        self._replacements.append(new)

    def _block(self, parent: ast.AST, name: str, location: _Location) -> None:
        for index, statement in enumerate(getattr(parent, name)):
            inner = _Location((*location.path, (name, index)), location.functions, location.in_body, _header(statement))
            self._statement(statement, inner)

    def _statement(self, node: ast.stmt, location: _Location) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(node, location)
        elif isinstance(node, ast.ClassDef):
            if not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                self._block(node, "body", location)
        elif not _is_excluded(node) and not self._is_for_the_log(node) and not _is_named_number_or_hint(node, location):
            for new, operator in _changed_statements(node):
                self._add(location, operator, node, new)
            self._fields(node, location)

    def _is_for_the_log(self, node: ast.stmt) -> bool:
        """Whether it sets a name that log calls pass, or an entry of it, to text or a dict."""
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            target = node.target
        else:
            return False
        if isinstance(target, ast.Subscript):
            return isinstance(target.value, ast.Name) and target.value.id in self._logged
        has_text = isinstance(node.value, ast.Dict) or _is_text(node.value)
        return has_text and isinstance(target, ast.Name) and target.id in self._logged

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, location: _Location) -> None:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        functions = (*location.functions, first)
        for name in ("defaults", "kw_defaults"):
            for index, default in enumerate(getattr(node.args, name)):
                if default is not None:
                    path = (*location.path, ("args", None), (name, index))
                    self._expression(default, _Location(path, functions, location.in_body, location.lines))
        self._block(node, "body", _Location(location.path, functions, True))

    def _fields(self, node: ast.AST, location: _Location) -> None:
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "type_comment", "type_params", "returns"}:
                continue
            if isinstance(value, list):
                if value and isinstance(value[0], ast.stmt):
                    self._block(node, name, location)
                    continue
                for index, entry in enumerate(value):
                    inner = _Location(
                        (*location.path, (name, index)), location.functions, location.in_body, location.lines
                    )
                    self._child(entry, inner)
            elif isinstance(value, ast.AST):
                inner = _Location((*location.path, (name, None)), location.functions, location.in_body, location.lines)
                self._child(value, inner)

    def _child(self, node: Any, location: _Location) -> None:
        if isinstance(node, ast.expr):
            self._expression(node, location)
        elif isinstance(node, ast.ExceptHandler):
            if not (len(node.body) == 1 and isinstance(node.body[0], ast.Raise) and node.body[0].exc is None):
                reraised = ast.ExceptHandler(node.type, node.name, [ast.Raise()])
                lines = (node.body[0].lineno, node.body[0].lineno)
                self._add(
                    _Location(location.path, location.functions, location.in_body, lines),
                    "handler",
                    node,
                    ast.copy_location(reraised, node),
                )
            self._block(node, "body", location)
        elif isinstance(node, ast.AST) and not isinstance(node, ast.expr_context | ast.arguments):
            self._fields(node, location)

    def _expression(self, node: ast.expr, location: _Location) -> None:
        if isinstance(node, ast.JoinedStr):
            return
        if (not location.functions and _is_tunable(node)) or _is_size(node):
            return
        for new, operator in _changed_expressions(node):
            self._add(location, operator, node, new)
        if isinstance(node, ast.Call):
            if _is_wording(node):
                return
            for index, keyword in enumerate(node.keywords):
                if keyword.arg == "hint" and _is_text(keyword.value):
                    continue
                if keyword.arg is not None and (_callee(node), keyword.arg) not in _KEYWORDS_WITHOUT_EFFECT:
                    kept = [other for other in node.keywords if other is not keyword]
                    self._add(location, f"drop {keyword.arg}=", node, ast.Call(node.func, node.args, kept))
                    inner = (*location.path, ("keywords", index), ("value", None))
                    self._expression(
                        keyword.value, _Location(inner, location.functions, location.in_body, location.lines)
                    )
            for name in ("func", "args"):
                value = getattr(node, name)
                for number, entry in enumerate(value if isinstance(value, list) else [value]):
                    inner = (*location.path, (name, number if isinstance(value, list) else None))
                    self._expression(entry, _Location(inner, location.functions, location.in_body, location.lines))
            return
        if isinstance(node, ast.Lambda):
            inner = (*location.path, ("body", None))
            self._expression(node.body, _Location(inner, location.functions, location.in_body, location.lines))
            return
        if isinstance(node, ast.Subscript) and not location.in_body:
            return  # Usually of a type.
        self._fields(node, location)


def _changed_statements(node: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    if is_call or isinstance(node, ast.Raise | ast.Delete | ast.AugAssign):
        yield ast.Pass(), "drop statement"
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        unpacks = isinstance(node, ast.Assign) and any(isinstance(target, ast.Tuple) for target in node.targets)
        if not unpacks and not _is_false(node.value):
            changed = copy.copy(node)
            changed.value = ast.Constant(None)
            yield changed, "assign None"
    elif isinstance(node, ast.Return) and node.value is not None:
        if not _is_false(node.value):
            yield ast.Return(ast.Constant(None)), "return None"
    elif isinstance(node, ast.Return):
        yield ast.Pass(), "drop return"
    elif isinstance(node, ast.Break):
        yield ast.Continue(), "break"
    elif isinstance(node, ast.Continue):
        yield ast.Break(), "continue"
    if isinstance(node, ast.If | ast.While) and _is_plain_condition(node.test):
        changed_test = copy.copy(node)
        changed_test.test = ast.UnaryOp(ast.Not(), node.test)
        yield changed_test, "negate condition"


def _changed_expressions(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    if isinstance(node, ast.Compare):
        for index, operation in enumerate(node.ops):
            for other in _COMPARISONS[type(operation)]:
                operations = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                yield ast.Compare(node.left, operations, node.comparators), "comparison"
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values), "and/or"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand, "drop not"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand, "drop minus"
    elif isinstance(node, ast.BinOp) and not _is_concatenation(node):
        yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right), "arithmetic"
    elif isinstance(node, ast.IfExp) and _is_plain_condition(node.test):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse), "negate condition"
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for index, loop in enumerate(node.generators):
            if loop.ifs:
                without = ast.comprehension(loop.target, loop.iter, [], loop.is_async)
                changed = copy.copy(node)
                changed.generators = [*node.generators[:index], without, *node.generators[index + 1 :]]
                yield changed, "drop filter"
    elif isinstance(node, ast.Constant):
        yield from _changed_constants(node)


def _changed_constants(node: ast.Constant) -> Iterator[tuple[ast.expr, str]]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value), "constant"
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1), "constant"
    elif isinstance(value, str):
        yield ast.Constant(f"XX{value}"), "constant"
    elif isinstance(value, bytes):
        yield ast.Constant(b"XX" + value), "constant"


def _is_false(value: ast.expr) -> bool:
    """Whether most callers treat None like the value. The value itself is mutated instead."""
    return isinstance(value, ast.Constant) and not value.value


def _is_plain_condition(test: ast.expr) -> bool:
    """Whether no other operator already negates the condition."""
    return not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant)


def _is_tunable(node: ast.expr) -> bool:
    """Whether it is a tunable number, such as a duration or size, of a module or class."""
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in (0, 1)


def _is_named_number_or_hint(node: ast.stmt, location: _Location) -> bool:
    """Whether it names a tunable number, or a hint of error messages, of a module or class."""
    if location.functions or not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    is_hint = isinstance(target, ast.Name) and target.id.endswith("HINT")
    return is_hint or _is_tunable(node.value) or _is_size(node.value)


def _is_size(node: ast.expr) -> bool:
    """Whether it is a size or a bit, written as `1 << 20`."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift) and isinstance(node.right, ast.Constant)


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_concatenation(node: ast.BinOp) -> bool:
    """Whether it concatenates text. The opposite operation is only a TypeError."""
    return _is_text(node.left) or _is_text(node.right)


def _is_excluded(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Global | ast.Nonlocal | ast.Pass):
        return True
    if isinstance(node, ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and _is_log(value))
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        value = node.value
        callee = value.func if isinstance(value, ast.Call) else value
        name = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
        if isinstance(value, ast.Subscript) and node.targets[0].id[0].isupper() and not node.targets[0].id.isupper():
            return True  # A type alias.
        return node.targets[0].id in {"__all__", *_LOGGERS} or name in {"TypeVar", "NewType", "ParamSpec"}
    return False


def _is_log(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name.lstrip("_") in _LOGGERS


def _logged(tree: ast.Module) -> Iterator[str]:
    """Yield the names that log calls pass as `extra`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_log(node):
            for keyword in node.keywords:
                if keyword.arg == "extra":
                    yield from (inner.id for inner in ast.walk(keyword.value) if isinstance(inner, ast.Name))


def _is_wording(call: ast.Call) -> bool:
    """Whether it creates an exception, whose text is for people."""
    return _callee(call).endswith(("Error", "Exception")) or _is_log(call)


def _callee(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _header(node: ast.stmt) -> tuple[int, int]:
    """Return the lines that the node itself executes, without its nested blocks."""
    first, last = node.lineno, node.end_lineno or node.lineno
    inner = [
        block[0].lineno
        for name in ("body", "orelse", "finalbody", "handlers")
        if isinstance(block := getattr(node, name, None), list) and block
    ]
    if isinstance(node, ast.Match):
        inner.append(node.cases[0].pattern.lineno)
    if isinstance(node, ast.Try | ast.TryStar):
        return first, inner[0]
    return first, max(first, min(inner) - 1) if inner else last


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 110 else f"{text[:107]}..."


def modules(root: Path, packages: list[str]) -> list[str]:
    """Return the files of packages of the product, relative to the folder `python`."""
    found = (path for name in packages for path in (root / "dra_agent" / name).rglob("*.py"))
    return sorted(str(path.relative_to(root)) for path in found if not path.name.endswith("_pb2.py"))

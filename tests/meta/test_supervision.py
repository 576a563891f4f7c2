"""Tasks are created by the supervisor and threads by `dra_agent.threads`, so that none of them ends without notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python" / "dra_agent"
CREATORS = {PACKAGE / "supervisor.py", PACKAGE / "threads.py"}
TASKS = {"create_task", "ensure_future", "eager_task_factory", "to_thread"}
THREADS = {"Thread", "Timer", "start_new_thread", "ThreadPoolExecutor", "ProcessPoolExecutor"}


def called(node: ast.expr) -> str:
    match node:
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
    return ""


def groups(tree: ast.AST) -> set[str]:
    """Return the names of task groups: their tasks end before their owner, which gets the errors."""
    return {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.context_expr, ast.Call)
        and called(item.context_expr.func) == "TaskGroup"
        and isinstance(item.optional_vars, ast.Name)
    }


def is_daemon_executor(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and called(node.func) == "DaemonExecutor"


def creations(source: str) -> Iterator[int]:
    tree = ast.parse(source)
    owned = groups(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(called(base) in {"Thread", "Timer"} for base in node.bases):
            yield node.lineno
        if not isinstance(node, ast.Call):
            continue
        name, owner = called(node.func), node.func.value if isinstance(node.func, ast.Attribute) else None
        of_group = isinstance(owner, ast.Name) and owner.id in owned
        default = name == "run_in_executor" and isinstance(node.args[0], ast.Constant)
        foreign = name == "set_default_executor" and not is_daemon_executor(node.args[0])
        if (name in TASKS and not of_group) or name in THREADS or default or foreign:
            yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "asyncio.create_task(work())",
        "loop.create_task(work())",
        "asyncio.ensure_future(work())",
        "asyncio.to_thread(work)",
        "loop.run_in_executor(None, work)",
        "threading.Thread(target=work)",
        "Thread(target=work).start()",
        "threading.Timer(1, work)",
        "ThreadPoolExecutor(1)",
        "loop.set_default_executor(Executor(1))",
        "class Other(threading.Thread): pass",
    ],
)
def test_a_creation_is_found(line: str) -> None:
    assert [*creations(line)] == [1]


def test_tasks_of_a_group_have_an_owner() -> None:
    source = "async def run():\n    async with asyncio.TaskGroup() as group:\n        group.create_task(work())\n"
    assert not [*creations(source)]


def test_only_the_supervisor_creates_tasks_and_threads() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        if path not in CREATORS
        for line in creations(path.read_text())
    }
    assert not found, "use dra_agent.supervisor, dra_agent.threads or DaemonExecutor"

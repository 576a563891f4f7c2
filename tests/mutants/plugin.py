"""The pytest plugin of a worker: records which code the tests run, or runs chosen tests for each mutant.

A worker imports the package and collects the tests once. It forks for each mutant. The child replaces the code of the
functions that differ and runs the chosen tests, fastest first, until one fails.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import Phase, settings

from dra_agent import child
from mutants.operators import Module
from mutants.tracing import VARIABLE, Lines

MODE = "DRA_AGENT_MUTANTS_MODE"
"""`record FILE`, `serve IN OUT` (descriptors) or `once`."""
FOLDER = "DRA_AGENT_MUTANTS_FOLDER"
"""The folder `python` of the worker."""
PACKAGES = "DRA_AGENT_MUTANTS_PACKAGES"
SESSION = "DRA_AGENT_TEST_SESSION"
"""The variable with which tests/leftovers.py marks every process of a test run."""
DEADLINE = "DRA_AGENT_TEST_DEADLINE_S"
"""The variable that tests/eventually.py reads."""
KILLED, SURVIVED, NOT_PATCHED = 1, 0, 3
_BASE_S = float(os.environ.get(DEADLINE, "20"))
_FACTOR = 8.0
"""The time limit of a test: the deadline of a wait plus 8 times the recorded duration."""

_mode = os.environ.get(MODE, "once").split()
_source = os.environ.get(FOLDER, "")
_folders = tuple(f"{_source}/dra_agent/{name}/" for name in os.environ.get(PACKAGES, "").split())
_lines = Lines(_folders)
if _mode[0] == "record":
    _lines.start()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Use the same hypothesis examples for every mutant, store none, and do not shrink failures."""
    settings.register_profile(
        "mutants",
        parent=settings.get_profile("any-machine"),
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
    )
    settings.load_profile("mutants")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Replace the loop of pytest."""
    if _mode[0] == "record":
        _record(session, Path(_mode[1]))
        return True
    if _mode[0] == "serve":
        _Server(session, int(_mode[1]), int(_mode[2])).serve()
        return True
    return None


def _record(session: pytest.Session, output: Path) -> None:
    outcomes = _Outcomes()
    session.config.pluginmanager.register(outcomes)
    recorded: dict[str, Any] = {"": {"lines": _relative(_lines.take())}}
    for item, next_item in _in_order(session.items):
        # Children that tests share would keep the environment of the first one, and be recorded as its own.
        child.shared_child.cache_clear()
        started = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        recorded[item.nodeid] = {
            "seconds": round(time.monotonic() - started, 3),
            "outcome": outcomes.of(item.nodeid),
            "lines": _relative(_lines.take()),
        }
    sys.settrace(None)
    in_processes: dict[str, set[str]] = {}
    trace = Path(os.environ[VARIABLE].partition(os.pathsep)[0])
    for line in trace.read_text().splitlines() if trace.exists() else ():
        test, file, first = json.loads(line)
        in_processes.setdefault(test, set()).add(f"{_relative_file(file)}:{first}")
    for test, functions in in_processes.items():
        if test in recorded:
            recorded[test]["functions"] = sorted(functions)
    output.write_text(json.dumps(recorded))


class _Outcomes:
    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self._seen.setdefault(report.nodeid, report.outcome)

    def of(self, test: str) -> str:
        return self._seen.get(test, "passed")


@dataclass
class _Task:
    file: str
    number: int
    tests: list[str]
    seconds: dict[str, float]
    fresh: bool


class _Server:
    def __init__(self, session: pytest.Session, requests: int, responses: int) -> None:
        self._session = session
        self._requests = os.fdopen(requests)
        self._responses = os.fdopen(responses, "w")
        self._items = {item.nodeid: item for item in session.items}
        self._modules: dict[str, Module] = {}
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        gc.unfreeze()  # conftest.py froze the collected objects, which get_objects leaves out
        for found in gc.get_objects():
            if isinstance(found, FunctionType) and found.__code__.co_filename.startswith(_source):
                code = found.__code__
                key = (code.co_filename, code.co_qualname, code.co_firstlineno)
                self._functions.setdefault(key, []).append(found)
        gc.collect()
        gc.freeze()

    def serve(self) -> None:
        self._respond({"ready": len(self._items)})
        for line in self._requests:
            task = _Task(**json.loads(line))
            started = time.monotonic()
            try:
                response = self._run(task)
            except Exception:  # noqa: BLE001 the campaign reports it and continues
                response = {"verdict": "error", "by": traceback.format_exc()}
            self._respond({**response, "seconds": round(time.monotonic() - started, 2)})

    def _respond(self, response: dict[str, Any]) -> None:
        self._responses.write(json.dumps(response) + "\n")
        self._responses.flush()

    def _run(self, task: _Task) -> dict[str, Any]:
        module = self._modules.get(task.file)
        if module is None:
            module = self._modules[task.file] = Module(Path(_source), task.file)
        path = Path(_source) / task.file
        original = path.read_text()
        _forget_compiled(path)
        try:
            if task.number < 0:  # No mutant: the original code.
                return self._forked(task, None, None)
            mutant = module.mutants[task.number]
            tree = module.mutated(mutant)
            path.write_text(ast.unparse(tree))
            if not task.fresh:
                response = self._forked(task, module.tree, tree)
                if response["verdict"] != "not patched":
                    return response
            return self._fresh(task)
        finally:
            path.write_text(original)
            _forget_compiled(path)

    def _forked(self, task: _Task, before: ast.Module | None, after: ast.Module | None) -> dict[str, Any]:
        mark, folder = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="m-"))
        progress, progress_writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(progress)
            self._child(task, before, after, mark, folder, progress_writer)
        os.close(progress_writer)
        try:
            return _watched(child, progress, task.seconds)
        finally:
            os.close(progress)
            _end(mark)
            shutil.rmtree(folder, ignore_errors=True)

    def _child(
        self,
        task: _Task,
        before: ast.Module | None,
        after: ast.Module | None,
        mark: str,
        folder: Path,
        progress_writer: int,
    ) -> None:
        code = NOT_PATCHED
        try:
            os.setsid()
            os.environ[SESSION] = mark
            os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
            devnull = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(devnull, descriptor)
            os.close(devnull)
            factory = self._session.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001 - pytest has no public way to give a forked child its own directory
            factory._given_basetemp, factory._basetemp = folder / "t", None  # noqa: SLF001 - pytest has no public way to give a forked child its own directory
            if before is not None and after is not None and not self._patch(task.file, before, after):
                os._exit(NOT_PATCHED)
            self._session.config.pluginmanager.register(_FirstFailure(progress_writer))
            for item, next_item in _in_order([self._items[test] for test in task.tests if test in self._items]):
                os.write(progress_writer, f"{item.nodeid}\n".encode())
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            code = SURVIVED
        except BaseException:  # noqa: BLE001 a mutant may fail in any way
            code = KILLED
        finally:
            os._exit(code)

    def _patch(self, file: str, before: ast.Module, after: ast.Module) -> bool:
        """Return changed functions their new code. False if one cannot be changed."""
        name = f"{_source}/{file}"
        new = {(code.co_qualname, code.co_firstlineno): code for code in _codes(compile(after, name, "exec"))}
        for code in _codes(compile(before, name, "exec")):
            changed = new.get((code.co_qualname, code.co_firstlineno))
            if changed is None or changed == code:
                continue
            for function in self._functions.get((name, code.co_qualname, code.co_firstlineno), ()):
                try:
                    function.__code__ = changed
                except ValueError:  # It uses fewer variables of the enclosing function.
                    return False
        return True

    def _fresh(self, task: _Task) -> dict[str, Any]:
        """Run the tests in a new interpreter, because the mutated code runs when the module is imported."""
        mark, folder = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="m-"))
        chosen = folder / "tests"
        chosen.write_text("\n".join(task.tests))
        command = [sys.executable, "-m", "pytest", *OPTIONS, "-x", f"--basetemp={folder}/t", f"@{chosen}"]
        variables = {**os.environ, MODE: f"once {mark}", "TMPDIR": str(folder)}
        limit = _BASE_S * 2 + _FACTOR * sum(task.seconds[test] for test in task.tests)
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                devnull = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(devnull, descriptor)
                os.execve(sys.executable, command, variables)
            finally:
                os._exit(KILLED)
        try:
            end = time.monotonic() + limit
            while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
                if time.monotonic() > end:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    return {"verdict": "timeout", "by": "new interpreter"}
                time.sleep(0.02)
            code = os.waitstatus_to_exitcode(status[1])
            return {"verdict": "survived" if code == 0 else "killed", "by": f"new interpreter, exit code {code}"}
        finally:
            _end(mark)
            shutil.rmtree(folder, ignore_errors=True)


OPTIONS = ("-q", "-p", "mutants.plugin", "-p", "no:xdist", "-p", "no:cacheprovider", "--capture=no", "--tb=no")


class _FirstFailure:
    def __init__(self, progress_writer: int) -> None:
        self._progress_writer = progress_writer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._progress_writer, b"FAILED\n")
            os._exit(KILLED)


def _watched(child: int, progress: int, seconds: dict[str, float]) -> dict[str, Any]:
    text, test = b"", ""
    end = time.monotonic() + _BASE_S
    while True:
        ready = select.select([progress], [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"verdict": "timeout", "by": test}
        piece = os.read(progress, 65536)
        if not piece:
            break
        text += piece
        *complete, text = text.split(b"\n")
        for line in complete:
            if line != b"FAILED":
                test = line.decode()
                end = time.monotonic() + _BASE_S + _FACTOR * seconds.get(test, 0.0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    verdict = {SURVIVED: "survived", NOT_PATCHED: "not patched"}.get(code, "killed")
    return {"verdict": verdict, "by": test if verdict == "killed" else ""}


def _end(mark: str) -> None:
    """Kill the processes that the tests of this mutant left."""
    wanted = [f"{SESSION}={mark}".encode(), f"{MODE}=once {mark}".encode()]
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                variables = (folder / "environ").read_bytes().split(b"\0")
                if any(marker in variables for marker in wanted):
                    os.kill(int(folder.name), signal.SIGKILL)


def _forget_compiled(path: Path) -> None:
    # Python identifies a compiled file by size and second, which two mutants can share.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _in_order(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    for index, item in enumerate(items):
        yield item, items[index + 1] if index + 1 < len(items) else None


def _relative_file(file: str) -> str:
    return file.removeprefix(f"{_source}/")


def _relative(lines: dict[str, list[int]]) -> dict[str, list[int]]:
    return {_relative_file(file): numbers for file, numbers in lines.items()}

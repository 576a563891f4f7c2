"""A test that leaves processes, threads, open files, sockets or changed settings behind fails itself, not a later one.

Otherwise Python's ResourceWarning for a process or socket of one test is raised during another one, and a test that
disables the log of the process fails a later test that reads the log.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventually import DEADLINE_S, POLL_INTERVAL_S

if TYPE_CHECKING:
    from preloaded import Command

SESSION = "DRA_AGENT_TEST_SESSION"
_processes: weakref.WeakSet[subprocess.Popen[Any] | Command] = weakref.WeakSet()
_wide_fixtures = 0
_start = subprocess.Popen.__init__


def _record_start(process: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:
    _start(process, *args, **kwargs)
    record_process(process)


def record_process(process: subprocess.Popen[Any] | Command) -> None:
    """Have the test fail that started the process if it does not end with the test."""
    if not _wide_fixtures:
        _processes.add(process)


class WideFixtures:
    """Processes that a fixture of a module or session starts outlive a test.

    A separate plugin: pytest does not call hooks of a conftest.py below its root for fixtures of a session.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        global _wide_fixtures
        wide = fixturedef.scope != "function"
        _wide_fixtures += wide
        try:
            return (yield)
        finally:
            _wide_fixtures -= wide


def mark_processes(config: pytest.Config) -> None:
    """Mark this run: processes inherit the mark, and are found by it at the end."""
    subprocess.Popen.__init__ = _record_start  # type: ignore[method-assign,assignment]  # the only place with every process
    config.pluginmanager.register(WideFixtures())
    if not hasattr(config, "workerinput"):
        os.environ[SESSION] = uuid.uuid4().hex


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Runs first and last of a test's fixtures."""
    descriptors, threads, settings = _descriptors(), set(threading.enumerate()), _process_settings()
    yield
    left = [f"process {process.pid} ({process.args!r})" for process in list(_processes) if _was_killed(process)]
    left += [f"thread {thread.name}" for thread in _running_since(threads)]
    if _descriptors() > descriptors:
        gc.collect()  # Python's warning about a file or socket belongs to this test now
    assert not left, f"still running after the test: {'; '.join(left)}"
    changed = [
        f"{name}: {old} before, {new} after"
        for (name, old), new in zip(settings.items(), _process_settings().values(), strict=True)
        if old != new
    ]
    assert not changed, f"the test leaves its process changed: {'; '.join(changed)}"


def adopt_processes() -> None:
    """Transfer every process started so far to the caller: a cluster stops its own."""
    _processes.clear()


def _process_settings() -> dict[str, object]:
    """Return settings of the whole process that other tests depend on."""
    root = logging.getLogger()
    return {
        "disabled log levels": root.manager.disable,
        "level of the root logger": root.level,
        "handlers of the root logger": [
            handler for handler in root.handlers if type(handler).__module__ != "_pytest.logging"
        ],
        "level of the agent's logger": logging.getLogger("dra_agent").level,
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "working directory": Path.cwd(),
        "handlers of signals": {
            number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        },
        "users of NVML libraries": _nvml_users(),
    }


def _nvml_users() -> dict[str, int]:
    """Return the users of each NVML library that is open; another test that opens it could not close it."""
    module = sys.modules.get("dra_agent.inventory.nvidia.nvml_client")
    users: dict[str, int] = module.shared_users() if module else {}
    return users


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _was_killed(process: subprocess.Popen[Any] | Command) -> bool:
    _processes.discard(process)
    if process.returncode is not None:
        return False
    running = process.poll() is None
    if running:
        process.kill()
        process.wait()
    if isinstance(process, subprocess.Popen):
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return running


def _running_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return threads that prevent the process from ending. A pool that was shut down needs a moment."""
    mine = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for thread in mine:
        thread.join(POLL_INTERVAL_S)
    return [thread for thread in mine if thread.is_alive() and not _joined(thread)]


def _joined(thread: threading.Thread) -> bool:
    thread.join(DEADLINE_S)
    return not thread.is_alive()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Frames of a failed test keep its open files; closing them must not fail the next test."""
    failed = item.session.testsfailed
    result = yield
    if item.session.testsfailed > failed:
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Find processes that daemonized themselves; they have the name of the test that started them."""
    result = yield
    if hasattr(session.config, "workerinput"):
        return result
    left = _remaining_processes()
    session.config.stash[_LEFT] = left
    if left and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


_LEFT = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the processes that the whole run left behind."""
    for line in config.stash.get(_LEFT, []):
        terminalreporter.write_line(f"FAILED: left running: {line}", red=True)


def _remaining_processes() -> list[str]:
    """Return processes that do not end. Children of a process that the last test ended need a moment."""
    end = time.monotonic() + DEADLINE_S
    while (left := _processes_of_this_run()) and time.monotonic() < end:
        threading.Event().wait(POLL_INTERVAL_S)
    return left


def _processes_of_this_run() -> list[str]:
    mark = f"{SESSION}={os.environ[SESSION]}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if mark in environment:
            tests = [
                word.partition(b"=")[2].decode() for word in environment if word.startswith(b"PYTEST_CURRENT_TEST=")
            ]
            found.append(f"process {folder.name} ({command}), started by {tests[0] if tests else 'a fixture'}")
    return found

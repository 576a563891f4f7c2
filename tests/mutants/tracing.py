"""Records which test runs which lines of the mutated packages, in the test process and in the processes it starts.

This file also runs by itself at the start of every interpreter of a worker's environment (`tree.py`), so it has few
imports. The test process records lines. Other processes record functions, and write each at once because many of them
end by SIGKILL.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

VARIABLE = "DRA_AGENT_MUTANTS_TRACE"
"""The file to which other processes append. Set only if they should record."""


class Lines:
    """The lines that run in this process."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = folders
        self._wanted: dict[CodeType, bool] = {}
        self._lines: dict[tuple[str, int], None] = {}

    def start(self) -> None:
        threading.settrace(self._call)
        sys.settrace(self._call)

    def take(self) -> dict[str, list[int]]:
        """Return the lines since the last call, by file."""
        lines, self._lines = self._lines, {}
        found: dict[str, list[int]] = {}
        for file, line in sorted(lines):
            found.setdefault(file, []).append(line)
        return found

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        wanted = self._wanted.get(code)
        if wanted is None:
            wanted = self._wanted[code] = code.co_filename.startswith(self._folders)
        if not wanted:
            return None
        self._lines[code.co_filename, frame.f_lineno] = None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._lines[frame.f_code.co_filename, frame.f_lineno] = None
        return self._line


class _Functions:
    """The functions that run in a process that a test started."""

    def __init__(self, file: str, folders: tuple[str, ...], test: str) -> None:
        self._output = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._folders = folders
        self._test = test
        self._seen: dict[CodeType, None] = {}

    def call(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self._seen:
            return
        self._seen[code] = None
        if code.co_filename.startswith(self._folders):
            line = json.dumps([self._test, code.co_filename, code.co_firstlineno]) + "\n"
            try:
                os.write(self._output, line.encode())
            except OSError:
                return


def trace_this_process() -> None:
    """Start the trace if the environment requests it. Called when an interpreter starts."""
    output = os.environ.get(VARIABLE)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if not output or not test:
        return
    file, *folders = output.split(os.pathsep)
    functions = _Functions(file, tuple(folders), test)
    threading.setprofile(functions.call)
    sys.setprofile(functions.call)


if __name__ == "dra_agent_mutants_trace":
    trace_this_process()

"""Records calls of functions of the package, in a process that a test starts: see `preloaded.Command(patch=...)`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from types import FrameType
from typing import Any

import dra_agent

_PACKAGE = f"{Path(dra_agent.__file__).parent}/"
KEPT = os.environ.get("DRA_AGENT_TEST_WALKS", "")
"""A folder for all calls of each walk, if set: `make measures` counts them."""
REPEATS = 4 if KEPT else 0
"""How often a walk is repeated. What an agent does by chance at the same time is not in all of them."""


def patch(file: Path, functions: Collection[str] = ()) -> str:
    """Return the statements that record these functions (file:function), or all, in the process that runs them."""
    recorded = [] if KEPT else sorted(functions)
    return f"from agent.call_recorder import record; record({os.fspath(file)!r}, {recorded!r})\n"


def record(file: str, functions: Collection[str]) -> None:
    """Append a line for each call from now on, from all threads: function and depth. Processes may share the file.

    The depth is the number of frames from the first one of the package in this thread, those of libraries included.
    """
    output = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    names = {function.rpartition(":")[2].rpartition(".")[2] for function in functions}

    def called(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or (names and code.co_name not in names) or not code.co_filename.startswith(_PACKAGE):
            return
        function = f"{code.co_filename.removeprefix(_PACKAGE)}:{code.co_qualname}"
        if not functions or function in functions:
            os.write(output, f"{function} {_depth(frame)}\n".encode())

    threading.setprofile(called)
    sys.setprofile(called)


def _depth(frame: FrameType | None) -> int:
    depth = frames = 0
    while frame is not None:
        frames += 1
        if frame.f_code.co_filename.startswith(_PACKAGE):
            depth = frames
        frame = frame.f_back
    return depth


class Calls:
    """The calls in such a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.touch()
        self._start = 0

    def forget(self) -> None:
        """Ignore the calls until now."""
        self._start = self.file.stat().st_size

    def all(self) -> list[str]:
        """Return the functions called since then, in their order."""
        return [line.rpartition(" ")[0] for line in self._lines()]

    def keep(self, walk: str) -> None:
        """Write the calls since then to another file for `make measures`, if it runs this test."""
        if KEPT:
            number = len(list(Path(KEPT).glob(f"{walk}-*")))
            (Path(KEPT) / f"{walk}-{number}").write_text("\n".join(self._lines()))

    def _lines(self) -> list[str]:
        with self.file.open() as file:
            file.seek(self._start)
            return file.read().splitlines()

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


def patch(file: Path, functions: Collection[str] = ()) -> str:
    """Return the statements that record these functions (file:function), or all, in the process that runs them."""
    return f"from agent.call_recorder import record; record({os.fspath(file)!r}, {sorted(functions)!r})\n"


def record(file: str, functions: Collection[str]) -> None:
    """Append a line for each call from now on, from all threads; processes may share the file."""
    output = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    names = {function.rpartition(":")[2].rpartition(".")[2] for function in functions}

    def called(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or (names and code.co_name not in names) or not code.co_filename.startswith(_PACKAGE):
            return
        function = f"{code.co_filename.removeprefix(_PACKAGE)}:{code.co_qualname}"
        if not functions or function in functions:
            os.write(output, f"{function}\n".encode())

    threading.setprofile(called)
    sys.setprofile(called)


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
        """Return the calls since then, in their order."""
        with self.file.open() as file:
            file.seek(self._start)
            return file.read().splitlines()

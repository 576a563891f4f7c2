"""The agent's own child processes: the one way to start a Python module of this package in another process.

A child runs with the agent's permissions, so it imports only from where the agent itself imports:

- `-P` and the working directory `/`: nothing of the directory in which a user called the command;
- `-s` and no variable `PYTHON*` of the caller: no site packages of a user, no path and no start-up file of a caller;
- `PYTHONPATH` set to the agent's own absolute `sys.path`: the launcher that `make install` writes adds the library's
  folder to `sys.path`, and a new interpreter does not know it.
"""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dra_agent.command import CompletedCommand, HostCommand, inherited_environment

WORKING_DIRECTORY = "/"
_OPTIONS = ("-P", "-s", "-m")


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module; to be started with `environment()` in `WORKING_DIRECTORY`.

    Paths among the arguments must be absolute.
    """
    return [sys.executable, *_OPTIONS, module, *arguments]


def environment(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: the agent's without the interpreter's variables, plus `added`."""
    inherited = inherited_environment(added)
    kept = {name: value for name, value in inherited.items() if name in (added or ()) or not name.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": _import_path()}


def script(module: str, *arguments: str) -> str:
    """Return a shell script that runs a module with these arguments and its own; for tools of simulated hosts."""
    argv = ["env", "-i", f"PYTHONPATH={_import_path()}", *command(module, *arguments)]
    return f'#!/bin/sh\ncd {WORKING_DIRECTORY} && exec {shlex.join(argv)} "$@"\n'


def isolated_script(source: str) -> str:
    """Return a program file that runs `source` with the standard library only, and nothing of its caller."""
    return f"#!{sys.executable} -IS\n{source}"


class Child(HostCommand):
    """A module of this package as a program with a deadline; safe to use from several threads."""

    def __init__(
        self, module: str, deadline: float, *, hint: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """`deadline` is in seconds; `hint` is part of every error; `environment` is added to that of a child."""
        super().__init__(Path(sys.executable), deadline, hint=hint)
        self._environment = _environment(environment)
        self._first = [*_OPTIONS, module]

    def run(self, arguments: Sequence[str], stdin: bytes | None = None, files: Sequence[int] = ()) -> CompletedCommand:
        """Run it as `Program.run` does."""
        return super().run([*self._first, *arguments], stdin, files)


def shared(module: str, deadline: float) -> Child:
    """Return the one `Child` of a module and deadline: one that hung is left alone for a while, by every caller."""
    return shared_child(sys.executable, module, deadline)


@functools.cache
def shared_child(executable: str, module: str, deadline: float) -> Child:
    """Return the one `Child` of these values; `executable` is that of the children."""
    del executable  # a key of the cache
    return Child(module, deadline)


_environment = environment


def _import_path() -> str:
    """Return the absolute entries of `sys.path`: "" and relative ones depend on the caller's directory."""
    return os.pathsep.join(entry for entry in sys.path if Path(entry).is_absolute())

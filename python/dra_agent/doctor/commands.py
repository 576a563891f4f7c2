"""Programs of the host that checks ask: looked up and run with a deadline, never through a shell.

Checks get them as a value, so that tests can put any host's programs in their place.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

TIMEOUT_S = 5.0
"""Seconds; a program that only prints its version and takes longer hangs."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a program ended."""

    code: int | None
    """None where it could not be started or did not end in time."""
    output: str
    """Standard output, or what went wrong where there is none."""


class CommandRunner(Protocol):
    """The programs of a host."""

    def find(self, name: str) -> str | None:
        """Give the path of a program; None where it is not installed."""
        ...

    def run(self, argv: Sequence[str]) -> CommandResult:
        """Run a program to its end, or to the deadline."""
        ...


class SystemCommandRunner:
    """The programs of this machine."""

    def find(self, name: str) -> str | None:
        """Look the program up where root's programs are too, whatever the caller's PATH."""
        return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")

    def run(self, argv: Sequence[str]) -> CommandResult:
        """Run it without input; its error output counts where it prints nothing else."""
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            return CommandResult(None, f"does not answer within {TIMEOUT_S:g} s")
        except OSError as error:
            return CommandResult(None, f"cannot be started: {error.strerror}")
        return CommandResult(done.returncode, done.stdout.strip() or done.stderr.strip())

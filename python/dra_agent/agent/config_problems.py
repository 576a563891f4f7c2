"""The problems of a configuration, each with its place, and the error that has all of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dra_agent.errors import UsageError
from dra_agent.printable import printable

MAX_SHOWN = 50
"""Problems in one message; a file of another program may have thousands."""


class ConfigProblem(msgspec.Struct, frozen=True):
    """One problem."""

    origin: str
    """The file, the variable or the flag."""
    message: str
    key: str = ""
    """The key, such as `inventory.share[0].when`; empty: the whole file."""
    line: int | None = None
    """Line of the file, from 1."""
    hint: str | None = None
    names_key: bool = False
    """True if the message already names the key."""
    is_unreadable: bool = False
    """True if the file cannot be read."""

    def __str__(self) -> str:
        place = self.origin if self.line is None else f"{self.origin}:{self.line}"
        key = f"{self.key}: " if self.key and not self.names_key else ""
        return printable(f"{place}: {key}{self.message}" + (f"; {self.hint}" if self.hint else ""), line=True)


class ConfigError(UsageError):
    """A configuration with one or more problems."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:MAX_SHOWN]]
        if hidden := len(self.problems) - len(lines):
            lines.append(f"{hidden} more problems; `dra-agent config check` shows all")
        return "\n".join(lines)

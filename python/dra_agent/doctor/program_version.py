"""The version that a program prints."""

from __future__ import annotations

import re

from dra_agent.doctor.context import CommandRunner
from dra_agent.doctor.finding import Finding, warning

Version = tuple[int, int, int]
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def read_version(commands: CommandRunner, program: str) -> Version | Finding:
    """Run `program --version` and return its first version number; a warning if it prints none."""
    result = commands.run([program, "--version"])
    match = _VERSION.search(result.output) if result.code == 0 else None
    if match is None:
        reason = result.output.splitlines()[0] if result.output else "no output"
        hint = f"run `{program} --version`, and fix the error that it prints"
        return warning(f"does not report its version: {reason}", program, hint)
    return (int(match[1]), int(match[2]), int(match[3] or 0))


def version_text(version: Version) -> str:
    """Return a version as users write it."""
    return ".".join(map(str, version))

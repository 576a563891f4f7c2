"""One finding of a check: its severity, message, place, and fix."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    """No problem, or information only."""
    WARNING = "warning"
    """Works with limitations."""
    PROBLEM = "problem"
    """Something does not work."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result of a check."""

    severity: Severity
    message: str = msgspec.field(name="what")
    where: str = ""
    """A path, a device, or a part of the host."""
    hint: str = msgspec.field(default="", name="todo")
    """How to fix it."""
    check: str = ""
    """The check that found it."""


def ok(message: str, where: str = "") -> Finding:
    """The check passed."""
    return Finding(Severity.OK, message, where)


def warning(message: str, where: str, hint: str) -> Finding:
    """Something that could be better."""
    return Finding(Severity.WARNING, message, where, hint)


def problem(message: str, where: str, hint: str) -> Finding:
    """Something that does not work."""
    return Finding(Severity.PROBLEM, message, where, hint)

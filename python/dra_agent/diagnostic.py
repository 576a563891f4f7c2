"""What was found wrong while a host was read; a list of them is passed on, and every other device is unaffected."""

from __future__ import annotations

from typing import Literal

import msgspec


class Diagnostic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem of a scan, and a hint to fix it."""

    where: str
    """A device's address or name, a path, or the part of the host ("NVML")."""
    message: str = msgspec.field(name="what")
    hint: str | None = msgspec.field(default=None, name="todo")
    severity: Literal["error", "warning"] = "error"
    """warning: everything works, with limitations."""

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}"
        return f"{text}; {self.hint}" if self.hint else text


class UnreadDiagnostic(Diagnostic, frozen=True):
    """A problem that is a value which the vendor's library did not return; a recording of its calls lacks it too."""

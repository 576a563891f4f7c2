"""A clock that can be set forward; whoever imports this has it in the whole process, before the agent's modules."""

from __future__ import annotations

import time

_monotonic = time.monotonic
_ahead_s = 0.0


def _now() -> float:
    return _monotonic() + _ahead_s


def set_forward(seconds: float) -> None:
    """Let so much time pass at once."""
    global _ahead_s
    _ahead_s += seconds


time.monotonic = _now

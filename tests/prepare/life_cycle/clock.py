"""A clock that can be advanced. It applies to the whole process, and is imported before modules of the agent."""

from __future__ import annotations

import time

_monotonic = time.monotonic
_ahead_s = 0.0


def _now() -> float:
    return _monotonic() + _ahead_s


def set_forward(seconds: float) -> None:
    """Advance the clock."""
    global _ahead_s
    _ahead_s += seconds


time.monotonic = _now

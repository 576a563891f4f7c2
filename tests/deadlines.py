"""Deadlines for calls that are not about time."""

from __future__ import annotations

from dra_agent.deadline import Deadline


def a_minute() -> Deadline:
    """More than any call takes, and less than a test may."""
    return Deadline.of(60)

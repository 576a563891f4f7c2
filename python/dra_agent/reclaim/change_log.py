"""Log lines about changes of the reclaim state, for operators who read the log of an agent."""

from __future__ import annotations

import logging
from datetime import datetime

from dra_agent.reclaim.state import ReclaimState

log = logging.getLogger(__name__)

MAX_DEADLINE_DIFFERENCE_S = 5.0
"""Seconds by which the deadlines of sources may differ without a warning."""


def log_change(before: ReclaimState, after: ReclaimState, now: datetime) -> None:
    """Log a change of the phase, and deadlines that differ."""
    if after.phase != before.phase:
        cause = after.cause
        extra: dict[str, object] = {"was": before.phase}
        if cause is not None:
            extra |= {"source": cause.source, "event": cause.event, "what": cause.description}
        if after.deadline is not None:
            extra["deadline"] = after.deadline.isoformat()
            extra["seconds"] = round((after.deadline - now).total_seconds(), 1)
        log.warning(f"reclaim: {after.phase}", extra=extra)
    # Also if the later signal arrives second, and so changes no deadline.
    if after.deadline is not None and _disagree(after) and (after.deadline != before.deadline or not _disagree(before)):
        sources = [f"{source}={deadline.isoformat()}" for source, deadline in _deadlines(after)]
        log.warning(
            "sources disagree about the deadline; the earliest counts",
            extra={"deadline": after.deadline.isoformat(), "sources": sources},
        )


def _disagree(state: ReclaimState) -> bool:
    times = [deadline for _, deadline in _deadlines(state)]
    return len(times) > 1 and (max(times) - min(times)).total_seconds() > MAX_DEADLINE_DIFFERENCE_S


def _deadlines(state: ReclaimState) -> list[tuple[str, datetime]]:
    """Return the sources of notices with their deadlines."""
    return [
        (active.signal.source, active.signal.deadline)
        for active in state.active
        if active.signal.kind == "notice" and active.signal.deadline is not None
    ]

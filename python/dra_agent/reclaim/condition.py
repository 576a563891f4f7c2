"""The condition that tells on the Node object whether its host is taken, and when. A pure function.

Programs wait for it (`kubectl wait --for=condition=...`), people see it in `kubectl describe node`. A hint is none: the
taint of the devices says it, and an Event.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dra_agent.clock import STEADY
from dra_agent.reclaim.state import ReclaimState

_LONGEST = 1024
"""Characters of a message; the API server takes more, nobody reads more."""


def condition_type(driver: str) -> str:
    """`dra-agent.internal/ReclaimNotice`: two drivers of one node do not take away each other's word."""
    return f"{driver}/ReclaimNotice"


def condition_of(state: ReclaimState, driver: str, now: datetime) -> dict[str, Any]:
    """What a state is on the Node. The times are the state's own, so a restart of the agent changes nothing."""
    cause = state.cause
    if state.phase == "notice" and cause is not None:
        when = (
            "soon"
            if state.deadline is None
            else f"at {STEADY.to_wall(state.deadline).astimezone(UTC).isoformat(timespec='seconds')}"
        )
        text = f"the host is taken {when} ({cause.source}: {cause.what})"
        return _condition(driver, "True", _reason(cause.source), text, state.noticed or now)
    if state.phase == "none":
        return _condition(driver, "False", "NothingAnnounced", "nothing is announced in this boot of the host", now)
    return _condition(driver, "False", "Cancelled", "what was announced does not hold any more", state.ended or now)


def says_notice(node: Mapping[str, Any], driver: str) -> bool:
    """Whether a Node object says that its host is taken."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one.get("type") == condition_type(driver) and one.get("status") == "True" for one in conditions)


def _condition(driver: str, status: str, reason: str, message: str, since: datetime) -> dict[str, Any]:
    stamp = STEADY.to_wall(since).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": condition_type(driver),
        "status": status,
        "reason": reason,
        "message": message[:_LONGEST],
        # Both are the same on purpose: a heartbeat would be a write of the Node that says nothing.
        "lastTransitionTime": stamp,
        "lastHeartbeatTime": stamp,
    }


def _reason(source: str) -> str:
    """`aws.spot` as the API writes reasons: AwsSpot."""
    return "".join(part[:1].upper() + part[1:] for part in source.replace("-", ".").split("."))

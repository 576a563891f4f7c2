"""How a reclaim is announced in the cluster: device taints, the Node condition, messages of Events. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dra_agent.clock import STEADY
from dra_agent.inventory.api import Taint
from dra_agent.inventory.model import Inventory
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.status import ClaimReleaseStatus

TAINT_NAME = "reclaim"
"""What follows the driver's name and a slash in the taint's key."""
MAX_TAINTS = 16
"""That the API allows on one device (resource/v1 DeviceTaintsMaxLength)."""


def taint_of(state: ReclaimState, driver: str) -> Taint | None:
    """The taint for a state: none, or the same one, to the second, for as long as the hint or the notice lasts.

    A hint keeps new claims away (NoSchedule); a notice also has pods deleted that do not tolerate it (NoExecute). The
    API server starts a toleration's seconds at timeAdded, so it must not move.
    """
    match state.phase:
        case "notice":
            assert state.noticed is not None
            return Taint(f"{driver}/{TAINT_NAME}", "NoExecute", "notice", _timestamp(state.noticed))
        case "hint":
            return Taint(
                f"{driver}/{TAINT_NAME}", "NoSchedule", "hint", _timestamp(min(held.since for held in state.held))
            )
        case _:
            return None


def apply_taint(inventory: Inventory, state: ReclaimState, driver: str) -> Inventory:
    """Give the inventory with that taint on every device, before all others: it must not be the one too many."""
    taint = taint_of(state, driver)
    if taint is None:
        return inventory
    devices = tuple(
        msgspec.structs.replace(device, taints=(taint, *device.taints)[:MAX_TAINTS]) for device in inventory.devices
    )
    return msgspec.structs.replace(inventory, devices=devices)


def has_taint(device: dict[str, object], taint: Taint | None, driver: str) -> bool:
    """Whether a published device has exactly this reclaim taint, or none if None."""
    taints = device.get("taints") or []
    assert isinstance(taints, list)
    found = [(one.get("effect"), one.get("value")) for one in taints if one.get("key") == f"{driver}/{TAINT_NAME}"]
    return found == ([] if taint is None else [(taint.effect, taint.value)])


def _timestamp(time: datetime) -> str:
    return STEADY.to_wall(time).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_MAX_MESSAGE_LENGTH = 1024
"""Maximum characters of a message, below the limit of the API server."""


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
        text = f"the node is reclaimed {when} ({cause.source}: {cause.what})"
        return _condition(driver, "True", _reason(cause.source), text, state.noticed or now)
    if state.phase == "none":
        return _condition(driver, "False", "NothingAnnounced", "no reclaim is active in this boot of the host", now)
    return _condition(driver, "False", "Cancelled", "what was announced does not hold any more", state.ended or now)


def says_notice(node: Mapping[str, Any], driver: str) -> bool:
    """Whether a Node object has the condition."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one.get("type") == condition_type(driver) and one.get("status") == "True" for one in conditions)


def _condition(driver: str, status: str, reason: str, message: str, since: datetime) -> dict[str, Any]:
    stamp = STEADY.to_wall(since).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": condition_type(driver),
        "status": status,
        "reason": reason,
        "message": message[:_MAX_MESSAGE_LENGTH],
        # Both are equal on purpose: a heartbeat would be a Node write without information.
        "lastTransitionTime": stamp,
        "lastHeartbeatTime": stamp,
    }


def _reason(source: str) -> str:
    """`aws.spot` as the API writes reasons: AwsSpot."""
    return "".join(part[:1].upper() + part[1:] for part in source.replace("-", ".").split("."))


def announced(state: ReclaimState) -> str:
    """Return the message of a notice or hint: when the node is reclaimed, and the source."""
    cause = state.cause
    text = "" if cause is None else f"{cause.source}: {cause.what}"
    if state.phase != "notice":
        return f"the host may be taken ({text}); no new claims are allocated here"
    when = "" if state.deadline is None else f" at {STEADY.to_wall(state.deadline).isoformat(timespec='seconds')}"
    return f"the node is reclaimed{when} ({text}); claims are being released"


def taken_back(refused: int) -> str:
    """Return the message of a withdrawal, and when claims that were refused meanwhile are prepared."""
    text = "what was announced does not hold any more; devices can be claimed again"
    if not refused:
        return text
    # kubelet 1.37: a pod's worker retries at its resync, 60 s and up to half of that more; only a change of the pod
    # makes it quicker, which is not this agent's to make.
    claims = "1 claim was" if refused == 1 else f"{refused} claims were"
    return f"{text}; {claims} refused meanwhile: the kubelet retries within 90 s, for a new pod at once"


def summary(records: Iterable[ClaimReleaseStatus], noticed: datetime | None) -> str:
    """Return the message of the result: released claims, duration, and the pods that keep others."""
    records = list(records)
    done = [record.released for record in records if record.released is not None]
    text = f"{len(done)} of {len(records)} claims released"
    if noticed is not None and done:
        text += f", the last {(max(done) - noticed).total_seconds():.1f} s after the notice"
    kept = [_kept(record) for record in records if record.released is None]
    return text + (f"; not released: {', '.join(kept)}" if kept else "")


def _kept(record: ClaimReleaseStatus) -> str:
    by = (
        f" (reserved for {', '.join(record.pods)})" if record.pods else f" ({record.unknown})" if record.unknown else ""
    )
    return f"{record.namespace}/{record.name}{by}"

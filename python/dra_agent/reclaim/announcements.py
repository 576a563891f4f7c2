"""How a reclaim is announced in the cluster: device taints, the Node condition, messages of Events. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dra_agent.clock import STEADY
from dra_agent.inventory.api import Taint
from dra_agent.inventory.model import Inventory
from dra_agent.reclaim.settings import CONDITION_NAME
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.status import ClaimReleaseStatus

TAINT_NAME = "reclaim"
"""The key of the taint is the name of the driver, a slash and this."""
MAX_TAINTS = 16
"""Maximum taints of a device in the API (resource/v1 DeviceTaintsMaxLength)."""
_MAX_MESSAGE_CHARS = 1024
"""Maximum characters of a message, below the limit of the API server."""


def taint_of(state: ReclaimState, driver: str) -> Taint | None:
    """Return the device taint for a state. It is constant, to the second, as long as the hint or notice lasts.

    A hint prevents new claims (NoSchedule); for a notice, pods that do not tolerate it are also deleted (NoExecute).
    The API server counts the seconds of a toleration from timeAdded, so that must not change.
    """
    match state.phase:
        case "notice":
            assert state.noticed is not None
            return Taint(f"{driver}/{TAINT_NAME}", "NoExecute", "notice", _timestamp(state.noticed))
        case "hint":
            since = min(active.since for active in state.active)
            return Taint(f"{driver}/{TAINT_NAME}", "NoSchedule", "hint", _timestamp(since))
        case _:
            return None


def apply_taint(inventory: Inventory, state: ReclaimState, driver: str) -> Inventory:
    """Return the inventory with the taint on every device, before all others, so that the limit never drops it."""
    taint = taint_of(state, driver)
    if taint is None:
        return inventory
    devices = tuple(
        msgspec.structs.replace(device, taints=(taint, *device.taints)[:MAX_TAINTS]) for device in inventory.devices
    )
    return msgspec.structs.replace(inventory, devices=devices)


def has_taint(device: dict[str, object], taint: Taint | None, driver: str) -> bool:
    """Return whether a published device has exactly this reclaim taint, or none if None."""
    taints = device.get("taints") or []
    assert isinstance(taints, list)
    found = [(one.get("effect"), one.get("value")) for one in taints if one.get("key") == f"{driver}/{TAINT_NAME}"]
    return found == ([] if taint is None else [(taint.effect, taint.value)])


def condition_type(driver: str) -> str:
    """Return the type of the Node condition: `dra-agent.internal/ReclaimNotice`. Two drivers of a node have two."""
    return f"{driver}/{CONDITION_NAME}"


def condition_of(state: ReclaimState, driver: str, now: datetime) -> dict[str, Any]:
    """Return the Node condition for a state.

    Programs wait for it (`kubectl wait --for=condition=...`), users read it in `kubectl describe node`. A hint sets no
    condition: the device taint and an Event report it. The times are those of the state, so a restart of the agent
    changes nothing.
    """
    cause = state.cause
    if state.phase == "notice" and cause is not None:
        when = (
            "soon"
            if state.deadline is None
            else f"at {STEADY.to_wall(state.deadline).astimezone(UTC).isoformat(timespec='seconds')}"
        )
        message = f"the node is reclaimed {when} ({cause.source}: {cause.description})"
        return _condition(driver, "True", _reason(cause.source), message, state.noticed or now)
    if state.phase == "none":
        return _condition(driver, "False", "NothingAnnounced", "no reclaim is active in this boot of the host", now)
    return _condition(driver, "False", "Cancelled", "the reclaim was withdrawn", state.ended or now)


def has_notice_condition(node: Mapping[str, Any], driver: str) -> bool:
    """Return whether a Node object has the condition of a notice."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one.get("type") == condition_type(driver) and one.get("status") == "True" for one in conditions)


def notice_message(state: ReclaimState) -> str:
    """Return the message of a notice or hint: when the node is reclaimed, and the source."""
    cause = state.cause
    text = "" if cause is None else f"{cause.source}: {cause.description}"
    if state.phase != "notice":
        return f"the node may be reclaimed ({text}); no new claims are allocated here"
    when = "" if state.deadline is None else f" at {STEADY.to_wall(state.deadline).isoformat(timespec='seconds')}"
    return f"the node is reclaimed{when} ({text}); claims are being released"


def cancelled_message(refused: int) -> str:
    """Return the message of a cancelled reclaim. `refused` is the number of claims that were refused meanwhile."""
    text = "the reclaim was withdrawn; devices can be allocated again"
    if not refused:
        return text
    # kubelet 1.37: a pod worker retries at its resync, after 60 s and up to half of that more. Only a change of the pod
    # makes it retry earlier.
    claims = "1 claim was" if refused == 1 else f"{refused} claims were"
    return f"{text}; {claims} refused meanwhile: the kubelet retries within 90 s, for a new pod at once"


def summary(records: Iterable[ClaimReleaseStatus], noticed: datetime | None) -> str:
    """Return the message of the result: released claims, duration, and the pods that use the others."""
    records = list(records)
    released = [record.released for record in records if record.released is not None]
    text = f"{len(released)} of {len(records)} claims released"
    if noticed is not None and released:
        text += f", the last {(max(released) - noticed).total_seconds():.1f} s after the notice"
    others = [_unreleased(record) for record in records if record.released is None]
    return text + (f"; not released: {', '.join(others)}" if others else "")


def _timestamp(time: datetime) -> str:
    return STEADY.to_wall(time).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(driver: str, status: str, reason: str, message: str, since: datetime) -> dict[str, Any]:
    timestamp = _timestamp(since)
    return {
        "type": condition_type(driver),
        "status": status,
        "reason": reason,
        "message": message[:_MAX_MESSAGE_CHARS],
        # Both are equal on purpose: a heartbeat would be a Node write without information.
        "lastTransitionTime": timestamp,
        "lastHeartbeatTime": timestamp,
    }


def _reason(source: str) -> str:
    """`aws.spot` as the API writes reasons: AwsSpot."""
    return "".join(part[:1].upper() + part[1:] for part in source.replace("-", ".").split("."))


def _unreleased(record: ClaimReleaseStatus) -> str:
    why = ""
    if record.pods:
        why = f" (reserved for {', '.join(record.pods)})"
    elif record.unknown:
        why = f" ({record.unknown})"
    return f"{record.namespace}/{record.name}{why}"

"""The taint by which the devices of a doomed host are kept from claims, and their pods moved away. A pure function."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from dra_agent.clock import STEADY
from dra_agent.inventory.api import Taint
from dra_agent.inventory.model import Inventory
from dra_agent.reclaim.state import ReclaimState

NAME = "reclaim"
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
            return Taint(f"{driver}/{NAME}", "NoExecute", "notice", _whole(state.noticed))
        case "hint":
            return Taint(f"{driver}/{NAME}", "NoSchedule", "hint", _whole(min(held.since for held in state.held)))
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
    """Whether a published device has exactly this taint of the driver's reclaim, or none where none is wanted."""
    taints = device.get("taints") or []
    assert isinstance(taints, list)
    found = [(one.get("effect"), one.get("value")) for one in taints if one.get("key") == f"{driver}/{NAME}"]
    return found == ([] if taint is None else [(taint.effect, taint.value)])


def _whole(time: datetime) -> str:
    return STEADY.to_wall(time).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

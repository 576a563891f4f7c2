"""The device taint of each reclaim phase."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from dra_agent.inventory.api import Taint
from dra_agent.inventory.model import Inventory
from dra_agent.reclaim.announcements import apply_taint, has_taint, taint_of
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import ReclaimState, apply
from publish.node import device, tainted

T0 = datetime(2026, 1, 31, 12, 0, 0, 900_000, tzinfo=UTC)
HINT = apply(ReclaimState("b"), Signal("aws.rebalance", "hint", "h", "w"), T0)
NOTICE = apply(HINT, Signal("aws.spot", "notice", "n", "w"), T0 + timedelta(seconds=5))


def test_each_phase_has_its_taint() -> None:
    assert taint_of(ReclaimState("b"), "d") is None
    assert taint_of(HINT, "d") == Taint("d/reclaim", "NoSchedule", "hint", "2026-01-31T12:00:00Z")
    assert taint_of(NOTICE, "d") == Taint("d/reclaim", "NoExecute", "notice", "2026-01-31T12:00:05Z")
    canceled = NOTICE
    for active in NOTICE.active:
        canceled = apply(canceled, msgspec.structs.replace(active.signal, kind="clear"), T0)
    assert canceled.phase == "cancelled" and taint_of(canceled, "d") is None


def test_a_second_notice_keeps_the_time_of_the_first() -> None:
    later = apply(NOTICE, Signal("azure", "notice", "x", "w"), T0 + timedelta(seconds=60))
    assert taint_of(later, "d") == taint_of(NOTICE, "d")


def test_every_device_gets_the_taint_first_within_the_limit() -> None:
    sick = tainted(device(2), *(f"t{number}" for number in range(16)))
    result = apply_taint(Inventory(devices=(device(1), sick)), NOTICE, "d")
    assert [taint.key for taint in result.devices[0].taints] == ["d/reclaim"]
    assert len(result.devices[1].taints) == 16 and result.devices[1].taints[0].key == "d/reclaim"
    assert apply_taint(result, ReclaimState("b"), "d") is result


def test_the_taint_of_a_published_device_is_recognized() -> None:
    taint = taint_of(NOTICE, "d")
    entry = {"key": "d/reclaim", "value": "notice", "effect": "NoExecute", "timeAdded": "2026-01-31T12:00:05Z"}
    other = {"key": "x/sick", "effect": "NoSchedule"}
    assert has_taint({"taints": [other, entry]}, taint, "d")
    assert not has_taint({"taints": [other]}, taint, "d") and not has_taint({}, taint, "d")
    assert not has_taint({"taints": [{**entry, "effect": "NoSchedule", "value": "hint"}]}, taint, "d")
    assert has_taint({"taints": [other]}, None, "d") and not has_taint({"taints": [entry]}, None, "d")

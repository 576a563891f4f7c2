"""The taint that a state puts on devices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from dra_agent.inventory.api import Taint
from dra_agent.inventory.device import Inventory
from dra_agent.reclaim.notice import State, apply
from dra_agent.reclaim.reading import Reading
from dra_agent.reclaim.taints import carries, reclaimed, taint_of
from publish.node import device, tainted

T0 = datetime(2026, 1, 31, 12, 0, 0, 900_000, tzinfo=UTC)
HINT = apply(State("b"), Reading("aws.rebalance", "hint", "h", "w"), T0)
NOTICE = apply(HINT, Reading("aws.spot", "notice", "n", "w"), T0 + timedelta(seconds=5))


def test_each_phase_has_its_taint() -> None:
    assert taint_of(State("b"), "d") is None
    assert taint_of(HINT, "d") == Taint("d/reclaim", "NoSchedule", "hint", "2026-01-31T12:00:00Z")
    assert taint_of(NOTICE, "d") == Taint("d/reclaim", "NoExecute", "notice", "2026-01-31T12:00:05Z")
    over = NOTICE
    for held in NOTICE.held:
        over = apply(over, msgspec.structs.replace(held.reading, kind="clear"), T0)
    assert over.phase == "cancelled" and taint_of(over, "d") is None


def test_a_second_notice_does_not_move_the_first_ones_time() -> None:
    later = apply(NOTICE, Reading("azure", "notice", "x", "w"), T0 + timedelta(seconds=60))
    assert taint_of(later, "d") == taint_of(NOTICE, "d")


def test_every_device_gets_it_first_and_keeps_what_fits() -> None:
    sick = tainted(device(2), *(f"t{number}" for number in range(16)))
    found = reclaimed(Inventory(devices=(device(1), sick)), NOTICE, "d")
    assert [taint.key for taint in found.devices[0].taints] == ["d/reclaim"]
    assert len(found.devices[1].taints) == 16 and found.devices[1].taints[0].key == "d/reclaim"
    assert reclaimed(found, State("b"), "d") is found


def test_a_published_device_carries_it_or_not() -> None:
    taint = taint_of(NOTICE, "d")
    entry = {"key": "d/reclaim", "value": "notice", "effect": "NoExecute", "timeAdded": "2026-01-31T12:00:05Z"}
    other = {"key": "x/sick", "effect": "NoSchedule"}
    assert carries({"taints": [other, entry]}, taint, "d")
    assert not carries({"taints": [other]}, taint, "d") and not carries({}, taint, "d")
    assert not carries({"taints": [{**entry, "effect": "NoSchedule", "value": "hint"}]}, taint, "d")
    assert carries({"taints": [other]}, None, "d") and not carries({"taints": [entry]}, None, "d")

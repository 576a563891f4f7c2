"""What is learned of the API server's feature gates, for how long, and what an inventory is without them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_agent.inventory import Inventory
from dra_agent.publish import feature_gates
from dra_agent.publish.feature_gates import (
    COUNTERS,
    EFFECT_NONE,
    OFF_EXPIRES_AFTER_S,
    SHARING,
    TAINTS,
    Gates,
    dropped_fields,
    gate_of,
    refused_effects,
    remedy,
    used,
)
from publish.node import device, tainted


def slice_of(*devices: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "spec": {"driver": "d", "devices": list(devices), **spec}}


def taint(key: str, effect: str) -> dict[str, str]:
    return {"key": key, "effect": effect}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (slice_of({"name": "a"}), set()),
        ({"spec": {"driver": "d"}}, set()),
        (slice_of({"name": "a", "taints": []}), set()),
        (slice_of({"name": "a", "taints": [taint("k", "None")]}), set()),
        (slice_of({"name": "a", "taints": [taint("k", "None"), taint("l", "NoExecute")]}), {TAINTS}),
        (slice_of({"name": "a", "consumesCounters": []}), set()),
        (slice_of({"name": "a", "consumesCounters": [{"counterSet": "c"}]}), {COUNTERS}),
        ({"spec": {"sharedCounters": [{"name": "c"}]}}, {COUNTERS}),
        (slice_of({"name": "a"}, {"name": "b", "allowMultipleAllocations": True}), {SHARING}),
        (slice_of({"name": "a", "bindsToNode": True}), {"DRADeviceBindingConditions"}),
    ],
)
def test_the_gates_that_a_slice_needs(given: dict[str, Any], expected: set[str]) -> None:
    assert used(given) == expected


@pytest.mark.parametrize(
    ("field", "gate"),
    [
        ("bindingConditions", "DRADeviceBindingConditions"),
        ("bindingFailureConditions", "DRADeviceBindingConditions"),
        ("nodeAllocatableResources", "DRANodeAllocatableResources"),
        ("compatibilityGroups", "DRADeviceCompatibilityGroups"),
        ("partitionTypeAttribute", "DRAPartitionableDevicesType"),
        ("perDeviceNodeSelection", COUNTERS),
        ("consumesCounters", COUNTERS),
        ("allowMultipleAllocations", SHARING),
        ("attributes.x.ints", "DRAListTypeAttributes"),
        ("attributes.x.bools", "DRAListTypeAttributes"),
        ("attributes.x.versions", "DRAListTypeAttributes"),
        ("taints[0].effect", EFFECT_NONE),
    ],
)
def test_every_field_that_a_gate_guards_is_known(field: str, gate: str) -> None:
    assert gate_of(f"devices[a].{field}") == gate


def test_what_is_done_without_a_gate_is_said() -> None:
    assert remedy({TAINTS, COUNTERS, SHARING}) == (
        "devices that must not be allocated are left out, whole devices are published, their partitions are left out, "
        "shared devices are published for one claim each"
    )
    assert remedy({"DRAListTypeAttributes"}) == "the slices are published without them"


def test_a_gate_that_was_off_is_doubtful_after_a_while_and_asked_for_first() -> None:
    now = [1000.0]
    known = Gates(lambda: now[0])
    needs_taints = slice_of({"name": "a", "taints": [taint("k", "NoExecute")]})
    needs_sharing = slice_of({"name": "a", "allowMultipleAllocations": True})
    assert known.needs_probe(needs_taints), "dangerous to do without: asked for before the first write"
    assert not known.needs_probe(needs_sharing)
    known.record_dropped({TAINTS, SHARING, EFFECT_NONE})
    assert known.off == {TAINTS, SHARING, EFFECT_NONE}
    assert not known.needs_probe(needs_taints) and not known.needs_probe(needs_sharing), "it is known not to pass"
    now[0] += OFF_EXPIRES_AFTER_S
    known.expire_off()
    assert known.off == {TAINTS, SHARING, EFFECT_NONE}
    now[0] += 1
    known.expire_off()
    assert known.off == {EFFECT_NONE}, "no dry run asks for that one"
    assert known.needs_probe(needs_taints) and known.needs_probe(needs_sharing)
    known.record_stored(frozenset({TAINTS, SHARING}))
    assert not known.needs_probe(needs_taints) and not known.needs_probe(needs_sharing)
    known.record_dropped({SHARING})
    assert known.on == {TAINTS} and known.off == {SHARING, EFFECT_NONE}
    known.record_stored(frozenset({SHARING}))
    assert known.on == {TAINTS}, "what is stored from before the gate went off proves nothing"
    known.reset_off()
    assert known.off == set() and known.needs_probe(needs_sharing)


def test_without_sharing_neither_many_claims_nor_a_policy_of_requests_is_left() -> None:
    one = device(1)
    name, capacity = next(iter(one.capacity.items()), (None, None))
    shared = msgspec.structs.replace(one, allow_multiple_allocations=True)
    known = Gates()
    known.record_dropped({SHARING})
    (reduced,) = known.reduce(Inventory(devices=(shared,))).devices
    assert not reduced.allow_multiple_allocations and reduced.capacity.keys() == one.capacity.keys()
    if name is not None and capacity is not None:
        assert reduced.capacity[name].request_policy is None and reduced.capacity[name].value == capacity.value


def test_a_taint_that_keeps_nobody_away_costs_no_device() -> None:
    sick = tainted(device(1), "sick")
    harmless = msgspec.structs.replace(
        sick, name="harmless", taints=(msgspec.structs.replace(sick.taints[0], effect="None"),)
    )
    known = Gates()
    known.record_dropped({EFFECT_NONE})
    reduced = known.reduce(Inventory(devices=(sick, harmless))).devices
    assert [(one.name, len(one.taints)) for one in reduced] == [(sick.name, 1), ("harmless", 0)]
    known.record_dropped({TAINTS})
    assert [one.name for one in known.reduce(Inventory(devices=(sick, harmless))).devices] == ["harmless"]


def test_only_taints_without_effect_that_are_gone_are_named_one_by_one() -> None:
    sent = slice_of({"name": "a", "taints": [taint("k", "NoExecute"), taint("l", "None")]})
    kept = slice_of({"name": "a", "taints": [taint("k", "NoExecute")]})
    assert dropped_fields(sent, kept) == ["devices[a].taints[1].effect"]
    assert dropped_fields(sent, slice_of({"name": "a"})) == ["devices[a].taints"]
    assert dropped_fields(sent, sent) == []


def test_the_servers_words_name_the_taint() -> None:
    sent = slice_of({"name": "a", "taints": [taint("k", "NoExecute"), taint("l", "None")]}, {"name": "b"})
    says = "spec.devices[0].taints[1].effect: Unsupported value, spec.devices[0].taints[1].effect: again"
    assert refused_effects(sent, says) == ["devices[a].taints[1].effect"]
    for other in (
        "spec.devices[0].taints[0].effect: x",
        "spec.devices[7].taints[0].effect: x",
        "devices[1].taints[0].effect",
    ):
        assert refused_effects(sent, other) == []
    assert feature_gates.refused_effects(sent, "no") == []

"""What the agent learns about feature gates of the API server, for how long, and the inventory without them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_agent.inventory.api import Taint
from dra_agent.inventory.model import Inventory
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
    ("slice_", "expected"),
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
def test_gates_used_by_a_slice(slice_: dict[str, Any], expected: set[str]) -> None:
    assert used(slice_) == expected


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
def test_every_gated_field_maps_to_its_gate(field: str, gate: str) -> None:
    assert gate_of(f"devices[a].{field}") == gate


def test_the_remedy_for_a_disabled_gate_is_described() -> None:
    assert remedy({TAINTS, COUNTERS, SHARING}) == (
        "devices that must not be allocated are left out, whole devices are published, their partitions are left out, "
        "shared devices are published for one claim each"
    )
    assert remedy({"DRADeviceCompatibilityGroups"}) == "the slices are published without them"


def test_a_disabled_gate_is_rechecked_after_a_while() -> None:
    now = [1000.0]
    gates = Gates(lambda: now[0])
    needs_taints = slice_of({"name": "a", "taints": [taint("k", "NoExecute")]})
    needs_sharing = slice_of({"name": "a", "allowMultipleAllocations": True})
    assert gates.needs_probe(needs_taints), "devices must not be published without it: checked before the first write"
    assert not gates.needs_probe(needs_sharing)
    gates.record_dropped({TAINTS, SHARING, EFFECT_NONE})
    assert gates.off == {TAINTS, SHARING, EFFECT_NONE}
    assert not gates.needs_probe(needs_taints) and not gates.needs_probe(needs_sharing), "known to be disabled"
    now[0] += OFF_EXPIRES_AFTER_S
    gates.expire_off()
    assert gates.off == {TAINTS, SHARING, EFFECT_NONE}
    now[0] += 1
    gates.expire_off()
    assert gates.off == {EFFECT_NONE}, "no dry run checks that gate"
    assert gates.needs_probe(needs_taints) and gates.needs_probe(needs_sharing)
    gates.record_stored(frozenset({TAINTS, SHARING}))
    assert not gates.needs_probe(needs_taints) and not gates.needs_probe(needs_sharing)
    gates.record_dropped({SHARING})
    assert gates.on == {TAINTS} and gates.off == {SHARING, EFFECT_NONE}
    gates.record_stored(frozenset({SHARING}))
    assert gates.on == {TAINTS}, "a field stored before the gate was disabled proves nothing"
    gates.reset_off()
    assert gates.off == set() and gates.needs_probe(needs_sharing)


def test_without_sharing_a_device_has_no_request_policy() -> None:
    device_ = device(1)
    name, capacity = next(iter(device_.capacity.items()), (None, None))
    shared = msgspec.structs.replace(device_, allow_multiple_allocations=True)
    gates = Gates()
    gates.record_dropped({SHARING})
    (reduced,) = gates.reduce(Inventory(devices=(shared,))).devices
    assert not reduced.allow_multiple_allocations and reduced.capacity.keys() == device_.capacity.keys()
    if name is not None and capacity is not None:
        assert reduced.capacity[name].request_policy is None and reduced.capacity[name].value == capacity.value


def test_a_dropped_taint_of_effect_none_keeps_its_device() -> None:
    sick = tainted(device(1), "sick")
    harmless = msgspec.structs.replace(
        sick, name="harmless", taints=(msgspec.structs.replace(sick.taints[0], effect="None"),)
    )
    gates = Gates()
    gates.record_dropped({EFFECT_NONE})
    reduced = gates.reduce(Inventory(devices=(sick, harmless))).devices
    assert [(device_.name, len(device_.taints)) for device_ in reduced] == [(sick.name, 1), ("harmless", 0)]
    gates.record_dropped({TAINTS})
    assert [device_.name for device_ in gates.reduce(Inventory(devices=(sick, harmless))).devices] == ["harmless"]


def test_a_dropped_field_changes_no_other_field() -> None:
    gates, unmonitored = Gates(), msgspec.structs.replace(device(1), taints=(Taint("x/unmonitored", "None"),))
    shared = msgspec.structs.replace(device(2), allow_multiple_allocations=True)
    inventory = Inventory(devices=(unmonitored, shared))
    gates.record_dropped({COUNTERS})
    assert gates.reduce(inventory) == inventory
    gates.record_dropped({SHARING})
    assert [one.allow_multiple_allocations for one in gates.reduce(inventory).devices] == [False, False]
    assert gates.reduce(inventory).devices[0] == unmonitored


def test_only_dropped_taints_of_effect_none_are_listed() -> None:
    sent = slice_of({"name": "a", "taints": [taint("k", "NoExecute"), taint("l", "None")]})
    stored = slice_of({"name": "a", "taints": [taint("k", "NoExecute")]})
    assert dropped_fields(sent, stored) == ["devices[a].taints[1].effect"]
    assert dropped_fields(sent, slice_of({"name": "a"})) == ["devices[a].taints"]
    assert dropped_fields(sent, sent) == []


def test_the_server_error_identifies_the_taint() -> None:
    sent = slice_of({"name": "a", "taints": [taint("k", "NoExecute"), taint("l", "None")]}, {"name": "b"})
    message = "spec.devices[0].taints[1].effect: Unsupported value, spec.devices[0].taints[1].effect: again"
    assert refused_effects(sent, message) == ["devices[a].taints[1].effect"]
    for other in (
        "spec.devices[0].taints[0].effect: x",
        "spec.devices[7].taints[0].effect: x",
        "devices[1].taints[0].effect",
    ):
        assert refused_effects(sent, other) == []
    both = "spec.devices[7].taints[0].effect: x, spec.devices[0].taints[1].effect: x"
    assert refused_effects(sent, both) == ["devices[a].taints[1].effect"]
    assert feature_gates.refused_effects(sent, "no") == []

"""Fields that an API server drops silently while their feature gate is off, and the slices that are published instead.

Gates and fields: k8s.io/kubernetes/pkg/registry/resource/resourceslice/strategy.go (dropDisabledFields).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from dra_agent import _native
from dra_agent.inventory.api import AttributeList
from dra_agent.inventory.model import Device, Inventory
from dra_agent.slices import Slice

TAINTS = "DRADeviceTaints"
COUNTERS = "DRAPartitionableDevices"
SHARING = "DRAConsumableCapacity"
BINDING = "DRADeviceBindingConditions"
OVERHEAD = "DRANodeAllocatableResources"
LISTS = "DRAListTypeAttributes"
"""While it is off, the API server drops the list and then refuses the attribute, which has no value any more."""
EFFECT_NONE = "DeviceTaintEffectNone"
"""Not a gate, but detected in the same way: a taint effect that API servers support since Kubernetes 1.35. Version 1.34
refuses it (pkg/apis/resource/validation/validation.go, validDeviceTaintEffects)."""

_GATES = {
    "taints": TAINTS,
    "effect": EFFECT_NONE,
    "sharedCounters": COUNTERS,
    "consumesCounters": COUNTERS,
    "perDeviceNodeSelection": COUNTERS,
    "allowMultipleAllocations": SHARING,
    "requestPolicy": SHARING,
    "bindsToNode": BINDING,
    "bindingConditions": BINDING,
    "bindingFailureConditions": BINDING,
    "nodeAllocatableResources": OVERHEAD,
    "compatibilityGroups": "DRADeviceCompatibilityGroups",
    "partitionTypeAttribute": "DRAPartitionableDevicesType",
    "skipNodeOperations": "DRAOptionalNodeOperations",
    "ints": LISTS,
    "bools": LISTS,
    "strings": LISTS,
    "versions": LISTS,
}
_LIST_TYPES = ("ints", "bools", "strings", "versions")
_EFFECT = re.compile(r"devices\[(\d+)\]\.taints\[(\d+)\]\.effect\b")
_COUNTERS_ELSEWHERE = re.compile(
    r'devices\[(\d+)\]\.consumesCounters\[(\d+)\]\.counterSet: Invalid value: "[^"]*": must reference a counterSet\b'
)
"""Kubernetes 1.34 requires counters in the slice of their devices, and later versions in a slice without devices
(pkg/apis/resource/validation/validation.go of v1.34.4 and v1.35.3)."""
_ATTRIBUTE = re.compile(r"devices\[(\d+)\]\.attributes\[([^\]]+)\]:")
_NODE_WITHOUT_OVERHEAD = f"does not support {OVERHEAD} feature"
"""Of a 403: the gate is on in the API server and off in the kubelet of the node, which does not declare the feature
(k8s.io/kubernetes v1.37.1, plugin/pkg/admission/nodedeclaredfeatures/admission.go)."""
_UNSAFE = frozenset({TAINTS, COUNTERS})
"""Without them devices would be allocated that must not be: detected before the first write that needs them."""


def gate_of(path: str) -> str | None:
    """Name the gate that lets the field at this path pass."""
    for part in reversed(re.split(r"[.\[\]]+", path)):
        if part in _GATES:
            return _GATES[part]
    return None


def remedy(gates: set[str]) -> str:
    """Describe the published slices if these gates are off."""
    parts = []
    if TAINTS in gates:
        parts.append("devices that must not be allocated are left out")
    if COUNTERS in gates:
        parts.append("whole devices are published, their partitions are left out")
    if SHARING in gates:
        parts.append("shared devices are published for one claim each")
    if BINDING in gates:
        parts.append("no claim is prepared before its pod is bound")
    if OVERHEAD in gates:
        parts.append("pods are scheduled without the overhead of their devices")
    if LISTS in gates:
        parts.append("attributes with lists are left out")
    return ", ".join(parts) or "the slices are published without them"


def dropped_fields(sent: Slice, stored: Slice) -> list[str]:
    """Return the paths in the spec that the server did not store as sent. Fields that the server adds are ignored."""
    paths: list[str] = []
    _compare(sent["spec"], stored.get("spec"), "", paths)
    return paths


def refused_effects(sent: Slice, message: str) -> list[str]:
    """Return the paths of the taints with effect None for which the server rejects a slice, from its message."""
    paths = []
    for device, taint in dict.fromkeys(_EFFECT.findall(message)):
        try:
            entry = sent["spec"]["devices"][int(device)]
            effect = entry["taints"][int(taint)]["effect"]
        except (KeyError, IndexError):
            continue
        if effect == "None":
            paths.append(f"devices[{entry['name']}].taints[{taint}].effect")
    return paths


def refused_counters(sent: Slice, message: str) -> list[str]:
    """Return the paths of the counters for which Kubernetes 1.34 rejects a slice, from its message."""
    paths = []
    for device, consumption in dict.fromkeys(_COUNTERS_ELSEWHERE.findall(message)):
        try:
            entry = sent["spec"]["devices"][int(device)]
            entry["consumesCounters"][int(consumption)]
        except (KeyError, IndexError):
            continue
        paths.append(f"devices[{entry['name']}].consumesCounters")
    return list(dict.fromkeys(paths))


def refused_lists(sent: Slice, message: str) -> list[str]:
    """Return the paths of the list-typed attributes for which the server rejects a slice, from its message."""
    paths = []
    for device, name in dict.fromkeys(_ATTRIBUTE.findall(message)):
        try:
            entry = sent["spec"]["devices"][int(device)]
            found = entry["attributes"][name]
        except (KeyError, IndexError):
            continue
        paths += [f"devices[{entry['name']}].attributes.{name}.{kind}" for kind in _LIST_TYPES if kind in found]
    return paths


def refused_overhead(sent: Slice, message: str) -> list[str]:
    """Return the paths of the overheads for which the server rejects a slice, from its message."""
    if _NODE_WITHOUT_OVERHEAD not in message:
        return []
    field = "nodeAllocatableResources"
    return [f"devices[{entry['name']}].{field}" for entry in sent["spec"].get("devices") or () if entry.get(field)]


def _compare(sent: Any, stored: Any, path: str, paths: list[str]) -> None:
    if isinstance(sent, dict):
        if not isinstance(stored, dict):
            if sent:
                paths.append(path)
            return
        for key, value in sent.items():
            if key == "timeAdded":
                continue  # rounded and defaulted by the server
            if key == "taints":
                _compare_taints(value, stored.get(key), f"{path}.{key}", paths)
                continue
            _compare(value, stored.get(key), f"{path}.{key}" if path else key, paths)
    elif isinstance(sent, list):
        if not isinstance(stored, list) or len(stored) != len(sent):
            if sent:
                paths.append(path)
            return
        for at, (sent_item, stored_item) in enumerate(zip(sent, stored, strict=True)):
            name = sent_item.get("name", at) if isinstance(sent_item, dict) else at
            _compare(sent_item, stored_item, f"{path}[{name}]", paths)
    elif sent != stored and sent not in (None, False, "") and not _same_quantity(sent, stored):
        paths.append(path)


def _compare_taints(sent: list[Any], stored: Any, path: str, paths: list[str]) -> None:
    """If only taints with effect None are missing or changed, return these: other taints are supported."""
    found: list[str] = []
    _compare(sent, stored, path, found)
    without_effect = {at: taint for at, taint in enumerate(sent) if taint.get("effect") == "None"}
    if not found or not without_effect:
        paths += found
        return
    keys = {taint.get("key") for taint in without_effect.values()}
    others = [taint for taint in sent if taint.get("key") not in keys]
    rest: list[str] = []
    _compare(others, [taint for taint in stored or () if taint.get("key") not in keys], path, rest)
    paths += [path] if rest else [f"{path}[{at}].effect" for at in without_effect]


def _same_quantity(left: Any, right: Any) -> bool:
    """Whether both are amounts and equal: the server writes `1024Mi` as `1Gi`."""
    if not isinstance(left, str) or not isinstance(right, str):
        return False
    try:
        return bool(_native.quantity_compare(left, right) == 0)
    except ValueError:
        return False


OFF_EXPIRES_AFTER_S = 1800.0
"""How long a gate counts as off without another dry run: a control plane can be upgraded without breaking a watch."""


class Gates:
    """Known feature gates of the API server, detected from responses: a driver cannot query them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on: set[str] = set()
        self.off: set[str] = set()
        self._clock = clock
        self._learned: dict[str, float] = {}
        """When each gate was last detected as off; kept after it expired."""

    def record_stored(self, stored: frozenset[str]) -> None:
        """Record that the server stores these fields (`used`)."""
        self.on |= stored - self.off

    def record_dropped(self, gates: set[str]) -> None:
        """Record that the server drops these fields."""
        self.off |= gates
        self.on -= gates
        self._learned.update(dict.fromkeys(gates, self._clock()))

    def reset_off(self) -> None:
        """Assume that all fields are stored until a response shows otherwise: this may be another server.

        Gates that were off are tested with a dry run before the next write, so that nothing is lost.
        """
        self.off.clear()

    def expire_off(self) -> None:
        """Expire old results that a dry run can test again."""
        now = self._clock()
        self.off -= {gate for gate in self.off - {EFFECT_NONE} if now - self._learned[gate] > OFF_EXPIRES_AFTER_S}

    def needs_probe(self, slice_: Slice) -> bool:
        """Whether the slice needs a gate that may be off: one that was, or one that is dangerous to do without."""
        to_probe = _UNSAFE | (self._learned.keys() - {EFFECT_NONE})
        return bool((used(slice_) & to_probe) - self.on - self.off)

    def reduce(self, inventory: Inventory) -> Inventory:
        """Leave out fields that this server drops, such that no device is advertised that must not be allocated.

        Without taints a device that must not be allocated is omitted. Without counters the scheduler does not know
        that a partition is a part of a whole device, so the whole devices are published and their parts are not.
        """
        if not self.off:
            return inventory
        names = {device.name for device in inventory.devices}
        reduced = (self._reduce(device, names) for device in inventory.devices)
        return msgspec.structs.replace(
            inventory,
            devices=tuple(device for device in reduced if device is not None),
            counter_sets={} if COUNTERS in self.off else inventory.counter_sets,
        )

    def _reduce(self, device: Device, names: set[str]) -> Device | None:
        if self.off & {TAINTS, EFFECT_NONE} and device.taints:
            taints = tuple(taint for taint in device.taints if taint.effect != "None")
            if taints and TAINTS in self.off:
                return None
            device = msgspec.structs.replace(device, taints=taints)
        if COUNTERS in self.off and device.consumes_counters:
            if device.identity.get("parent") in names:
                return None
            device = msgspec.structs.replace(device, consumes_counters=())
        if SHARING in self.off and device.allow_multiple_allocations:
            capacity = {name: msgspec.structs.replace(c, request_policy=None) for name, c in device.capacity.items()}
            device = msgspec.structs.replace(device, allow_multiple_allocations=False, capacity=capacity)
        if BINDING in self.off and device.binding_conditions:
            device = msgspec.structs.replace(device, binding_conditions=(), binding_failure_conditions=())
        if OVERHEAD in self.off and device.overhead:
            device = msgspec.structs.replace(device, overhead={})
        if LISTS in self.off and any(isinstance(value, AttributeList) for value in device.attributes.values()):
            plain = {name: one for name, one in device.attributes.items() if not isinstance(one, AttributeList)}
            device = msgspec.structs.replace(device, attributes=plain)
        return device


def used(slice_: Slice) -> frozenset[str]:
    """Return the gates of which a slice uses fields."""
    spec = slice_["spec"]
    gates = {COUNTERS} if spec.get("sharedCounters") else set()
    for device in spec.get("devices") or ():
        gates |= {_GATES[key] for key in device.keys() & _GATES.keys() - {"taints"} if device[key]}
        # A taint with effect None prevents nothing, so leaving it out is safe without a dry run.
        if any(taint.get("effect") != "None" for taint in device.get("taints") or ()):
            gates.add(TAINTS)
        if any(kind in value for value in (device.get("attributes") or {}).values() for kind in _LIST_TYPES):
            gates.add(LISTS)
    return frozenset(gates)

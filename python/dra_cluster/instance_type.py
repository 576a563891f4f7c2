"""The devices of a node of one kind in the form of an instance type of Karpenter.

Source: DynamicResources, ResourceSliceTemplate, Device and AttributeBinding of kubernetes-sigs/karpenter,
pkg/cloudprovider/dynamicresources.go at v1.15.0. The names of the fields are those in Go, in lower camel case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from dra_agent.api_object import Object
from dra_agent.slices.desired import Slice
from dra_cluster.template import Template

_DEVICE_FIELDS = ("name", "attributes", "capacity", "allowMultipleAllocations", "consumesCounters")
MIN_BOUND_DEVICES = 2
"""Devices of a binding; Karpenter ignores one with fewer."""


def dynamic_resources(template: Template, slices: Iterable[Slice]) -> Object:
    """Return the templates of slices, and the sets of devices whose value of a removed attribute is equal.

    Arguments:
        template: The slices of a node of this kind.
        slices: The slices that it was made of, with all attributes.
    """
    return {
        "resourceSliceTemplates": [_slice_template(entry["spec"]) for entry in template.slices],
        "attributeBindings": _bindings(slices, template.left_out),
    }


def unsupported_fields(template: Template) -> list[str]:
    """Return the fields of devices that an instance type has no place for."""
    devices = (device for entry in template.slices for device in entry["spec"].get("devices") or ())
    return sorted({field for device in devices for field in device if field not in _DEVICE_FIELDS})


def _slice_template(spec: Object) -> Object:
    found: Object = {"driver": spec["driver"], "pool": {"name": spec["pool"]["name"]}}
    # A template has either devices or counter sets, as a slice does.
    if devices := spec.get("devices"):
        found["devices"] = [{key: device[key] for key in _DEVICE_FIELDS if key in device} for device in devices]
    if counters := spec.get("sharedCounters"):
        found["sharedCounters"] = counters
    return found


def _bindings(slices: Iterable[Slice], attributes: Sequence[str]) -> list[Object]:
    """Return the sets of devices with an equal value of an attribute, by its qualified name."""
    sets: dict[tuple[str, str], list[Object]] = {}
    for entry in slices:
        spec = entry["spec"]
        for device in spec.get("devices") or ():
            for name in attributes:
                value = (device.get("attributes") or {}).get(name)
                # Lists are equal if they have one value in common, which a set of devices does not describe.
                if isinstance(value, dict) and not any(isinstance(one, list) for one in value.values()):
                    qualified = name if "/" in name else f"{spec['driver']}/{name}"
                    device_id = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
                    sets.setdefault((qualified, json.dumps(value, sort_keys=True)), []).append(device_id)
    return [
        {"attribute": name, "devices": devices}
        for (name, _), devices in sorted(sets.items())
        if len(devices) >= MIN_BOUND_DEVICES
    ]

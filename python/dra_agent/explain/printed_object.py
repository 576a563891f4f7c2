"""Objects that a cluster printed: the version, the name, and the types of the fields that Python code reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_agent.errors import UsageError
from dra_agent.manifests import LoadedObject

Object = dict[str, Any]
API_VERSION = "resource.k8s.io/v1"
RESOURCE_KINDS = {"ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "DeviceTaintRule"}
_NAMESPACED = {"ResourceClaim", "ResourceClaimTemplate", "Pod", "ResourceQuota"}
_REQUESTS: Object = {"devices": {"requests": [{"exactly": {}, "firstAvailable": [{}]}]}}
_RESOURCES: list[Object] = [{"resources": {"limits": {}, "requests": {}}}]
_TERM: Object = {"matchExpressions": [{}], "matchFields": [{}]}
_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]}}}
_METADATA: Object = {"name": str, "namespace": str}
_POD: Object = {
    "metadata": _METADATA,
    "spec": {
        "nodeSelector": {},
        "tolerations": [{}],
        "affinity": _AFFINITY,
        "resourceClaims": [{"name": str, "resourceClaimName": str, "resourceClaimTemplateName": str}],
        "containers": _RESOURCES,
        "initContainers": _RESOURCES,
        "schedulingGroup": {},
    },
    "status": {
        "resourceClaimStatuses": [{"name": str, "resourceClaimName": str}],
        "extendedResourceClaimStatus": {},
    },
}
_WORKLOAD: Object = {"spec": {"template": _POD}}
_SHAPES: dict[str, Object] = {
    "ResourceSlice": {
        "spec": {
            "driver": str,
            "nodeName": str,
            "pool": {"name": str},
            "sharedCounters": [{"name": str, "counters": {}}],
            "devices": [
                {
                    "name": str,
                    "taints": [{}],
                    "attributes": {},
                    "capacity": {},
                    "consumesCounters": [{"counterSet": str, "counters": {}}],
                }
            ],
        },
    },
    "DeviceClass": {"spec": {}},
    "ResourceClaim": {"spec": _REQUESTS, "status": {"allocation": {"devices": {}}, "reservedFor": [{}]}},
    "ResourceClaimTemplate": {"spec": {"spec": _REQUESTS}},
    "DeviceTaintRule": {"spec": {"deviceSelector": {}, "taint": {}}},
    "Pod": _POD,
    "Node": {"metadata": {**_METADATA, "labels": {}}, "spec": {"taints": [{}]}},
    "JobSet": {"spec": {"replicatedJobs": [{"template": _WORKLOAD}]}},
    "ResourceQuota": {"status": {"hard": {}, "used": {}}},
}
"""The objects, lists and names that are read in Python, by kind. The allocator checks the others."""


def checked(loaded: LoadedObject) -> Object:
    """Return an object whose fields have the right types, with a namespace where its kind has one."""
    value, kind = loaded.value, loaded.kind
    if kind in RESOURCE_KINDS and kind != "DeviceTaintRule" and value.get("apiVersion") != API_VERSION:
        raise UsageError(
            f"{kind} {loaded.name} is of version {value.get('apiVersion')}, only {API_VERSION} is read",
            where=loaded.where("apiVersion"),
            hint=f"export it with `kubectl get {kind.lower()}s.v1.resource.k8s.io -o yaml`",
        )
    for field, expected in _misfits(value, {"metadata": _METADATA, **_SHAPES.get(kind, _WORKLOAD)}):
        raise UsageError(f"{kind} {loaded.name}: {field} is not {expected}", where=loaded.where(field))
    if not loaded.name:
        raise UsageError(f"a {kind} has no name", where=loaded.where("metadata.name"))
    if kind not in _NAMESPACED:
        return value
    return {**value, "metadata": {**value["metadata"], "namespace": value["metadata"].get("namespace") or "default"}}


def _misfits(value: Any, shape: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields that are neither absent nor of the type that the shape has, with that type."""
    if value is None:
        return
    if shape is str:
        if not isinstance(value, str):
            yield field, "a string"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield field, "a list"
            return
        for index, entry in enumerate(value):
            if entry is None:
                yield f"{field}[{index}]", "an object"
            yield from _misfits(entry, shape[0], f"{field}[{index}]")
    elif not isinstance(value, dict):
        yield field, "an object"
    else:
        for key, below in shape.items():
            yield from _misfits(value.get(key), below, f"{field}.{key}" if field else key)

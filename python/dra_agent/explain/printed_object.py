"""Objects that a cluster printed: the version, the name, and the types of the fields that Python code reads."""

from __future__ import annotations

from typing import Any

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_agent.manifests import LoadedObject

API_VERSION = "resource.k8s.io/v1"
RESOURCE_KINDS = {"ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "DeviceTaintRule"}
_CLUSTER_SCOPED = {"ResourceSlice", "DeviceClass", "DeviceTaintRule", "Node"}
_EVERY = "*"
"""The key of a shape that all values of an object have."""
_TEXTS: Object = {_EVERY: str}
_EXACTLY: Object = {"deviceClassName": str, "count": int}
_REQUESTS: Object = {"devices": {"requests": [{"exactly": _EXACTLY, "firstAvailable": [_EXACTLY]}]}}
_RESOURCES: list[Object] = [{"resources": {"limits": {}, "requests": {}}}]
_EXPRESSIONS: list[Object] = [{"key": str, "operator": str, "values": [str]}]
_NODE_SELECTOR: Object = {"nodeSelectorTerms": [{"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS}]}
_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _NODE_SELECTOR}}
_TAINT: Object = {"key": str, "value": str, "effect": str}
_TOLERATIONS: list[Object] = [{"key": str, "operator": str, "value": str, "effect": str}]
_CONDITIONS: list[Object] = [{"type": str, "status": str, "reason": str, "message": str, "lastTransitionTime": str}]
_INT_64 = range(-(1 << 63), 1 << 63)
_METADATA: Object = {
    "name": str,
    "namespace": str,
    "creationTimestamp": str,
    "deletionTimestamp": str,
    "labels": {},
    "annotations": {},
    "ownerReferences": [{}],
}
_POD_CLAIM: Object = {"name": str, "resourceClaimName": str, "resourceClaimTemplateName": str}
_CLAIM_NAMES: list[Object] = [{"name": str, "resourceClaimName": str}]
_POD: Object = {
    "metadata": {**_METADATA, "labels": _TEXTS},
    "spec": {
        "nodeName": str,
        "nodeSelector": _TEXTS,
        "tolerations": _TOLERATIONS,
        "schedulingGates": [{"name": str}],
        "affinity": _AFFINITY,
        "resourceClaims": [_POD_CLAIM],
        "containers": _RESOURCES,
        "initContainers": _RESOURCES,
        "schedulingGroup": {"podGroupName": str},
    },
    "status": {
        "phase": str,
        "conditions": _CONDITIONS,
        "containerStatuses": [{"state": {"waiting": {"reason": str, "message": str}}}],
        "resourceClaimStatuses": _CLAIM_NAMES,
        "extendedResourceClaimStatus": {"resourceClaimName": str},
    },
}
_WORKLOAD: Object = {
    "spec": {"template": _POD, "selector": {"matchLabels": _TEXTS, "matchExpressions": _EXPRESSIONS}},
    "status": {"conditions": _CONDITIONS},
}
_DEVICE: Object = {"driver": str, "pool": str, "device": str, "shareID": str}
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
    "DeviceClass": {"spec": {"extendedResourceName": str}},
    "ResourceClaim": {
        "metadata": {**_METADATA, "finalizers": [str]},
        "spec": _REQUESTS,
        "status": {
            "allocation": {
                "nodeSelector": _NODE_SELECTOR,
                "devices": {"results": [{**_DEVICE, "bindingConditions": [str], "bindingFailureConditions": [str]}]},
            },
            "reservedFor": [{"resource": str, "name": str}],
            "devices": [{**_DEVICE, "conditions": _CONDITIONS}],
        },
    },
    "ResourceClaimTemplate": {"spec": {"spec": _REQUESTS}},
    "DeviceTaintRule": {
        "spec": {
            "deviceSelector": {"deviceClassName": str, "selectors": [{"cel": {"expression": str}}]},
            "taint": _TAINT,
        }
    },
    "Pod": _POD,
    "Node": {
        "metadata": {**_METADATA, "labels": _TEXTS},
        "spec": {"taints": [_TAINT]},
        "status": {"allocatable": {}},
    },
    "JobSet": {
        "spec": {"replicatedJobs": [{"name": str, "template": _WORKLOAD, "dependsOn": [{}]}]},
        "status": {"conditions": _CONDITIONS, "replicatedJobsStatus": [{"name": str}]},
    },
    "Workload": {
        "spec": {"podSets": [{"name": str, "template": _POD}]},
        "status": {
            "conditions": _CONDITIONS,
            "admissionChecks": [{"name": str, "state": str, "message": str, "lastTransitionTime": str}],
            "reclaimablePods": [{"name": str}],
        },
    },
    "PodGroup": {
        "spec": {
            "parentCompositePodGroupName": str,
            "schedulingPolicy": {"gang": {"minCount": int}},
            "schedulingConstraints": {"topology": [{"key": str}]},
            "resourceClaims": [_POD_CLAIM],
        },
        "status": {"conditions": _CONDITIONS, "resourceClaimStatuses": _CLAIM_NAMES},
    },
    "CompositePodGroup": {
        "spec": {"parentCompositePodGroupName": str},
        "status": {"conditions": _CONDITIONS},
    },
    "ResourceQuota": {
        "spec": {"scopeSelector": {"matchExpressions": [{}]}},
        "status": {"hard": {}, "used": {}},
    },
}
"""The objects, lists and names that are read in Python, by kind. The allocator checks the others."""


def checked(loaded: LoadedObject) -> Object:
    """Return the object, with a namespace if its kind has one; raises UsageError for fields of other types."""
    value, kind = loaded.value, loaded.kind
    if kind in RESOURCE_KINDS and kind != "DeviceTaintRule" and value.get("apiVersion") != API_VERSION:
        raise UsageError(
            f"{kind} {loaded.name} is of version {value.get('apiVersion')}, only {API_VERSION} is read",
            where=loaded.where("apiVersion"),
            hint=f"export it with `kubectl get {kind.lower()}s.v1.resource.k8s.io -o yaml`",
        )
    if misfit := first_misfit(kind, value):
        field, expected = misfit
        raise UsageError(f"{kind} {loaded.name}: {field} is not {expected}", where=loaded.where(field))
    if not loaded.name:
        raise UsageError(f"a {kind} has no name", where=loaded.where("metadata.name"))
    if kind in _CLUSTER_SCOPED:
        return value
    return {**value, "metadata": {**value["metadata"], "namespace": value["metadata"].get("namespace") or "default"}}


def first_misfit(kind: str, value: Object) -> tuple[str, str] | None:
    """Return the first field that is neither absent nor of its type, and this type; None if there is none."""
    found = _misfit(value, {"metadata": _METADATA, **_SHAPES.get(kind, _WORKLOAD)})
    return found and (found[0].removeprefix("."), found[1])


def _misfit(value: Any, shape: Any) -> tuple[str, str] | None:
    """Return the path below `value` of the first field that has another type than in the shape, and this type."""
    if shape is str:
        return None if isinstance(value, str) else ("", "a string")
    if shape is int:
        is_integer = isinstance(value, int) and not isinstance(value, bool) and value in _INT_64
        return None if is_integer else ("", "an integer of 64 bits")
    if isinstance(shape, list):
        if not isinstance(value, list):
            return "", "a list"
        for index, entry in enumerate(value):
            found = ("", "an object") if entry is None else _misfit(entry, shape[0])
            if found:
                return f"[{index}]{found[0]}", found[1]
        return None
    if not isinstance(value, dict):
        return "", "an object"
    for key, below in dict.fromkeys(value, shape[_EVERY]).items() if _EVERY in shape else shape.items():
        entry = value.get(key)
        # Without a call for most fields: a cluster has a hundred thousand of them.
        if entry is None or (below is str and type(entry) is str) or (not below and type(entry) is dict):
            continue
        if found := _misfit(entry, below):
            return f".{key}{found[0]}", found[1]
    return None

"""Why the API server would refuse further claims: ResourceQuotas, and a namespace without admin access.

Source of what a quota counts: pkg/quota/v1/evaluator/core/resource_claims.go at v1.37.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dra_agent.api_object import Object, requests_of, subrequests_of
from dra_cluster.amount import amount, text
from dra_cluster.explain.extended_resources import IMPLICIT, resources_of
from dra_cluster.explain.snapshot import Snapshot

MAX_DEVICES = 32
"""Devices that a request for all counts against a quota (AllocationResultsMaxSize, api/resource/v1/types.go)."""
ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_CLAIMS = "count/resourceclaims.resource.k8s.io"
_DEVICES = ".deviceclass.resource.k8s.io/devices"
_REQUESTS = "requests."
_FOR_EXTENDED_RESOURCES = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of the claim that kube-scheduler created for the extended resources of a pod."""


@dataclass(frozen=True)
class NewClaim:
    """A claim that is still to be created."""

    claim: Object
    resources: Mapping[str, int]
    """The extended resources for which it is created, as its pod requests them; empty for other claims."""
    pod_exists: bool = True
    """Quotas count the resources of its pod already."""


def admission_blockers(snapshot: Snapshot, claims: Sequence[NewClaim], subject: str) -> list[str]:
    """Return why the API server would refuse claims, all together; `subject` begins the end of a message on a quota."""
    labels = ((snapshot.namespace_object or {}).get("metadata") or {}).get("labels") or {}
    is_admin = labels.get(ADMIN_LABEL) == "true" or snapshot.namespace_object is None
    found = []
    if not is_admin and any(request.get("adminAccess") for new in claims for request in subrequests_of(new.claim)):
        found.append(f"it requests admin access, and namespace {snapshot.namespace} has no label {ADMIN_LABEL}=true")
    return found + quota_blockers(snapshot, claims, subject)


def quota_blockers(snapshot: Snapshot, claims: Sequence[NewClaim], subject: str) -> list[str]:
    """Return which quotas do not permit further claims, all together; `subject` begins the end of each message."""
    quotas = [quota for quota in snapshot.quotas if not _has_scopes(quota)]
    if not quotas:
        return []
    names = None if snapshot.classes is None else _extended_names(snapshot.classes)
    usage = Counter[str]()
    for new in claims:
        usage.update(_usage(new, names))
    found = []
    for quota in quotas:
        status = quota.get("status") or {}
        for key, count in usage.items():
            hard = amount((status.get("hard") or {}).get(key))
            used = amount((status.get("used") or {}).get(key)) or Fraction(0)
            if count and hard is not None and used + count > hard:
                name = quota["metadata"]["name"]
                found.append(f"quota {name} allows {text(hard)} of {key}, {text(used)} are used, and {subject} {count}")
    return found


def quotas_without(snapshot: Snapshot, claim: Object) -> list[Object]:
    """Return the quotas as if a claim of the namespace was deleted; its pod remains."""
    names = None if snapshot.classes is None else _extended_names(snapshot.classes)
    owners = [one.get("name") for one in claim["metadata"].get("ownerReferences") or () if one.get("kind") == "Pod"]
    is_extended = (claim["metadata"].get("annotations") or {}).get(_FOR_EXTENDED_RESOURCES) == "true"
    pod = snapshot.pod(str(owners[0])) if owners and is_extended else None
    resources = {} if pod is None else resources_of(pod, snapshot.classes or ())
    usage = _usage(NewClaim(claim, resources), names)
    return [quota if _has_scopes(quota) else _less_used(quota, usage) for quota in snapshot.quotas]


def _less_used(quota: Object, usage: Mapping[str, int]) -> Object:
    status = quota.get("status") or {}
    used = {
        key: value if (number := amount(value)) is None else text(max(Fraction(0), number - usage.get(key, 0)))
        for key, value in (status.get("used") or {}).items()
    }
    return {**quota, "status": {**status, "used": used}}


def _has_scopes(quota: Object) -> bool:
    """Return whether a quota has scopes: claims match none, so it does not count them."""
    spec = quota.get("spec") or {}
    return bool(spec.get("scopes") or (spec.get("scopeSelector") or {}).get("matchExpressions"))


def _extended_names(classes: Iterable[Object]) -> dict[str, str]:
    """Return the extended resource of each class by its name; "" for one that has only the implicit one."""
    return {str(one["metadata"]["name"]): (one.get("spec") or {}).get("extendedResourceName") or "" for one in classes}


def _usage(new: NewClaim, extended_names: Mapping[str, str] | None) -> Counter[str]:
    """Return what a claim adds to quotas, by the name of the resource; None: the classes are not known."""
    devices = _devices_by_class(new.claim)
    usage = Counter({_CLAIMS: 1, **{f"{name}{_DEVICES}": count for name, count in devices.items()}})
    extended: dict[str, int] = {}
    for name, count in devices.items():
        if extended_names is None or name in extended_names:
            extended[f"{_REQUESTS}{IMPLICIT}{name}"] = count
        if resource := (extended_names or {}).get(name):
            extended[f"{_REQUESTS}{resource}"] = max(count, extended.get(f"{_REQUESTS}{resource}", 0))
    # Of the devices of an extended resource, those that its pod counts are not counted again.
    of_pod = {f"{_REQUESTS}{resource}": count for resource, count in new.resources.items()}
    for key in extended.keys() | of_pod.keys():
        by_claim, by_pod = extended.get(key, 0), of_pod.get(key, 0)
        usage[key] = max(0, by_claim - by_pod) if new.pod_exists else max(by_claim, by_pod)
    return usage


def _devices_by_class(claim: Object) -> dict[str, int]:
    """Count the devices of a claim: of alternatives the largest number of each class."""
    counts = Counter[str]()
    for request in requests_of(claim):
        largest: dict[str, int] = {}
        for one in [request.get("exactly") or {}] if "exactly" in request else request.get("firstAvailable") or ():
            if name := one.get("deviceClassName"):
                largest[name] = max(largest.get(name, 0), _devices(one))
        counts.update(largest)
    return dict(counts)


def _devices(request: Object) -> int:
    match request.get("allocationMode") or "ExactCount":
        case "ExactCount":
            return int(request.get("count") or 1)
        case "All":
            return MAX_DEVICES
    return 0  # Quotas do not count modes that this version does not know.

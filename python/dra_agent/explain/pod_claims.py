"""The claims of a pod: by name, from templates, and for extended resources.

A claim that does not exist yet is generated as Kubernetes would, and obstacles to its creation are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_agent.api_object import Object
from dra_agent.explain.files import claim_of_template
from dra_agent.explain.snapshot import Snapshot, group_name

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resources that every DeviceClass has (KEP-5004)."""
ALL_COUNTS = 32
"""Devices that a request for all counts against a quota (pkg/quota/v1/evaluator/core/resource_claims.go)."""
ADMIN_LABEL = "resource.kubernetes.io/admin-access"


@dataclass
class PodClaim:
    """One claim of a pod."""

    name: str
    """As the pod calls it."""
    claim: Object | None = None
    exists: bool = True
    """If not, the claim is the one that would be created."""
    of_group: bool = False
    """The pods of the group share it (KEP-5729)."""
    problems: list[str] = field(default_factory=list)
    """Why the claim does not exist or cannot be created."""


def pod_claims(snapshot: Snapshot, pod: Object) -> list[PodClaim]:
    """Find the claims of a pod."""
    statuses = _generated(pod)
    group = snapshot.group_of(pod) or {}
    shared, of_group = (group.get("spec") or {}).get("resourceClaims") or (), _generated(group)
    found = []
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = entry.get("name") or ""
        is_shared = any(_same_claim(entry, one) for one in shared)
        if name in of_group and is_shared:
            statuses.setdefault(name, of_group[name])
        if entry.get("resourceClaimName"):
            found.append(_existing(snapshot, name, entry["resourceClaimName"]))
        elif generated := statuses.get(name):
            found.append(_existing(snapshot, name, generated))
        elif name not in statuses:
            owner = group if is_shared else pod
            found.append(_from_template(snapshot, name, entry.get("resourceClaimTemplateName") or "", owner))
        else:
            continue  # A status without a claim name means that no claim is needed.
        found[-1].of_group = is_shared
    extended = ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    if extended:
        found.append(_existing(snapshot, "extended resources", extended))
    elif claim := _of_extended_resources(snapshot, pod):
        found.append(PodClaim("extended resources", claim, exists=False, problems=admission_blockers(snapshot, claim)))
    return found


def group_notes(snapshot: Snapshot, pod: Object) -> list[str]:
    """Return notes on the pod's group."""
    name, member = group_name(pod), pod["metadata"]["name"]
    if not name or snapshot.groups is None:
        return []
    if snapshot.group_of(pod) is None:
        return [f"there is no pod group {snapshot.namespace}/{name}, which pod {member} waits for"]
    return [f"pod group {name} is placed as a whole; this evaluates pod {member} only"]


def _generated(owner: Object) -> dict[str, str | None]:
    """The claims that were made for a pod or a pod group, by its names for them."""
    statuses = (owner.get("status") or {}).get("resourceClaimStatuses") or ()
    return {entry.get("name", ""): entry.get("resourceClaimName") for entry in statuses}


def _same_claim(one: Object, other: Object) -> bool:
    """Whether a pod and its group mean one claim: all fields are equal (core/v1 PodResourceClaim)."""
    fields = ("name", "resourceClaimName", "resourceClaimTemplateName")
    return all((one.get(key) or "") == (other.get(key) or "") for key in fields)


def admission_blockers(snapshot: Snapshot, claim: Object) -> list[str]:
    """Return why the API server would reject a claim: a quota, or a namespace without admin access."""
    found = []
    labels = ((snapshot.namespace_object or {}).get("metadata") or {}).get("labels") or {}
    requests = _requests(claim)
    labelled = labels.get(ADMIN_LABEL) == "true" or snapshot.namespace_object is None
    if any(one.get("adminAccess") for one in requests) and not labelled:
        found.append(f"it requests admin access, and namespace {snapshot.namespace} has no label {ADMIN_LABEL}=true")
    return found + quota_blockers(snapshot, [claim], "it needs")


def quota_blockers(snapshot: Snapshot, claims: Sequence[Object], subject: str) -> list[str]:
    """Return which quotas do not permit further claims, all together; `subject` begins the end of each message."""
    found = []
    requested = Counter({"count/resourceclaims.resource.k8s.io": len(claims)})
    for claim in claims if snapshot.quotas else ():
        for name, count in devices_by_class(claim).items():
            requested[f"{name}.deviceclass.resource.k8s.io/devices"] += count
    for quota in snapshot.quotas:
        status = quota.get("status") or {}
        for key, count in requested.items():
            hard, used = _number((status.get("hard") or {}).get(key)), _number((status.get("used") or {}).get(key)) or 0
            if count and hard is not None and used + count > hard:
                name = quota["metadata"]["name"]
                found.append(f"quota {name} allows {hard} of {key}, {used} are used, and {subject} {count}")
    return found


def devices_by_class(claim: Object) -> dict[str, int]:
    """Count the devices of a claim as quotas do: of alternatives the largest of each class."""
    counts: dict[str, int] = {}
    for request in requests_of(claim):
        largest: dict[str, int] = {}
        for one in [request.get("exactly") or {}] if "exactly" in request else request.get("firstAvailable") or ():
            if not (name := one.get("deviceClassName")):
                continue
            count = ALL_COUNTS if one.get("allocationMode") == "All" else int(one.get("count") or 1)
            largest[name] = max(largest.get(name, 0), count)
        for name, count in largest.items():
            counts[name] = counts.get(name, 0) + count
    return counts


def classes_of(claims: Iterable[Object]) -> set[str]:
    """Return the names of the classes that claims request."""
    return {one["deviceClassName"] for claim in claims for one in _requests(claim) if one.get("deviceClassName")}


def _existing(snapshot: Snapshot, name: str, claim_name: str) -> PodClaim:
    claim = snapshot.claim(claim_name)
    if claim is None:
        return PodClaim(name, problems=[f"there is no claim {snapshot.namespace}/{claim_name}"])
    return PodClaim(name, claim)


def _from_template(snapshot: Snapshot, name: str, template_name: str, owner: Object) -> PodClaim:
    if snapshot.templates is None:
        return PodClaim(name, problems=[f"no claim was made from template {template_name} yet"], exists=False)
    for template in snapshot.templates:
        if (template.get("metadata") or {}).get("name") == template_name:
            claim = claim_of_template(template)
            claim["metadata"] = {"name": f"{owner['metadata']['name']}-{name}", "namespace": snapshot.namespace}
            return PodClaim(name, claim, exists=False, problems=admission_blockers(snapshot, claim))
    missing = f"there is no ResourceClaimTemplate {snapshot.namespace}/{template_name} to make the claim from"
    return PodClaim(name, exists=False, problems=[missing])


def _of_extended_resources(snapshot: Snapshot, pod: Object) -> Object | None:
    """Generate the claim that the scheduler creates for extended resources of DeviceClasses (KEP-5004)."""
    by_resource = _classes_by_resource(snapshot.classes or ())
    requests = []
    spec = pod.get("spec") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    for index, container in enumerate(containers):
        resources = container.get("resources") or {}
        amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for number, resource in enumerate(sorted(set(amounts) & set(by_resource))):
            count = _number(amounts[resource])
            if count:
                exactly = {"deviceClassName": by_resource[resource], "allocationMode": "ExactCount", "count": count}
                requests.append({"name": f"container-{index}-request-{number}", "exactly": exactly})
    if not requests:
        return None
    metadata = {"name": f"{pod['metadata']['name']}-extended-resources", "namespace": snapshot.namespace}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": requests}},
    }


def _classes_by_resource(classes: Iterable[Object]) -> dict[str, str]:
    """Return the class that serves each extended resource: of several the newest one, then the first by name.

    Source: k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache.
    """
    by_name = sorted(classes, key=lambda one: str(one["metadata"]["name"]))
    newest = sorted(by_name, key=lambda one: str(one["metadata"].get("creationTimestamp") or ""), reverse=True)
    found: dict[str, str] = {}
    for one in newest:
        name = str(one["metadata"]["name"])
        found[IMPLICIT + name] = name
        if explicit := (one.get("spec") or {}).get("extendedResourceName"):
            found.setdefault(explicit, name)
    return found


def requests_of(claim: Object) -> list[Object]:
    """Return the requests of a claim."""
    devices = ((claim.get("spec") or {}).get("devices")) or {}
    return list(devices.get("requests") or ())


def _requests(claim: Object) -> list[Object]:
    return [
        one
        for request in requests_of(claim)
        for one in ([request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ())
    ]


def _number(value: Any) -> int | None:
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if 0 <= number < 1 << 63 else None

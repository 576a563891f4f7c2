"""The claims of a pod: by name, from templates, and for extended resources.

A claim that does not exist yet is generated as Kubernetes would, and obstacles to its creation are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dra_agent.api_object import Object, subrequests_of
from dra_agent.explain.files import claim_of_template
from dra_cluster.explain.claim_admission import NewClaim, admission_blockers, quota_blockers
from dra_cluster.explain.extended_resources import claim_of_extended_resources, resources_of
from dra_cluster.explain.snapshot import Snapshot, group_name

EXTENDED_RESOURCES = "extended resources"
"""The name of a pod's claim for its extended resources."""
_IT_NEEDS = "it needs"


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
    resources: Mapping[str, int] = field(default_factory=dict)
    """The extended resources of the pod for which it is created; empty for other claims."""
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
    classes = snapshot.classes or ()
    if extended:
        found.append(_existing(snapshot, EXTENDED_RESOURCES, extended))
        found[-1].resources = resources_of(pod, classes)
    elif (pod.get("spec") or {}).get("nodeName"):
        pass  # Without a claim, the device plugin of the node serves them.
    elif claim := claim_of_extended_resources(pod, snapshot.namespace, classes):
        new = NewClaim(claim, resources_of(pod, classes), is_stored(pod))
        problems = admission_blockers(snapshot, [new], _IT_NEEDS)
        found.append(PodClaim(EXTENDED_RESOURCES, claim, exists=False, resources=new.resources, problems=problems))
    _add_quota_of_all(snapshot, pod, found)
    return found


def extended_need(needs: Iterable[PodClaim]) -> PodClaim | None:
    """Return the claim for extended resources that kube-scheduler would create for a pod: the last one, if any."""
    return next((need for need in needs if need.name == EXTENDED_RESOURCES and not need.exists), None)


def _add_quota_of_all(snapshot: Snapshot, pod: Object, needs: Iterable[PodClaim]) -> None:
    """Add the problem of a claim that a quota permits alone, but not after those before it."""
    new: list[NewClaim] = []
    for need in needs:
        if need.claim is None or need.exists:
            continue
        new.append(NewClaim(need.claim, need.resources, is_stored(pod)))
        if len(new) > 1 and not need.problems:
            need.problems += quota_blockers(snapshot, new, "the claims of the pod need")


def is_stored(pod: Object) -> bool:
    """Return whether a pod exists in the cluster, and is not one that would be created."""
    return bool(pod["metadata"].get("uid"))


def pod_notes(snapshot: Snapshot, pod: Object) -> list[str]:
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


def classes_of(claims: Iterable[Object]) -> set[str]:
    """Return the names of the classes that claims request."""
    return {one["deviceClassName"] for claim in claims for one in subrequests_of(claim) if one.get("deviceClassName")}


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
            problems = admission_blockers(snapshot, [NewClaim(claim, {})], _IT_NEEDS)
            return PodClaim(name, claim, exists=False, problems=problems)
    missing = f"there is no ResourceClaimTemplate {snapshot.namespace}/{template_name} to make the claim from"
    return PodClaim(name, exists=False, problems=[missing])

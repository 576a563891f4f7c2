"""What the pods of a Workload of Kueue need of a quota, by pod set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dra_agent.api_object import Object, requests_of
from dra_agent.explain.files import claim_of_template
from dra_cluster.explain.kueue_amount import amount
from dra_cluster.explain.kueue_objects import Counting
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.explain.workloads import DEFAULT_POD_SET

PODS = "pods"
"""The resource with which Kueue counts pods, if a ClusterQueue covers it."""


@dataclass
class Requests:
    """The needs of all pods of each pod set, by resource."""

    of_pod_sets: dict[str, dict[str, Fraction]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    """Why Kueue does not admit the pods with any quota."""
    not_evaluated: list[str] = field(default_factory=list)


def requests_of_workload(snapshot: Snapshot, workload: Object, counting: Counting | None) -> Requests:
    """Return the requests that Kueue recorded in the status; without any, those of the claims of templates.

    Only the status has the requests of containers with the defaults and transformations of the cluster.
    """
    sets: Sequence[Object] = (workload.get("spec") or {}).get("podSets") or ()
    recorded = {
        str(one.get("name") or DEFAULT_POD_SET): _amounts(one.get("resources") or {})
        for one in (workload.get("status") or {}).get("resourceRequests") or ()
    }
    found = Requests()
    for one in sets:
        name = str(one.get("name") or DEFAULT_POD_SET)
        count = one.get("count") if isinstance(one.get("count"), int) else 1
        needs = recorded.get(name)
        if needs is None:
            needs = _of_templates(snapshot, one, counting, found)
            needs = {resource: number * Fraction(count or 0) for resource, number in needs.items()}
        needs.setdefault(PODS, Fraction(count or 0))
        found.of_pod_sets[name] = needs
    if not recorded:
        found.not_evaluated.append("requests of containers, which the status of the Workload does not have yet")
    found.refusals = list(dict.fromkeys(found.refusals))
    found.not_evaluated = list(dict.fromkeys(found.not_evaluated))
    return found


def _amounts(resources: Mapping[str, object]) -> dict[str, Fraction]:
    return {name: number for name, value in resources.items() if (number := amount(value)) is not None}


def _of_templates(
    snapshot: Snapshot, pod_set: Object, counting: Counting | None, found: Requests
) -> dict[str, Fraction]:
    """Return what the claims of one pod need: the number of devices of each class that is mapped to a resource.

    pkg/dra/claims.go at 8eab68778fc1.
    """
    needs: dict[str, Fraction] = {}
    templates = {one["metadata"]["name"]: one for one in snapshot.templates or ()}
    for entry in ((pod_set.get("template") or {}).get("spec") or {}).get("resourceClaims") or ():
        template_name = entry.get("resourceClaimTemplateName")
        if template_name and snapshot.templates is None:
            found.not_evaluated.append(f"quota of the claims of template {template_name}, which may not be read")
        template = templates.get(template_name)
        for request in requests_of(claim_of_template(template)) if template is not None else ():
            name = str(request.get("name"))
            exactly = request.get("exactly") or {}
            if feature := _unsupported(exactly):
                found.refusals.append(f"Kueue 0.19 admits no pods with {feature}, which request {name} has")
                continue
            class_name = str(exactly.get("deviceClassName"))
            if counting is None:
                found.not_evaluated.append(f"quota of class {class_name}")
            elif (counted := counting.classes.get(class_name)) is None:
                found.refusals.append(f"DeviceClass {class_name} is in no deviceClassMappings of Kueue")
            elif counted.has_sources:
                found.not_evaluated.append(f"quota of class {class_name}, which counts counters or capacity of devices")
            else:
                count = amount(exactly.get("count")) or Fraction(1)
                needs[counted.resource] = needs.get(counted.resource, Fraction(0)) + count
    return needs


def _unsupported(exactly: Object) -> str | None:
    """Return the feature of a request that Kueue does not support: countDevicesPerClass of pkg/dra/claims.go."""
    if not exactly:
        return "firstAvailable"
    if exactly.get("adminAccess"):
        return "adminAccess"
    return "allocationMode All" if exactly.get("allocationMode") == "All" else None

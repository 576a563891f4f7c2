"""A snapshot of the API objects that affect one namespace's claims, limited by the user's permissions.

A missing permission is reported, and everything else is still read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_agent.explain.printed_object import first_misfit
from dra_agent.kube_client import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiClient,
    ForbiddenError,
    InvalidObjectError,
    Kind,
    NotFoundError,
    ObjectList,
)
from dra_cluster.explain.extended_resources import requested, served_by_device_plugins
from dra_cluster.explain.kueue import VERSIONS as KUEUE_WORKLOADS
from dra_cluster.explain.kueue import Workloads, read_workloads
from dra_cluster.explain.scheduler_version import ASSUMED, SchedulerVersion, read_version
from dra_cluster.explain.taint_rules import taint_rules, tainted
from dra_cluster.explain.workloads import COMPOSITE, POD_GROUP, WORKLOAD, PodSet, pod_sets

RESOURCE_QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota", namespaced=True)
POD_GROUPS = Kind("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
COMPOSITE_POD_GROUPS = Kind("scheduling.k8s.io", "v1beta1", "compositepodgroups", COMPOSITE, namespaced=True)
WORKLOADS: Mapping[str, Sequence[Kind]] = {
    "Deployment": (Kind("apps", "v1", "deployments", "Deployment", namespaced=True),),
    "ReplicaSet": (Kind("apps", "v1", "replicasets", "ReplicaSet", namespaced=True),),
    "StatefulSet": (Kind("apps", "v1", "statefulsets", "StatefulSet", namespaced=True),),
    "Job": (Kind("batch", "v1", "jobs", "Job", namespaced=True),),
    "JobSet": (Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", namespaced=True),),
    WORKLOAD: KUEUE_WORKLOADS,
    # Kubernetes 1.36 has v1alpha2 only.
    "PodGroup": (POD_GROUPS, POD_GROUPS._replace(version="v1alpha2")),
    # Kubernetes 1.37 has v1alpha3 only.
    COMPOSITE: (COMPOSITE_POD_GROUPS, COMPOSITE_POD_GROUPS._replace(version="v1alpha3")),
}
"""Objects with several pods, by kind; of several versions the first that the server has is read."""
_MAX_PLACED_PODS = 50_000
"""Pods of all namespaces that are read at most: each has some kilobytes."""
_MAX_EVENTS = 5
"""Events that are shown at most."""


@dataclass
class Snapshot:
    """Objects of one moment, nearly; None where they may not be read."""

    namespace: str
    slices: list[Object] | None = None
    classes: list[Object] | None = None
    claims: list[Object] = field(default_factory=list)
    """Of all namespaces, or of this one where others may not be read."""
    templates: list[Object] | None = None
    pods: list[Object] | None = None
    """Of the namespace."""
    placed_pods: list[Object] | None = None
    """Of all namespaces, those with a node: they use what device plugins serve. None if that was not read."""
    groups: list[Object] | None = None
    """Pod groups of the namespace; most clusters have no such kind (KEP-5729)."""
    composites: list[Object] | None = None
    """Composite pod groups of the namespace (KEP-6012); None if no pod group is part of one, or they are not known."""
    workloads: dict[str, list[Object]] = field(default_factory=dict)
    """Objects with several pods, by kind: those that were requested, or those of a dump."""
    kueue: Workloads = field(default_factory=Workloads)
    """The Workloads of Kueue of the namespace."""
    nodes: list[Object] | None = None
    quotas: list[Object] = field(default_factory=list)
    namespace_object: Object | None = None
    scheduler: SchedulerVersion = ASSUMED
    events: list[str] = field(default_factory=list)
    """Events of the claim or pod, newest last."""
    notes: list[str] = field(default_factory=list)
    """Objects that could not be read, and the missing parts of the result."""
    unreadable: set[str] = field(default_factory=set)
    """Plurals of kinds of which the named object could not be read: whether it exists is not known."""

    def claim(self, name: str) -> Object | None:
        """Find a claim of the namespace."""
        return _named(self.claims, name, self.namespace)

    def pod(self, name: str) -> Object | None:
        """Find a pod of the namespace."""
        return _named(self.pods or [], name, self.namespace)

    def workload(self, kind: str, name: str) -> Object | None:
        """Find an object with several pods, of the namespace."""
        found = self.groups or [] if kind == POD_GROUP else self.workloads.get(kind, [])
        return _named(found, name, self.namespace)

    def group_of(self, pod: Object) -> Object | None:
        """Find the group that a pod belongs to."""
        return _named(self.groups or [], group_name(pod), self.namespace)

    def composite(self, name: str) -> Object | None:
        """Find a composite pod group of the namespace."""
        return _named(self.composites or [], name, self.namespace)


def group_name(pod: Object) -> str:
    """Return the name of a pod's group, or ""."""
    return str(((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName") or "")


def parent_name(group: Object) -> str:
    """Return the name of the composite pod group that a group is part of, or ""."""
    return str((group.get("spec") or {}).get("parentCompositePodGroupName") or "")


async def read(
    api: ApiClient,
    namespace: str,
    about: str,
    *,
    workload: str | None = None,
    with_kueue: bool = False,
    pods: Sequence[Object] = (),
) -> Snapshot:
    """Read everything at once; `about` is the name of the claim or pod, or of an object of the kind `workload`.

    The Workloads of Kueue are read `with_kueue`. `pods` are pods, or templates of them, that the query is about and the
    cluster does not have.

    Raises RetryableError if the server does not respond.
    """
    found = Snapshot(namespace)

    async def listed(kind: Kind, so: str, *, within: str | None = None, optional: bool = False) -> list[Object] | None:
        where = f"{kind.plural}{f' in namespace {within}' if within else ''}"
        call, skipped = api.list(kind, namespace=within), [] if optional else found.notes
        got = await allowed(call, f"cannot list {where}", so, skipped, unread=found.notes)
        return None if got is None else got.items

    async def one(kind: Kind) -> list[Object]:
        try:
            return [await api.get(kind, about, namespace)]
        except NotFoundError:
            return []
        except (ForbiddenError, InvalidObjectError):
            found.unreadable.add(kind.plural)
            return []

    async def asked_for() -> dict[str, list[Object]]:
        for kind in WORKLOADS[workload] if workload else ():
            try:
                value = await api.get(kind, about, namespace)
                if misfit := first_misfit(kind.kind, value):
                    found.unreadable.add(kind.plural)
                    found.notes.append(f"{kind.plural} {about} cannot be read: {misfit[0]} is not {misfit[1]}")
                    return {}
                return {kind.kind: [value]}
            except NotFoundError:
                continue  # The object, or this version of its kind.
            except (ForbiddenError, InvalidObjectError) as error:
                found.unreadable.add(kind.plural)
                found.notes.append(f"cannot get {kind.plural} {about}: {error.message}")
        return {}

    (
        found.slices,
        found.classes,
        claims,
        found.templates,
        found.pods,
        found.nodes,
        quotas,
        rules,
        found.groups,
        found.namespace_object,
        found.scheduler,
    ) = await asyncio.gather(
        listed(RESOURCE_SLICES, "which devices there are is not known"),
        listed(DEVICE_CLASSES, "classes are not known"),
        listed(RESOURCE_CLAIMS, "devices that claims of other namespaces hold are not known"),
        listed(RESOURCE_CLAIM_TEMPLATES, "claims that are still to be made are not explained", within=namespace),
        listed(PODS, "which pods use a claim is known from the claim only", within=namespace),
        listed(NODES, "labels, taints and nodes without devices are not known"),
        listed(RESOURCE_QUOTAS, "quotas are not checked", within=namespace),
        taint_rules(api, found.notes),
        listed(POD_GROUPS, "which pod groups it has is not known", within=namespace, optional=workload != COMPOSITE),
        allowed(
            api.get(NAMESPACES, namespace), f"cannot get namespace {namespace}", "its labels are not known", found.notes
        ),
        read_version(api, found.notes),
    )
    if found.templates is None:
        found.unreadable.add(RESOURCE_CLAIM_TEMPLATES.plural)
    found.workloads = await asked_for()
    if with_kueue:
        found.kueue = await read_workloads(api, namespace)
    if any(parent_name(group) for group in found.groups or ()):
        so = "what kube-scheduler decided about composite pod groups is not known"
        for kind in WORKLOADS[COMPOSITE]:
            is_last = kind is WORKLOADS[COMPOSITE][-1]
            found.composites = await listed(kind, so, within=namespace, optional=not is_last)
            if found.composites is not None:
                break
    if found.groups is None:
        found.groups = found.workloads.get(POD_GROUP)
    # Optional: the result is complete without Events.
    listed_events = await allowed(api.list(EVENTS, namespace=namespace, fields={"regarding.name": about}), "", "", [])
    found.events = _messages(listed_events.items if listed_events else [])
    if claims is None:
        claims = await listed(RESOURCE_CLAIMS, "claims are not known", within=namespace)
    found.claims = await one(RESOURCE_CLAIMS) if claims is None else claims
    if found.pods is None:
        # A user may be permitted to get one object by name, but not to list.
        found.pods = await one(PODS) or None
    unbound = [one for one in found.pods or () if not (one.get("spec") or {}).get("nodeName")]
    subjects = [one for one in found.pods or () if _concerns(one, about)]
    created = [one.template for kind, values in found.workloads.items() for one in _pod_sets(kind, values)]
    nodes, classes = found.nodes or (), found.classes or ()
    served = {
        *served_by_device_plugins(unbound, nodes, classes),
        *served_by_device_plugins([*subjects, *created, *pods], nodes, classes, with_others=True),
    }
    if served:
        found.placed_pods = await _placed_pods(api, sorted(served), found.notes)
    found.quotas = quotas or []
    if found.slices is not None:
        found.slices = tainted(found.slices, rules, found.classes, found.notes)
    return found


def _concerns(pod: Object, about: str) -> bool:
    """Return whether a pod is the one of this name, or names the claim of this name."""
    claims = (
        *((pod.get("spec") or {}).get("resourceClaims") or ()),
        *((pod.get("status") or {}).get("resourceClaimStatuses") or ()),
    )
    return pod["metadata"]["name"] == about or any(entry.get("resourceClaimName") == about for entry in claims)


def _pod_sets(kind: str, values: Sequence[Object]) -> list[PodSet]:
    try:
        return [] if kind in (POD_GROUP, COMPOSITE) else [one for value in values for one in pod_sets(kind, value)]
    except UsageError:
        return []  # It is reported where the workload is explained.


async def _placed_pods(api: ApiClient, resources: Sequence[str], notes: list[str]) -> list[Object] | None:
    """Read the pods of all namespaces that have a node and request these extended resources."""
    listed = await allowed(
        api.list(PODS, max_items=_MAX_PLACED_PODS),
        "cannot list pods in all namespaces",
        f"what device plugins have left of {', '.join(resources)} is not known",
        notes,
    )
    if listed is None:
        return None
    pods: list[Object] = listed.items
    return [
        pod
        for pod in pods
        if (pod.get("spec") or {}).get("nodeName") and any(requested(pod, name) for name in resources)
    ]


async def allowed(
    call: Awaitable[ObjectList] | Awaitable[Object],
    operation: str,
    so: str,
    notes: list[str],
    *,
    unread: list[str] | None = None,
) -> Any:
    """Return the result of a read; None, with a note, where it is not permitted or there is no such object.

    Notes of a list about objects that cannot be read are added to `unread`, by default to `notes`.
    """
    try:
        result = await call
        if isinstance(result, ObjectList):
            (notes if unread is None else unread).extend(result.notes)
        return result
    except (ForbiddenError, NotFoundError, InvalidObjectError) as error:
        notes.append(f"{operation}: {error.message}; {so}")
    return None


def _messages(events: list[Object]) -> list[str]:
    warnings = [event for event in events if event.get("type") == "Warning"]
    warnings.sort(key=lambda event: str(event.get("eventTime") or event.get("deprecatedLastTimestamp") or ""))
    return list(dict.fromkeys(f"{event.get('reason')}: {event.get('note')}" for event in warnings))[-_MAX_EVENTS:]


def _named(objects: list[Object], name: str, namespace: str) -> Object | None:
    for found in objects:
        metadata = found.get("metadata") or {}
        if metadata.get("name") == name and metadata.get("namespace") == namespace:
            return found
    return None

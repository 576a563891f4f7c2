"""The ClusterQueue of a Workload of Kueue: whether it admits anything, and the quota that it shares with its cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dra_agent.api_object import Object
from dra_cluster.explain.kueue_objects import KueueObjects
from dra_cluster.explain.kueue_quota import Available, Key, Queue, QuotaError, available, queue_of

_STOPPED = ("Hold", "HoldAndDrain")


@dataclass
class QueueState:
    """The ClusterQueue, as far as it is known."""

    name: str | None = None
    queue: Queue | None = None
    members: Sequence[Queue] = ()
    """Every ClusterQueue of its cohort; empty without a cohort."""
    pool: Queue | None = None
    """The quota of the cohort itself."""
    unknown: str = ""
    """Why the quota of the cohort is not known."""
    blocker: str | None = None
    """Why it admits nothing, or not this Workload."""
    not_evaluated: list[str] = field(default_factory=list)

    def available(self, key: Key) -> Available:
        """Return what there is of a resource in a flavor; raises QuotaError if it is not known."""
        if self.queue is None or self.unknown:
            raise QuotaError(self.unknown or "the quotas are not known")
        return available(self.queue, key, self.members, self.pool)


def find_queue(namespace: str, workload: Object, objects: KueueObjects) -> QueueState:
    """Find the ClusterQueue that admitted the Workload, or to which its LocalQueue leads."""
    found = QueueState()
    admission = (workload.get("status") or {}).get("admission") or {}
    found.name = admission.get("clusterQueue") or None
    if found.name is None:
        _follow_local_queue(found, namespace, workload, objects)
    if found.name is None:
        return found
    if objects.cluster_queues is None:
        found.not_evaluated.append(f"quota of ClusterQueue {found.name}, which is not known")
        return found
    value = _named(objects.cluster_queues, found.name)
    if value is None:
        if ("ClusterQueue", found.name) not in objects.unreadable:
            found.blocker = f"there is no ClusterQueue {found.name}, which the Workload waits for"
        return found
    found.blocker = _obstacle(value)
    _add_scope(found, value)
    try:
        found.queue = queue_of(value)
    except QuotaError as error:
        found.not_evaluated.append(str(error))
        return found
    if found.queue.cohort:
        _add_cohort(found, found.queue.cohort, objects)
    return found


def _follow_local_queue(found: QueueState, namespace: str, workload: Object, objects: KueueObjects) -> None:
    spec = workload.get("spec") or {}
    name = spec.get("queueName")
    if not name:
        found.blocker = "names no LocalQueue in spec.queueName, so Kueue does not admit it"
    elif objects.local_queues is None:
        found.not_evaluated.append(f"quota of LocalQueue {namespace}/{name}, which is not known")
    elif (value := _named(objects.local_queues, name)) is None:
        if ("LocalQueue", name) not in objects.unreadable:
            found.blocker = f"there is no LocalQueue {namespace}/{name}, which the Workload names"
    else:
        found.name = (value.get("spec") or {}).get("clusterQueue") or None
        policy = (value.get("spec") or {}).get("stopPolicy")
        if policy in _STOPPED:
            found.blocker = f"LocalQueue {namespace}/{name} is stopped (stopPolicy {policy})"
            found.name = None
        elif found.name is None:
            found.blocker = f"LocalQueue {namespace}/{name} names no ClusterQueue"


def _obstacle(value: Object) -> str | None:
    """Return why a ClusterQueue admits nothing."""
    spec, name = value.get("spec") or {}, value["metadata"]["name"]
    if (policy := spec.get("stopPolicy")) in _STOPPED:
        return f"ClusterQueue {name} is stopped (stopPolicy {policy})"
    if spec.get("namespaceSelector") is None:
        return f"ClusterQueue {name} admits no namespace: it has no spec.namespaceSelector"
    for one in (value.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Active" and one.get("status") == "False":
            return f"ClusterQueue {name} is not active: {one.get('message') or one.get('reason')}"
    return None


def _add_scope(found: QueueState, value: Object) -> None:
    """Name the fields of a ClusterQueue that are not evaluated."""
    spec = value.get("spec") or {}
    if spec.get("namespaceSelector"):
        found.not_evaluated.append(f"namespaceSelector of ClusterQueue {found.name}")
    if spec.get("admissionChecksStrategy") or spec.get("admissionChecks"):
        found.not_evaluated.append("admission checks")
    if (spec.get("flavorFungibility") or {}).get("whenCanBorrow") == "TryNextFlavor":
        found.not_evaluated.append(f"flavorFungibility of ClusterQueue {found.name}")


def _add_cohort(found: QueueState, cohort: str, objects: KueueObjects) -> None:
    """Find the members of the cohort; a cohort that is part of a tree is not evaluated."""
    if objects.cohorts is None:
        found.unknown = f"quota of cohort {cohort}, as Cohorts are not known"
        return
    if broken := sorted(name for kind, name in objects.unreadable if kind in ("ClusterQueue", "Cohort")):
        found.unknown = f"quota of cohort {cohort}, as {broken[0]} may be part of it"
        return
    for value in objects.cohorts:
        spec = value.get("spec") or {}
        name, parent = value["metadata"]["name"], spec.get("parentName") or spec.get("parent")
        if (name == cohort and parent) or parent == cohort:
            found.unknown = f"quota of cohort {cohort}, which is part of a tree of cohorts"
            return
    try:
        pool = _named(objects.cohorts, cohort)
        found.pool = queue_of(pool) if pool is not None else None
        found.members = [
            queue_of(value)
            for value in objects.cluster_queues or ()
            if cohort in ((value.get("spec") or {}).get("cohortName"), (value.get("spec") or {}).get("cohort"))
        ]
    except QuotaError as error:
        found.unknown = f"quota of cohort {cohort}: {error}"


def _named(values: Sequence[Object], name: str) -> Object | None:
    return next((value for value in values if value["metadata"]["name"] == name), None)

"""Whether a Workload of Kueue waits for quota, and the flavors that decide on which nodes its pods can be.

What Kueue recorded in the status of the Workload is used where it is there. The rest is computed from the quotas, as
far as it is certain; what is left out is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_cluster.explain.kueue_amount import text
from dra_cluster.explain.kueue_flavors import Flavor, FlavorChoice, flavor_obstacle, flavor_of
from dra_cluster.explain.kueue_objects import KueueObjects
from dra_cluster.explain.kueue_queue import QueueState, find_queue
from dra_cluster.explain.kueue_quota import Available, Group, Key, Queue, QuotaError
from dra_cluster.explain.kueue_requests import PODS, requests_of_workload
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.explain.workloads import DEFAULT_POD_SET, WORKLOAD, end_of

MAX_ROWS = 200
"""Quotas that are listed."""
MAX_NAMED_QUOTAS = 3
"""Quotas that the reason names."""
WAITS_FOR_QUOTA = "waits for quota"
_NEVER_EVALUATED = ("preemption", "fair sharing", "the order of the queue")
_NOT_DECIDED = ("PendingEvaluation",)
"""Reasons of QuotaReserved that describe no result."""


@dataclass
class Admission:
    """What is known about the admission of a Workload."""

    state: str = "unknown"
    """`admitted`, `reserved` (it has quota), `waits`, `free` (there is quota for it), `blocked`, `deactivated`,
    `finished` or `unknown`."""
    blocker: str | None = None
    """Why its pods are not created, for reasons that are not about devices."""
    cluster_queue: str | None = None
    cohort: str | None = None
    flavors: dict[str, FlavorChoice] = field(default_factory=dict)
    """By pod set."""
    rows: list[Object] = field(default_factory=list)
    """The quotas: JSON objects."""
    notes: list[str] = field(default_factory=list)
    not_evaluated: list[str] = field(default_factory=list)

    @property
    def document(self) -> Object:
        """The admission as JSON."""
        known = {flavor.name: flavor for choice in self.flavors.values() for group in choice for flavor in group}
        return {
            "state": self.state,
            "blocker": self.blocker,
            "cluster_queue": self.cluster_queue,
            "cohort": self.cohort,
            "quotas": self.rows[:MAX_ROWS],
            "flavors": [{"name": one.name, "node_labels": dict(one.labels)} for one in known.values()],
            "not_evaluated": self.not_evaluated,
        }


def admission_of(snapshot: Snapshot, workload: Object, objects: KueueObjects) -> Admission:
    """Return what is known about the admission of a Workload whose fields have the types of the API.

    A finished one keeps its other conditions, and one that is deactivated keeps them until it is evicted: pkg/workload
    and pkg/controller/core at 8eab68778fc1. Neither waits for quota.
    """
    conditions = _conditions(workload)
    if end_of(WORKLOAD, workload):
        return Admission("finished")
    reserved = conditions.get("QuotaReserved", {})
    queue = find_queue(snapshot.namespace, workload, objects)
    cohort = (queue.queue.cohort or None) if queue.queue is not None else None
    if (workload.get("spec") or {}).get("active") is False:
        return _deactivated(Admission("deactivated", cluster_queue=queue.name, cohort=cohort), conditions)
    found = Admission(cluster_queue=queue.name, cohort=cohort, not_evaluated=list(_NEVER_EVALUATED))
    found.not_evaluated += queue.not_evaluated
    if reserved.get("status") == "True" or conditions.get("Admitted", {}).get("status") == "True":
        _use_reservation(found, workload, conditions, objects, queue)
    elif queue.blocker is not None:
        found.state, found.blocker = "blocked", queue.blocker
    else:
        _Computation(snapshot, workload, objects, queue, found).run()
    if found.state in ("free", "unknown") and reserved.get("message") and reserved.get("reason") not in _NOT_DECIDED:
        found.blocker = f"waits for Kueue: {reserved['message']}"
    elif reserved.get("message") and reserved.get("status") != "True":
        found.notes.append(f"Kueue: QuotaReserved is {reserved.get('status')}: {reserved['message']}")
    _add_topology(found, workload)
    found.not_evaluated = list(dict.fromkeys([*found.not_evaluated, *objects.notes]))
    return found


def _deactivated(found: Admission, conditions: Mapping[str, Object]) -> Admission:
    has_quota = any(conditions.get(one, {}).get("status") == "True" for one in ("QuotaReserved", "Admitted"))
    does = "evicts it" if has_quota else "does not admit it"
    found.blocker = f"is deactivated (spec.active is false), so Kueue {does}"
    evicted = conditions.get("Evicted", {})
    if evicted.get("status") == "True" and evicted.get("message"):
        found.notes.append(f"Kueue: Evicted: {evicted['message']}")
    found.not_evaluated.append("quota and flavors, which a deactivated Workload does not get")
    return found


def _conditions(workload: Object) -> dict[str, Object]:
    listed = (workload.get("status") or {}).get("conditions") or ()
    return {str(one.get("type")): one for one in listed}


def _add_topology(found: Admission, workload: Object) -> None:
    names = {flavor.topology for choice in found.flavors.values() for group in choice for flavor in group} - {""}
    sets = (workload.get("spec") or {}).get("podSets") or ()
    if names or any(one.get("topologyRequest") for one in sets):
        found.not_evaluated.append(" ".join(["topology", *sorted(names)]))


def _use_reservation(
    found: Admission, workload: Object, conditions: Mapping[str, Object], objects: KueueObjects, queue: QueueState
) -> None:
    status = workload.get("status") or {}
    is_admitted = conditions.get("Admitted", {}).get("status") == "True"
    found.state = "admitted" if is_admitted else "reserved"
    where = f"ClusterQueue {queue.name}"
    for assignment in (status.get("admission") or {}).get("podSetAssignments") or ():
        pod_set = str(assignment.get("name") or DEFAULT_POD_SET)
        assigned = {str(key): str(name) for key, name in (assignment.get("flavors") or {}).items()}
        names = dict.fromkeys(assigned.values())
        found.flavors[pod_set] = [[_flavor(objects, name, found)] for name in names]
        usage = assignment.get("resourceUsage") or {}
        found.rows += [
            _row(pod_set, (name, resource), str(usage.get(resource)), "reserved") for resource, name in assigned.items()
        ]
    if is_admitted:
        found.notes.append(f"it is admitted by {where}: its quota is reserved")
        return
    checks = [
        f"{one.get('name')} is {one.get('state')}{': ' + one['message'] if one.get('message') else ''}"
        for one in status.get("admissionChecks") or ()
        if one.get("state") != "Ready"
    ]
    why = f": {'; '.join(checks)}" if checks else ""
    found.blocker = f"has quota in {where} and waits for its admission checks{why}"


def _flavor(objects: KueueObjects, name: str, found: Admission) -> Flavor:
    """Return a flavor; one without labels, and a note, where the object is not known."""
    for value in objects.flavors or ():
        if value["metadata"]["name"] == name:
            return flavor_of(value)
    found.not_evaluated.append(f"node labels of ResourceFlavor {name}, which is not known")
    return Flavor(name)


def _row(pod_set: str, key: Key, needed: str, result: str, has: Available | None = None) -> Object:
    return {
        "pod_set": pod_set,
        "resource": key[1],
        "flavor": key[0],
        "needed": needed,
        "used": None if has is None else text(has.used),
        "nominal": None if has is None else text(has.nominal),
        "borrowable": None if has is None else text(has.borrowable),
        "result": result,
    }


class _Tried(NamedTuple):
    """A flavor for the resources of a group."""

    flavor: Flavor
    result: str
    """`fits`, `lacks` or `unknown`."""
    lacks: list[str]
    """What is missing."""


class _Computation:
    """Assigns flavors to pod sets in their order, as Kueue does without preemption."""

    def __init__(
        self, snapshot: Snapshot, workload: Object, objects: KueueObjects, state: QueueState, found: Admission
    ) -> None:
        self._objects = objects
        self._state = state
        self._found = found
        self._assumed: dict[Key, Fraction] = {}
        self._lacks: list[str] = []
        self._is_known = True
        self._requests = requests_of_workload(snapshot, workload, objects.counting)
        self._templates = {
            str(one.get("name") or DEFAULT_POD_SET): one.get("template") or {}
            for one in (workload.get("spec") or {}).get("podSets") or ()
        }

    def run(self) -> None:
        found, requests = self._found, self._requests
        found.not_evaluated += requests.not_evaluated
        if requests.refusals:
            found.state, found.blocker = "blocked", requests.refusals[0]
            return
        queue = self._state.queue
        if queue is None:
            return
        for pod_set, needs in requests.of_pod_sets.items():
            found.flavors[pod_set] = list(self._choices(queue, pod_set, needs))
            self._find_uncovered(queue, needs)
        if found.blocker is not None:
            found.state = "blocked"
        elif self._lacks:
            shown = list(dict.fromkeys(self._lacks))
            more = f", and {len(shown) - MAX_NAMED_QUOTAS} more" if len(shown) > MAX_NAMED_QUOTAS else ""
            reasons = f"{'; '.join(shown[:MAX_NAMED_QUOTAS])}{more}"
            found.state = "waits"
            found.blocker = f"{WAITS_FOR_QUOTA}: ClusterQueue {queue.name}: {reasons}"
        elif self._is_known and any(row["result"] == "free" for row in found.rows):
            found.state = "free"
            found.notes.append(f"ClusterQueue {queue.name} has free quota for it")

    def _find_uncovered(self, queue: Queue, needs: Mapping[str, Fraction]) -> None:
        covered = {resource for group in queue.groups for resource in group.resources} | {PODS}
        uncovered = [resource for resource, number in needs.items() if number and resource not in covered]
        counting = self._objects.counting
        if not uncovered or (counting is not None and counting.ignores_undeclared):
            return
        message = f"ClusterQueue {queue.name} has no quota for {', '.join(sorted(uncovered))}"
        if counting is None:
            self._is_known = False
            self._found.not_evaluated.append(f"{message}, which the configuration of Kueue may permit")
        else:
            self._found.blocker = self._found.blocker or message

    def _choices(self, queue: Queue, pod_set: str, needs: Mapping[str, Fraction]) -> Iterable[list[Flavor]]:
        for group in queue.groups:
            of_group = {name: needs[name] for name in group.resources if name in needs}
            if any(of_group.values()) and (flavors := self._choice(queue, pod_set, group, of_group)):
                yield flavors

    def _choice(self, queue: Queue, pod_set: str, group: Group, needs: Mapping[str, Fraction]) -> list[Flavor]:
        """Return the first flavor with enough quota; if none has, every one that the pods can have."""
        tried: list[_Tried] = []
        refused: list[str] = []
        for name in group.flavors:
            flavor = _flavor(self._objects, name, self._found)
            if obstacle := flavor_obstacle(flavor, self._templates.get(pod_set) or {}):
                refused.append(f"flavor {name}: {obstacle}")
                self._found.rows += [_row(pod_set, (name, one), text(needs[one]), obstacle) for one in needs]
                continue
            tried.append(self._try(queue, pod_set, flavor, needs))
            if tried[-1].result == "fits":
                for resource, number in needs.items():
                    key = (name, resource)
                    self._assumed[key] = self._assumed.get(key, Fraction(0)) + number
                return [flavor]
        if any(one.result == "unknown" for one in tried):
            self._is_known = False
        elif tried:
            self._lacks += [reason for one in tried for reason in one.lacks]
        else:
            reasons = "; ".join(refused[:MAX_NAMED_QUOTAS]) or "it has none"
            message = f"ClusterQueue {queue.name} has no flavor for pod set {pod_set}: {reasons}"
            self._found.blocker = self._found.blocker or message
        return [one.flavor for one in tried]

    def _try(self, queue: Queue, pod_set: str, flavor: Flavor, needs: Mapping[str, Fraction]) -> _Tried:
        result, lacks = "fits", []
        for resource, number in needs.items():
            key = (flavor.name, resource)
            wanted = number + self._assumed.get(key, Fraction(0))
            try:
                has = self._state.available(key)
            except QuotaError as error:
                self._found.not_evaluated.append(str(error))
                self._found.rows.append(_row(pod_set, key, text(number), "not known"))
                result = "unknown" if result == "fits" else result
                continue
            verdict = "free" if wanted <= has.free else f"{text(wanted - has.free)} more needed"
            if wanted > has.maximum:
                verdict = f"never: at most {text(has.maximum)}"
            if verdict != "free":
                result = "lacks"
                lacks.append(
                    f"{resource} in flavor {flavor.name}: {text(wanted)} needed, {text(has.used)} of "
                    f"{text(has.nominal)} used, {text(has.borrowable)} borrowable"
                    + (f", and never more than {text(has.maximum)}" if wanted > has.maximum else "")
                )
            self._found.rows.append(_row(pod_set, key, text(number), verdict, has))
        return _Tried(flavor, result, lacks)

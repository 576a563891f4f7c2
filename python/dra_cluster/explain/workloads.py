"""Workloads: their pod templates, the number of pods of each that run together, and the labels of these pods.

Sources: k8s.io/api (apps/v1, batch/v1, scheduling/v1beta1) at v0.37; kubernetes-sigs/jobset, api/jobset/v1alpha2 at
0336a8fd9fd3; kubernetes-sigs/kueue, apis/kueue/v1beta2 at 02237e7737a3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_cluster.explain.placement import matches_labels

REPLICATED = {"Deployment": "replicas", "ReplicaSet": "replicas", "StatefulSet": "replicas", "Job": "parallelism"}
"""Kinds with one pod template, and the field with the number of pods that run together."""
JOB_SET = "JobSet"
WORKLOAD = "Workload"
"""Of Kueue. The kind of scheduling.k8s.io with this name has no pod templates."""
POD_GROUP = "PodGroup"
"""Of scheduling.k8s.io. It has no pod template: its pods name it."""
COMPOSITE = "CompositePodGroup"
"""Of scheduling.k8s.io. It has no pods: pod groups, and other groups of groups, name it as their parent."""
GROUPS = {WORKLOAD: "kueue.x-k8s.io", POD_GROUP: "scheduling.k8s.io", COMPOSITE: "scheduling.k8s.io"}
"""API groups of kinds whose names other groups have too."""
JOB_SET_NAME, _REPLICATED_JOB_NAME = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name"
_JOB_NAME = "batch.kubernetes.io/job-name"
KUEUE_GROUP_NAME = "kueue.x-k8s.io/pod-group-name"
_ENDS = {"Job": ("Complete", "Failed"), JOB_SET: ("Completed", "Failed"), WORKLOAD: ("Finished",)}
"""Conditions of a workload that creates no further pods. They stay true."""
_DEFAULT_POD_SET = "main"
MAX_PODS = (1 << 31) - 1
"""Of each number of pods: the fields are int32."""


@dataclass
class PodSet:
    """Equal pods of a workload."""

    name: str
    """Of the replicated Job or the pod set; empty if the workload has only one pod template."""
    template: Object
    count: int
    """The pods that run together."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels by which the pods that exist are found."""
    path: str = ""
    """The field of the template in the workload."""
    expressions: Sequence[Object] = ()
    """The expressions of its label selector, which these pods match too. Without labels, too, they are not known."""

    @property
    def finds_pods(self) -> bool:
        """Whether the pods that exist are known."""
        return bool(self.labels or self.expressions)

    def selects(self, pod: Object) -> bool:
        """Return whether an existing pod is one of these."""
        labels = pod["metadata"].get("labels") or {}
        return (
            self.finds_pods
            and all(labels.get(key) == value for key, value in self.labels.items())
            and matches_labels(self.expressions, labels)
        )


def check_group(kind: str, value: Object, where: str | None = None) -> None:
    """Raise UsageError for an object whose kind has the name of one that is read, but is of another API group."""
    group, _, _ = str(value.get("apiVersion") or "").rpartition("/")
    if kind in GROUPS and group != GROUPS[kind]:
        raise UsageError(f"a {kind} of {value.get('apiVersion')} is not one of {GROUPS[kind]}", where=where)


def pod_sets(kind: str, value: Object) -> list[PodSet]:
    """Return the pods of a workload.

    Raises:
        UsageError: It has no pod template, or a number of pods is none.
    """
    if kind == JOB_SET:
        return _of_job_set(value)
    if kind == WORKLOAD:
        return _of_kueue(value)
    subject = f"{kind} {value['metadata']['name']}"
    selector = (value.get("spec") or {}).get("selector") or {}
    labels, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or ()
    return [PodSet("", *_template_of(subject, kind, value), labels, "spec.template", expressions)]


def end_of(kind: str, value: Object) -> str | None:
    """Return how a workload ended, as `has ended (Complete: ...)`; None if it has not. It creates no further pods."""
    for one in (value.get("status") or {}).get("conditions") or ():
        if one.get("type") in _ENDS.get(kind, ()) and one.get("status") == "True":
            why = one.get("message") or one.get("reason")
            return f"has ended ({one['type']}{f': {why}' if why else ''})"
    return None


def notes_of(kind: str, value: Object) -> list[str]:
    """Return what is not evaluated of a workload."""
    found = []
    spec = value.get("spec") or {}
    if kind == "Job" and spec.get("scheduling"):
        found.append(
            "spec.scheduling is evaluated by the pod group of its pods, which exists after the Job has started"
        )
    if spec.get("suspend") is True:
        found.append("it is suspended: its pods are created when it is resumed")
    for entry in (spec.get("replicatedJobs") or ()) if kind == JOB_SET else ():
        if any(one.get("status") == "Complete" for one in entry.get("dependsOn") or ()):
            of = f"replicated Job {entry.get('name')}"
            found.append(f"{of} starts when others are complete; it is placed as if all run together")
    return found


def _template_of(subject: str, kind: str, value: Object) -> tuple[Object, int]:
    """Return the pod template, and the number of pods that run together."""
    spec = value.get("spec") or {}
    template = spec.get("template")
    if not isinstance(template, dict):
        raise UsageError(f"{subject} has no pod template")
    replicas = _number(subject, spec, REPLICATED[kind])
    if kind == "Job":
        status = value.get("status") or {}
        done = _number_or_none(subject, status, "succeeded")
        if spec.get("completions") is not None:
            # A Job starts no more pods than have to complete.
            replicas = min(replicas, max(0, _number(subject, spec, "completions") - done))
        elif done:
            # Without completions, it starts no more pods after the first success (batch/v1 JobSpec).
            replicas = min(replicas, _number_or_none(subject, status, "active"))
    return template, replicas


def _of_job_set(value: Object) -> list[PodSet]:
    name = value["metadata"]["name"]
    states = (value.get("status") or {}).get("replicatedJobsStatus") or ()
    found = []
    for index, entry in enumerate((value.get("spec") or {}).get("replicatedJobs") or ()):
        job = " ".join(filter(None, ("Job", entry.get("name"), f"of {JOB_SET} {name}")))
        template, pods = _template_of(job, "Job", entry.get("template") or {})
        # Jobs that have ended create no more pods.
        state: Object = next((one for one in states if one.get("name") == entry.get("name")), {})
        ended = sum(_number_or_none(f"the {job}", state, key) for key in ("succeeded", "failed"))
        count = pods * max(0, _number(f"the {job}", entry, "replicas") - ended)
        labels = {JOB_SET_NAME: name, _REPLICATED_JOB_NAME: entry.get("name") or ""}
        path = f"spec.replicatedJobs[{index}].template.spec.template"
        found.append(PodSet(entry.get("name") or "", template, count, labels, path))
    return found


def _of_kueue(value: Object) -> list[PodSet]:
    name = value["metadata"]["name"]
    owners = {
        str(owner.get("kind")): str(owner.get("name")) for owner in value["metadata"].get("ownerReferences") or ()
    }
    sets = (value.get("spec") or {}).get("podSets") or ()
    reclaimable = (value.get("status") or {}).get("reclaimablePods") or ()
    found = []
    for index, entry in enumerate(sets):
        own = entry.get("name") or _DEFAULT_POD_SET
        subject = f"pod set {own} of {WORKLOAD} {name}"
        template = entry.get("template")
        if not isinstance(template, dict):
            raise UsageError(f"{subject} has no pod template")
        labels: Mapping[str, str] = {}
        if JOB_SET in owners:
            labels = {JOB_SET_NAME: owners[JOB_SET], _REPLICATED_JOB_NAME: own}
        elif len(sets) == 1:
            labels = {_JOB_NAME: owners["Job"]} if "Job" in owners else {KUEUE_GROUP_NAME: name}
        # Pods that have ended and will not be created again.
        ended: Object = next((one for one in reclaimable if one.get("name") == own), {})
        count = max(0, _number(subject, entry, "count") - _number_or_none(subject, ended, "count"))
        found.append(PodSet(own if len(sets) > 1 else "", template, count, labels, f"spec.podSets[{index}].template"))
    return found


def _number_or_none(subject: str, holder: Object, field: str) -> int:
    return 0 if holder.get(field) is None else _number(subject, holder, field)


def _number(subject: str, holder: Object, field: str) -> int:
    number = holder.get(field)
    if number is None:
        return 1
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_PODS:
        raise UsageError(
            f"{subject}: {field} is not a whole number from 0 to {MAX_PODS}",
            hint="correct the field, or export the object again with kubectl",
        )
    return number

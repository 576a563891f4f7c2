"""Collects the gang of pods, of a pod group or of a workload, in the order in which its members are scheduled.

Members are the pods that exist and wait, and those that a workload has still to create. Pods that have a node hold
their devices already.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dra_agent.api_object import Object, allocation_of, full_name
from dra_agent.errors import UsageError
from dra_cluster.explain.capacity import MAX_CONSUMERS, remaining_consumers
from dra_cluster.explain.claim_admission import NewClaim, quota_blockers
from dra_cluster.explain.counts import counted, there_are
from dra_cluster.explain.gang_members import Gang, Member, MemberKind
from dra_cluster.explain.group_quotes import quotes_of_group
from dra_cluster.explain.pod_claims import PodClaim, extended_need, is_stored, pod_claims
from dra_cluster.explain.snapshot import Snapshot, group_name
from dra_cluster.explain.workloads import PodSet

MAX_MEMBERS = 10_000
"""Pods of a gang."""
_ENDED = ("Succeeded", "Failed")


@dataclass
class _Pod:
    """A pod before it is assigned to a kind."""

    group: str
    """The name of its pod set."""
    pod: Object
    needs: list[PodClaim]


def gang_of_pods(snapshot: Snapshot, subject: str, pods: Sequence[Object], *, group: Object | None = None) -> Gang:
    """Return the gang of these pods; those of a native pod `group` if there is one."""
    alive = [pod for pod in pods if _is_alive(pod)]
    waiting = sorted((pod for pod in alive if not _node_of(pod)), key=_schedule_order)
    found = [_Pod("", pod, pod_claims(snapshot, pod)) for pod in waiting]
    running = [("", pod) for pod in alive if _node_of(pod)]
    gang = _assembled(snapshot, subject, found, running)
    return _with_group(snapshot, gang, group) if group is not None else gang


def gang_of_workload(
    snapshot: Snapshot,
    subject: str,
    base: str,
    sets: Sequence[PodSet],
    *,
    pods: Sequence[Object] = (),
    end: str | None = None,
) -> Gang:
    """Return the gang of a workload.

    Arguments:
        snapshot: The cluster.
        subject: What it is, for messages.
        base: The name of the workload, with which the names of its pods begin.
        sets: Its pods.
        pods: The pods of its namespace, among which its own are.
        end: How it ended, if it did: it creates no further pods.

    Raises:
        UsageError: It has too many pods.
    """
    if end is not None:
        sets = [replace(one, count=0) for one in sets]
    if (count := sum(one.count for one in sets)) > MAX_MEMBERS:
        raise UsageError(f"{subject} has {count} pods, more than {MAX_MEMBERS} are not evaluated")
    found: list[_Pod] = []
    running: list[tuple[str, Object]] = []
    groups = {group_name(one.template) for one in sets}
    of_pods = set[str]()
    for one in sets:
        label = one.name or base
        own = [pod for pod in pods if one.selects(pod) and _is_alive(pod)]
        waiting = sorted((pod for pod in own if not _node_of(pod)), key=_schedule_order)
        running += [(label, pod) for pod in own if _node_of(pod)]
        of_pods |= {group_name(pod) for pod in own}
        found += [_Pod(label, pod, pod_claims(snapshot, pod)) for pod in waiting]
        created = "-".join(filter(None, (base, one.name)))
        found += [_Pod(label, pod, needs) for pod, needs in _to_be_created(snapshot, created, one, len(own))]
    gang = _assembled(snapshot, subject, found, running)
    gang.end = end
    if end is not None:
        gang.needed = 0
        gang.notes.append(f"it {end} and creates no further pods")
        return gang
    if not any(groups):
        groups = of_pods  # The Job controller names a group that it created only in the pods (KEP-5547).
    if len(groups) == 1 and (name := groups.pop()):
        group = snapshot.group_of({"spec": {"schedulingGroup": {"podGroupName": name}}})
        if group is not None:
            return _with_group(snapshot, gang, group)
        if snapshot.groups is None:
            gang.notes.append(f"pod group {name} is not known; all pods are needed")
        else:
            gang.problems.append(f"there is no pod group {snapshot.namespace}/{name}, which its pods wait for")
    return gang


def _to_be_created(
    snapshot: Snapshot, base: str, one: PodSet, existing: int
) -> Iterable[tuple[Object, list[PodClaim]]]:
    """Yield the pods that do not exist yet; the claims of each are named as those of the first."""
    template = one.template
    needs: list[PodClaim] = []
    for number in range(existing, max(existing, one.count)):
        name = f"{base}-{number}"
        pod = {"metadata": {**(template.get("metadata") or {}), "name": name}, "spec": template.get("spec") or {}}
        if number == existing:
            needs = pod_claims(snapshot, pod)
        yield pod, [_of_pod(need, name) for need in needs]


def _of_pod(need: PodClaim, pod: str) -> PodClaim:
    if need.exists or need.of_group or need.claim is None:
        return need
    metadata = {**need.claim["metadata"], "name": f"{pod}-{need.name.replace(' ', '-')}"}
    return replace(need, claim={**need.claim, "metadata": metadata})


def _assembled(snapshot: Snapshot, subject: str, pods: list[_Pod], running: list[tuple[str, Object]]) -> Gang:
    users = Counter(full_name(need.claim) for one in pods for need in one.needs if need.claim is not None)
    numbers: dict[str, int] = {}
    found: list[MemberKind] = []
    order: list[int] = []
    for one in pods:
        number = numbers.setdefault(_signature(one, users), len(found))
        if number == len(found):
            problems = [problem for need in one.needs for problem in _problems(need)]
            kind_name = one.group or one.pod["metadata"]["name"]
            extended = extended_need(one.needs)
            found.append(MemberKind(kind_name, one.pod, problems=problems, extended=extended))
        claims = [_trimmed(need.claim) for need in one.needs if need.claim is not None]
        found[number].members.append(Member(one.pod["metadata"]["name"], claims))
        order.append(number)
    for group, pod in running:
        kind = next((kind for kind in found if kind.name == group), None) or (found[0] if found and not group else None)
        if kind is None:
            kind = MemberKind(group or pod["metadata"]["name"], pod)
            found.append(kind)
        kind.running[str(_node_of(pod))] += 1
    _name_apart(found)
    gang = Gang(subject, found, order, len(pods) + len(running))
    new = {
        full_name(need.claim): NewClaim(need.claim, need.resources, is_stored(one.pod))
        for one in pods
        for need in one.needs
        if need.claim and not need.exists
    }
    gang.lacks_quota = quota_blockers(snapshot, list(new.values()), "the pods need")
    shared = {
        full_name(need.claim): need for one in pods for need in one.needs if need.claim and _is_shared(need, users)
    }
    if shared:
        names = ", ".join(key.partition("/")[2] for key in sorted(shared))
        gang.notes.append(f"several pods share claim{'s' if len(shared) > 1 else ''} {names}")
    for key, need in shared.items():
        left = remaining_consumers(need.claim or {})
        if users[key] > max(1, left) and not need.of_group:
            of = f"{MAX_CONSUMERS} pods, {users[key]} use it"
            gang.problems.append(f"claim {key} can be reserved for {left} more of {of}")
    return gang


def _is_shared(need: PodClaim, users: Counter[str]) -> bool:
    return need.claim is not None and users[full_name(need.claim)] > 1


def _with_group(snapshot: Snapshot, gang: Gang, group: Object) -> Gang:
    """Apply the policy of a native pod group (scheduling.k8s.io/v1beta1), and quote what it does not decide."""
    spec = group.get("spec") or {}
    name = f"pod group {group['metadata']['name']}"
    minimum = ((spec.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount")
    if isinstance(minimum, int) and not isinstance(minimum, bool):
        if minimum < 1:
            gang.problems.append(f"{name} has minCount {minimum}, and needs at least 1")
        if minimum > gang.total:
            gang.problems.append(f"{name} waits for {counted(minimum, 'pod')}, and {there_are(gang.total)}")
        gang.needed = minimum
        if minimum < gang.total:
            gang.notes.append(f"{name} starts with {minimum} of its {gang.total} pods")
    gang.quotes += quotes_of_group(snapshot, group)
    return gang


def _name_apart(kinds: Sequence[MemberKind]) -> None:
    """Name kinds of one pod set by their first pod, because users distinguish them by nothing else."""
    counts = Counter(kind.name for kind in kinds)
    for kind in kinds:
        if counts[kind.name] > 1 and kind.members:
            kind.name = kind.members[0].name


def _signature(one: _Pod, users: Counter[str]) -> str:
    """Return what members of a kind have in common: a claim of several members by its name, others by their content."""
    spec = one.pod.get("spec") or {}
    claims = [
        full_name(need.claim) if _is_shared(need, users) else [need.claim.get("spec"), allocation_of(need.claim)]
        for need in one.needs
        if need.claim is not None
    ]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    problems = [_problems(need) for need in one.needs]
    resources = [need.resources for need in one.needs]
    fields = [one.group, spec.get("nodeSelector"), affinity, spec.get("tolerations"), claims, resources, problems]
    return json.dumps(fields, sort_keys=True)


def _problems(need: PodClaim) -> list[str]:
    found = list(need.problems)
    if need.claim is not None and need.claim["metadata"].get("deletionTimestamp"):
        found.append("it is being deleted")
    return [f"claim {need.name}: {problem}" for problem in found]


def _trimmed(claim: Object) -> Object:
    metadata = {key: claim["metadata"][key] for key in ("name", "namespace", "uid") if key in claim["metadata"]}
    trimmed: Object = {"metadata": metadata, "spec": claim.get("spec") or {}}
    if allocation := allocation_of(claim):
        trimmed["status"] = {"allocation": allocation}
    return trimmed


def _node_of(pod: Object) -> str | None:
    node: str | None = (pod.get("spec") or {}).get("nodeName")
    return node


def _is_alive(pod: Object) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return not pod["metadata"].get("deletionTimestamp") and phase not in _ENDED


def _schedule_order(pod: Object) -> tuple[int, str, str]:
    """Return the place of a pod in the order of kube-scheduler: by priority, time and name.

    PodGroupMemberPodsOrderingFunc, pkg/scheduler/framework/types.go at v1.37. The number of attempts is not known.
    """
    priority = (pod.get("spec") or {}).get("priority")
    rank = -priority if isinstance(priority, int) else 0
    return rank, str(pod["metadata"].get("creationTimestamp") or ""), pod["metadata"]["name"]

"""The members of a composite pod group: the pods of all pod groups below it, as one gang with a tree of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dra_agent.api_object import Object
from dra_cluster.explain.gang import gang_of_groups
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.group_tree import Group, GroupTree, InvalidTreeError, tree_of
from dra_cluster.explain.snapshot import Snapshot, group_name
from dra_cluster.explain.workloads import PodSet

_DEFAULT_SCHEDULER = "default-scheduler"


def gang_of_composite(
    snapshot: Snapshot, subject: str, kind: str, value: Object, *, templates: Sequence[tuple[str, PodSet]] = ()
) -> Gang:
    """Return the gang of all pods that are scheduled together with a group, which has a parent or is composite.

    Arguments:
        snapshot: The cluster.
        subject: What the group is, for messages.
        kind: The kind of the group.
        value: The group.
        templates: Pods that are still to be created, with the name that theirs begin with.

    Raises:
        UsageError: It has too many groups or pods.
    """
    needed = {"compositepodgroups": snapshot.composites, "podgroups": snapshot.groups, "pods": snapshot.pods}
    for plural, objects in needed.items():
        if objects is None:
            reason = f"is not evaluated: {plural} of namespace {snapshot.namespace} are not known"
            return Gang(subject, [], [], 0, problems=[reason])
    try:
        tree = tree_of(snapshot, kind, value)
    except InvalidTreeError as error:
        return Gang(subject, [], [], 0, problems=[str(error)])
    gang = gang_of_groups(snapshot, subject, [group.name for group in tree.root.pod_groups()], templates)
    gang.tree = tree
    _assign(gang, tree.root)
    gang.needed = tree.root.needed
    gang.problems += _problems(snapshot, gang, tree)
    gang.notes += [note for group in tree.root.walk() for note in _notes(group)]
    return gang


def _assign(gang: Gang, root: Group) -> None:
    """Assign the members to their pod groups."""
    groups = {group.name: group for group in root.pod_groups()}
    for number, kind in enumerate(gang.kinds):
        groups[kind.pod_set].kinds.append(number)
        groups[kind.pod_set].running.update(kind.running)
    for number in gang.order:
        groups[gang.kinds[number].pod_set].order.append(number)


def _problems(snapshot: Snapshot, gang: Gang, tree: GroupTree) -> list[str]:
    if not gang.total:
        return ["no pod names one of its pod groups in spec.schedulingGroup"]
    problems = [reason] if (reason := tree.root.waits_for()) else []
    return [*problems, *_differences(snapshot, tree.root)]


def _differences(snapshot: Snapshot, root: Group) -> list[str]:
    """Return what all pods need in common and do not have.

    validatePodGroup, pkg/scheduler/schedule_one_podgroup.go at v1.37.1.
    """
    names = {group.name for group in root.pod_groups()}
    pods = [pod for pod in snapshot.pods or () if group_name(pod) in names]
    problems = []
    schedulers = Counter(str((pod.get("spec") or {}).get("schedulerName") or _DEFAULT_SCHEDULER) for pod in pods)
    if len(schedulers) > 1:
        listed = " and ".join(sorted(schedulers)[:2])
        problems.append(f"all pods of {root.label} need the same scheduler, and theirs are {listed}")
    composite = next(one for one in snapshot.composites or () if one["metadata"]["name"] == root.name)
    expected = _priority(composite)
    for pod in pods if expected is not None else ():
        if (found := _priority(pod)) is not None and found != expected:
            name = pod["metadata"]["name"]
            problems.append(f"all pods of {root.label} need its priority {expected}, and pod {name} has {found}")
            break
    return problems


def _priority(value: Object) -> int | None:
    """Return the priority of a pod or group; None if the API server still has to resolve its class."""
    spec = value.get("spec") or {}
    priority = spec.get("priority")
    if isinstance(priority, int):
        return priority
    return None if spec.get("priorityClassName") else 0


def _notes(group: Group) -> list[str]:
    found = []
    if group.minimum < group.size:
        of = "groups" if group.is_composite else "pods"
        found.append(f"{group.label} starts with {group.minimum} of its {group.size} {of}")
    if group.topology is not None:
        found.append(f"{group.label} requires nodes with the same value of label {group.topology}")
    return found

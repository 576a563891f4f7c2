"""The groups of a composite pod group (KEP-6012): pod groups, and composite pod groups, which have groups themselves.

The order of groups, how many of them a group needs, and the limit of levels are those of kube-scheduler v1.37.1:
GetChildGroups (pkg/scheduler/framework/types.go), getMinCount (framework/plugins/gangscheduling/gangscheduling.go) and
WorkloadMaxTreeDepth (api/scheduling/v1alpha3/types.go).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_cluster.explain.counts import counted, has, there_are
from dra_cluster.explain.snapshot import Snapshot, parent_name
from dra_cluster.explain.workloads import COMPOSITE, POD_GROUP

MAX_LEVELS = 4
"""Levels of groups, with that of the pod groups."""
MAX_GROUPS = 1000
"""Groups below one composite pod group that are evaluated."""
_MAX_NAMED = 3
"""Groups of a cycle that are named."""
_LABELS = {COMPOSITE: "composite pod group", POD_GROUP: "pod group"}


class InvalidTreeError(ValueError):
    """The groups cannot be scheduled because of what their parents are; the text is the reason."""


@dataclass
class Group:
    """One group, and those that are part of it."""

    kind: str
    name: str
    level: int
    parent: str | None
    minimum: int
    """How many of its groups or pods start together at least."""
    topology: str | None
    """The label of nodes that has one value for all pods below."""
    children: list[Group] = field(default_factory=list)
    """In the order of scheduling."""
    kinds: list[int] = field(default_factory=list)
    """Of a pod group: the kinds of its members."""
    order: list[int] = field(default_factory=list)
    """Of a pod group: the kind of each member without a node, in the order of scheduling."""
    running: Counter[str] = field(default_factory=Counter)
    """Of a pod group: how many members are on each node already."""

    @property
    def key(self) -> tuple[str, str]:
        """What distinguishes it from all others of its namespace."""
        return self.kind, self.name

    @property
    def label(self) -> str:
        """Such as `pod group ring`."""
        return f"{_LABELS[self.kind]} {self.name}"

    @property
    def is_composite(self) -> bool:
        """Whether it has groups, and not pods."""
        return self.kind == COMPOSITE

    @property
    def size(self) -> int:
        """How many groups or pods it has."""
        return len(self.children) if self.is_composite else self.running.total() + len(self.order)

    @property
    def is_ready(self) -> bool:
        """Whether enough pods exist."""
        ready = sum(child.is_ready for child in self.children) if self.is_composite else self.size
        return ready >= self.minimum

    @property
    def is_started(self) -> bool:
        """Whether enough pods have a node."""
        started = sum(child.is_started for child in self.children) if self.is_composite else self.running.total()
        return started >= self.minimum

    @property
    def needed(self) -> int:
        """The number of pods without which it cannot start."""
        if not self.is_composite:
            return self.minimum
        return sum(sorted(child.needed for child in self.children)[: self.minimum])

    def walk(self) -> Iterator[Group]:
        """Yield it and all groups below it, each before those that are part of it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def pod_groups(self) -> Iterator[Group]:
        """Yield the pod groups, in the order of scheduling."""
        return (group for group in self.walk() if not group.is_composite)

    def waits_for(self) -> str:
        """Return which groups or pods are missing; "" if enough exist."""
        if self.is_ready:
            return ""
        if not self.is_composite:
            return f"{self.label} waits for {counted(self.minimum, 'pod')}, and {there_are(self.size)}"
        if self.size < self.minimum:
            return f"{self.label} waits for {counted(self.minimum, 'group')}, and {there_are(self.size)}"
        ready = sum(child.is_ready for child in self.children)
        missing = next(reason for child in self.children if (reason := child.waits_for()))
        expected = f"{self.label} waits for {counted(self.minimum, 'group')}"
        return f"{expected}, and {ready} of {self.size} {has(ready)} enough pods; {missing}"


class GroupTree(NamedTuple):
    """All groups that start together, and the one that an explanation is about."""

    root: Group
    asked: Group


def tree_of(snapshot: Snapshot, kind: str, value: Object) -> GroupTree:
    """Return the groups that are scheduled together with a group of this kind; their pods are not added yet.

    Raises:
        InvalidTreeError: A parent is missing or is part of its own group, or there are too many levels.
        UsageError: There are too many groups.
    """
    composites = {one["metadata"]["name"]: one for one in snapshot.composites or ()}
    groups = {one["metadata"]["name"]: one for one in snapshot.groups or ()}
    root = _root(snapshot, composites, kind, value)
    children: dict[str, list[tuple[str, Object]]] = {}
    for child_kind, objects in ((COMPOSITE, composites), (POD_GROUP, groups)):
        for one in objects.values():
            if parent := parent_name(one):
                children.setdefault(parent, []).append((child_kind, one))
    tree = _tree(root, children)
    asked = (kind, value["metadata"]["name"])
    return GroupTree(tree, next(group for group in tree.walk() if group.key == asked))


def _root(snapshot: Snapshot, composites: Mapping[str, Object], kind: str, value: Object) -> Object:
    path = dict.fromkeys([value["metadata"]["name"]] if kind == COMPOSITE else [])
    label = f"{_LABELS[kind]} {value['metadata']['name']}"
    while parent := parent_name(value):
        if parent in path:
            raise InvalidTreeError(f"kube-scheduler schedules no pod of it: {_cycle(list(path), parent)}")
        if parent not in composites:
            raise InvalidTreeError(
                f"there is no composite pod group {snapshot.namespace}/{parent}, which {label} is part of"
            )
        value, label = composites[parent], f"composite pod group {parent}"
        path[parent] = None
    return value


def _cycle(path: list[str], first: str) -> str:
    cycle = path[path.index(first) :]
    if len(cycle) == 1:
        return f"composite pod group {first} is part of itself"
    more = len(cycle) - _MAX_NAMED
    others = f" and {more} more" if more > 0 else ""
    return f"composite pod groups {', '.join(cycle[:_MAX_NAMED])}{others} are part of each other"


def _tree(root: Object, children: Mapping[str, Sequence[tuple[str, Object]]]) -> Group:
    top = _group(COMPOSITE, root, level=0)
    number, level = 0, [top]
    while level:
        number += len(level)
        if number > MAX_GROUPS:
            raise UsageError(f"{top.label} has more than {MAX_GROUPS} groups, which are not evaluated")
        if level[0].level == MAX_LEVELS:
            raise InvalidTreeError(
                f"is not evaluated: {top.label} has more than {MAX_LEVELS} levels of groups, the limit of Kubernetes"
            )
        for group in level:
            if group.is_composite:
                found = (_group(kind, one, level=group.level + 1) for kind, one in _ordered(children, group.name))
                group.children = list(found)
        level = [child for group in level for child in group.children]
    return top


def _ordered(children: Mapping[str, Sequence[tuple[str, Object]]], name: str) -> list[tuple[str, Object]]:
    return sorted(
        children.get(name, ()),
        key=lambda child: (str(child[1]["metadata"].get("creationTimestamp") or ""), child[1]["metadata"]["name"]),
    )


def _group(kind: str, value: Object, *, level: int) -> Group:
    spec, name = value.get("spec") or {}, value["metadata"]["name"]
    counted = "minGroupCount" if kind == COMPOSITE else "minCount"
    gang = (spec.get("schedulingPolicy") or {}).get("gang")
    minimum = 1 if gang is None else gang.get(counted)
    if not isinstance(minimum, int) or isinstance(minimum, bool) or minimum < 1:
        raise InvalidTreeError(f"{_LABELS[kind]} {name} has {counted} {minimum}, and needs at least 1")
    topology = (spec.get("schedulingConstraints") or {}).get("topology") or [{}]
    return Group(kind, name, level, parent_name(value) or None, minimum, topology[0].get("key") or None)

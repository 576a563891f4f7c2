"""Places the groups of a composite pod group one after another, as kube-scheduler does.

podGroupSchedulingRecursiveAlgorithm and what it calls, pkg/scheduler/schedule_one_podgroup.go at v1.37.1: a group that
does not get enough of its groups or pods releases all of them; a group with a topology is placed on the nodes of each
value, within the nodes that the group above it has, and keeps the placement with the most pods; a group ends when those
that are left cannot be enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_agent.api_object import Object
from dra_agent.deadline import Deadline
from dra_cluster.explain.gang_evaluation import Evaluation
from dra_cluster.explain.gang_members import Member
from dra_cluster.explain.gang_placement import Choice, Earlier, Placed, Placer, Run
from dra_cluster.explain.gang_topology import Topology, topologies_of
from dra_cluster.explain.group_tree import Group

Key = tuple[str, str]
OnFailure = Callable[[Group, Mapping[str, Object], int, list[Object]], None]
"""Called with the pod group, the nodes that are allowed, and the kind and claims of a member that fits on none."""


@dataclass
class GroupResult:
    """The placement of one group, or why it has none."""

    group: Group
    fits: bool = False
    reached: int = 0
    """How many of its groups or pods have a place."""
    reason: str = ""
    """Why nothing of it was placed."""
    children: list[GroupResult] = field(default_factory=list)
    """Of its groups, those that were placed or tried."""
    placed: list[Placed] = field(default_factory=list)
    failed: list[tuple[int, Member]] = field(default_factory=list)
    """Of a pod group: the members that fit on no node."""
    topology: Topology | None = None
    values: int = 0
    """The number of values of its label that are possible."""
    has_equals: bool = False
    """Another value permits as many pods."""
    is_late: bool = False
    """The deadline ended it."""
    is_error: bool = False
    """kube-scheduler ends with an error, and starts no group of the tree."""
    runs: list[Run] = field(default_factory=list)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """What decides between values of a label."""
        return self.fits, *((len(self.placed), self.reached) if self.fits else (self.reached, len(self.placed)))

    def walk(self) -> list[GroupResult]:
        """Return it and all below it."""
        return [self, *(one for child in self.children for one in child.walk())]


class GroupPlacer:
    """Places a tree of groups. Nothing stays in the cluster."""

    def __init__(
        self,
        evaluation: Evaluation,
        *,
        deadline: Deadline | None = None,
        choice: Choice | None = None,
        orders: Mapping[Key, Sequence[Group]] | None = None,
        values: Mapping[Key, str] | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Place nothing yet.

        Arguments:
            evaluation: The members, and a cluster that nothing else changes.
            deadline: Another one than that of the evaluation.
            choice: How members are placed.
            orders: The groups of composite pod groups, in another order than that of kube-scheduler.
            values: For groups with a topology, the only value that is tried.
            on_failure: Called for the first member of each attempt that fits on no node.
        """
        self._evaluation = evaluation
        self._deadline = deadline or evaluation.deadline
        self._choice = choice or Choice()
        self._orders = orders or {}
        self._values = values or {}
        self._on_failure = on_failure
        self._earlier = Earlier()
        self._fitting = [set(names) for names in evaluation.fitting]

    def run(self, root: Group) -> GroupResult:
        """Place a group that is part of no other."""
        result = self._place(root, self._evaluation.known)
        self._suspend(result.runs)
        self._evaluation.plugins.use.clear()
        return result

    def _place(self, group: Group, nodes: Mapping[str, Object]) -> GroupResult:
        if group.size < group.minimum:
            return GroupResult(group, reached=group.running.total(), reason=group.waits_for())
        below = list(group.pod_groups())
        useful = {name for one in below for kind in one.kinds for name in self._fitting[kind]}
        running = {name for one in below for name in one.running}
        choices = topologies_of(group.topology, nodes, running, useful)
        if not choices:
            reason = f"the nodes have no value of label {group.topology} that permits all its pods"
            return GroupResult(group, reason=reason, is_error=bool(running))
        if (value := self._values.get(group.key)) is not None:
            choices = [one for one in choices if one.value == value] or choices[:1]
        results: list[GroupResult] = []
        for topology in choices:
            result = self._place_in(group, {name: nodes[name] for name in topology.nodes})
            result.topology, result.values = topology, len(choices)
            results.append(result)
            if len(choices) > 1:
                self._suspend(result.runs)
            if not self._deadline.remaining():
                break
        best = max(results, key=lambda one: one.rank)
        best.has_equals = sum(one.rank == best.rank for one in results) > 1
        best.is_late |= len(results) < len(choices) and not best.fits
        if len(choices) > 1:
            self._resume(best.runs)
        return best

    def _place_in(self, group: Group, nodes: Mapping[str, Object]) -> GroupResult:
        result = self._groups(group, nodes) if group.is_composite else self._members(group, nodes)
        result.fits = result.reached >= group.minimum and not result.is_error
        if result.fits:
            result.is_late = False
        else:
            self._suspend(result.runs)
            result.runs = []
        return result

    def _groups(self, group: Group, nodes: Mapping[str, Object]) -> GroupResult:
        result = GroupResult(group)
        listed = self._orders.get(group.key, group.children)
        for number, child in enumerate(listed, start=1):
            one = self._place(child, nodes)
            result.children.append(one)
            if one.fits:
                result.reached += 1
                result.placed += one.placed
                result.runs += one.runs
            result.is_late |= one.is_late
            result.is_error |= one.is_error
            if result.is_late or result.is_error or result.reached + len(listed) - number < group.minimum:
                break
        return result

    def _members(self, group: Group, nodes: Mapping[str, Object]) -> GroupResult:
        evaluation, kinds = self._evaluation, set(group.kinds)
        usable = [
            [name for name in names if name in nodes] if kind in kinds else []
            for kind, names in enumerate(evaluation.fitting)
        ]
        placer = Placer(evaluation.cluster, evaluation.gang, usable, self._deadline, evaluation.plugins)
        run = Run(placer, self._choice, self._earlier)
        on_failure = self._on_failure
        outcome = run.place_all(
            group.order,
            None if on_failure is None else lambda kind, claims: on_failure(group, nodes, kind, claims),
        )
        self._count(run, 1)
        reached = group.running.total() + len(outcome.placed)
        return GroupResult(
            group,
            reached=reached,
            placed=outcome.placed,
            failed=outcome.failed,
            is_late=outcome.is_late,
            runs=[run],
        )

    def _suspend(self, runs: Sequence[Run]) -> None:
        for run in reversed(runs):
            run.suspend()
            self._count(run, -1)

    def _resume(self, runs: Sequence[Run]) -> None:
        for run in runs:
            run.resume()
            self._count(run, 1)

    def _count(self, run: Run, sign: int) -> None:
        """Add the members of a run to those that are placed, or take them away."""
        for name, claim in run.allocated.items():
            if sign > 0:
                self._earlier.allocated[name] = claim
            else:
                del self._earlier.allocated[name]
        for node, number in run.placed_members.items():
            self._earlier.members[node] += sign * number

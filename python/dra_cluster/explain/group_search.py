"""Searches for a placement of a composite pod group that kube-scheduler's order does not find.

Other orders of the groups, other nodes and other alternatives are tried; the order of the pods of each group stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from dra_cluster.explain.gang_evaluation import Evaluation
from dra_cluster.explain.gang_placement import Choice, Outcome
from dra_cluster.explain.gang_search import MAX_RUNS, Found, first_alternatives
from dra_cluster.explain.group_placement import GroupPlacer, Key
from dra_cluster.explain.group_tree import Group

MAX_PERMUTED_GROUPS = 4
"""Groups of a composite pod group of which every order is tried."""


@dataclass
class _Attempt:
    orders: Mapping[Key, Sequence[Group]] = field(default_factory=dict)
    """Orders that differ from that of kube-scheduler."""
    choice: Choice = field(default_factory=Choice)


def search(evaluation: Evaluation, root: Group) -> Found:
    """Search for what would place enough groups; what differs least from what kube-scheduler does comes first."""
    gang, found = evaluation.gang, Found()
    for attempt in _attempts(evaluation, root):
        if found.tried >= MAX_RUNS or not evaluation.deadline.remaining():
            break
        found.tried += 1
        result = GroupPlacer(evaluation, orders=attempt.orders, choice=attempt.choice).run(root)
        if result.fits:
            found.outcome = Outcome(result.placed, [], is_late=False)
            found.order = [one.kind for one in result.placed] if attempt.orders else list(gang.order)
            found.chooses_nodes = attempt.choice.packs
            break
    return found


def _attempts(evaluation: Evaluation, root: Group) -> Iterator[_Attempt]:
    orders = list(_orders(evaluation, root))
    for packs in (False, True):
        if packs:
            yield _Attempt(choice=Choice(packs=True))
        for order in orders:
            yield _Attempt(order, Choice(packs=packs))
    for first in first_alternatives(evaluation.gang):
        for other in ({}, *orders):
            for packs in (False, True):
                yield _Attempt(other, Choice(packs, first))


def _orders(evaluation: Evaluation, root: Group) -> Iterator[Mapping[Key, Sequence[Group]]]:
    """Yield orders of groups: everywhere the most demanding first, reversed, and every order of small groups."""
    composites = [group for group in root.walk() if len(group.children) > 1]
    by_demand = {group.key: sorted(group.children, key=lambda one: _demand(evaluation, one)) for group in composites}
    reverse = {group.key: group.children[::-1] for group in composites}
    for orders in (by_demand, reverse):
        if changed := {group.key: order for group in composites if (order := orders[group.key]) != group.children}:
            yield changed
    for group in composites:
        if len(group.children) <= MAX_PERMUTED_GROUPS:
            for permuted in permutations(group.children):
                if list(permuted) != group.children:
                    yield {group.key: permuted}


def _demand(evaluation: Evaluation, group: Group) -> tuple[int, int]:
    """Return the key of a group: those whose pods fit on the fewest nodes come first, then those with the most pods."""
    below = list(group.pod_groups())
    nodes = min((len(evaluation.fitting[kind]) for one in below for kind in one.kinds), default=0)
    return nodes, -sum(len(one.order) for one in below)

"""Searches for a placement of a gang that kube-scheduler's order does not find: orders, nodes, and alternatives.

kube-scheduler chooses devices for one pod at a time and does not reconsider earlier pods, so a gang can fail although
it would fit (kubernetes/kubernetes#138765). The search is bounded; a placement that it finds is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, permutations

from dra_agent.api_object import Object, requests_of
from dra_cluster.explain.gang_combinations import Combinations, longest_list
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_placement import MAX_ALTERNATIVES, Choice, Outcome, Placer

MAX_PERMUTED_KINDS = 4
"""Kinds of members of which every order is tried."""
MAX_RUNS = 200
"""Orders of the whole gang that are tried one after another."""
MAX_EXHAUSTIVE_MEMBERS = 64


@dataclass
class Found:
    """What the search found."""

    outcome: Outcome | None = None
    """A placement that is sufficient."""
    order: list[int] = field(default_factory=list)
    """The kinds of its members, in their order."""
    chooses_nodes: bool = False
    """It needs nodes that kube-scheduler is not assumed to choose."""
    tried: int = 0
    """How many orders and choices were tried."""
    is_complete: bool = False
    """Every order and choice of nodes was tried; devices that the allocator does not choose were not."""


def search(placer: Placer, gang: Gang, order: Sequence[int]) -> Found:
    """Search for an order, nodes or alternatives that place enough members, after `order` did not.

    What differs least from what kube-scheduler does comes first: another order, other nodes, then other alternatives.
    """
    found = Found()
    for other, choice in _attempts(placer, gang, list(order)):
        if found.tried >= MAX_RUNS or not placer.seconds:
            break
        found.tried += 1
        outcome = placer.run(other, choice)
        if is_enough(gang, outcome):
            return _with(found, outcome, other, chooses_nodes=choice.packs)
    if len(order) <= MAX_EXHAUSTIVE_MEMBERS and placer.seconds:
        combinations = Combinations(placer, gang)
        placed = combinations.search()
        found.tried += combinations.dead_ends
        found.is_complete = combinations.is_complete and placed is None
        if placed is not None:
            several = len({node for nodes in placer.nodes for node in nodes}) > 1
            outcome = Outcome(placed, [], is_late=False)
            return _with(found, outcome, [one.kind for one in placed], chooses_nodes=several)
    return found


def is_enough(gang: Gang, outcome: Outcome) -> bool:
    """Return whether enough members have a node."""
    return gang.running + len(outcome.placed) >= gang.needed


def _with(found: Found, outcome: Outcome, order: list[int], *, chooses_nodes: bool) -> Found:
    found.outcome, found.order, found.chooses_nodes = outcome, order, chooses_nodes
    return found


def _attempts(placer: Placer, gang: Gang, order: list[int]) -> Iterator[tuple[list[int], Choice]]:
    # Orders of thousands of kinds take long, so each is made when it is tried.
    def others() -> Iterator[list[int]]:
        return (other for other in _orders(placer, gang) if other != order)

    for packs in (False, True):
        if packs:
            yield order, Choice(packs=True)
        for other in others():
            yield other, Choice(packs=packs)
    for first in _first_alternatives(gang):
        for other in chain([order], others()):
            for packs in (False, True):
                yield other, Choice(packs, first)


def _orders(placer: Placer, gang: Gang) -> Iterator[list[int]]:
    """Yield orders in which all members of a kind come together, first those that begin with the most demanding."""
    kinds = [number for number, kind in enumerate(gang.kinds) if kind.members]
    by_demand = sorted(kinds, key=lambda kind: (len(placer.nodes[kind]), -_devices(gang, kind)))
    if len(kinds) <= MAX_PERMUTED_KINDS:
        chosen: Iterable[tuple[int, ...]] = permutations(by_demand)
    else:
        rotated = (tuple(by_demand[place:] + by_demand[:place]) for place in range(len(by_demand)))
        by_devices = sorted(kinds, key=lambda kind: -_devices(gang, kind))
        chosen = chain(rotated, (tuple(reversed(by_demand)), tuple(by_devices)))
    for order in chosen:
        yield [kind for kind in order for _ in gang.kinds[kind].members]


def _devices(gang: Gang, kind: int) -> int:
    claims = gang.kinds[kind].members[0].claims
    return sum(_count(request) for claim in claims for request in requests_of(claim))


def _count(request: Object) -> int:
    listed = request.get("firstAvailable") or [request.get("exactly") or {}]
    counts = [one.get("count") for one in listed]
    return max(count if isinstance(count, int) else 1 for count in counts)


def _first_alternatives(gang: Gang) -> Iterator[dict[int, int]]:
    """Yield the places at which alternatives begin, by kind: the same place for every kind, then for each alone."""
    lengths = {kind: length for kind in range(len(gang.kinds)) if (length := longest_list(gang, kind)) > 1}
    deepest = max(lengths.values(), default=0)
    for first in range(1, min(deepest, MAX_ALTERNATIVES)):
        yield {kind: min(first, length - 1) for kind, length in lengths.items()}
    if len(lengths) > 1:
        for kind, length in lengths.items():
            for first in range(1, length):
                yield {kind: first}

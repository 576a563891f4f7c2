"""Places the members of a gang one after another, as kube-scheduler does with pods, on a `Cluster` for that only.

Each member gets the devices that the allocator chooses after the earlier ones. What decides between several nodes is
not about devices (free CPU and memory, images, spread), so it is an assumption: the node with the better alternative
of `firstAvailable`, then the one with the fewest members, then the first by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from dra_agent.api_object import Object, allocation_of, identity_of, requests_of, results_of
from dra_agent.cluster import Cluster
from dra_agent.deadline import Deadline
from dra_cluster.explain.gang_members import Gang, Member
from dra_cluster.explain.gang_plugins import NO_DEVICES, GangPlugins
from dra_cluster.explain.snapshot import Snapshot

MAX_ALTERNATIVES = 8
"""Of a request (FirstAvailableDeviceRequestMaxSize, api/resource/v1/types.go)."""
_MISSES_BEFORE_SWEEP = 8
"""Nodes that are tried one at a time before all that are left are examined at once."""
_Key = tuple[int, int, str]


class Placed(NamedTuple):
    """A member that has a node."""

    kind: int
    member: Member
    node: str
    claims: list[Object]
    """Its claims with their allocations."""


class Outcome(NamedTuple):
    """The result of one order."""

    placed: list[Placed]
    failed: list[tuple[int, Member]]
    """Those that fit on no node, the first one first."""
    is_late: bool
    """The deadline ended it; members that are in neither list have not been evaluated."""


class Choice(NamedTuple):
    """How members are placed."""

    packs: bool = False
    """Prefers the node with the most members, not the one with the fewest."""
    first_alternative: Mapping[int, int] = {}
    """By kind: the alternatives of `firstAvailable` before this one are not used."""


class Placer:
    """Places members. One order is placed at a time, and nothing of it stays in the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        gang: Gang,
        nodes: Sequence[Sequence[str]],
        deadline: Deadline,
        plugins: GangPlugins | None = None,
    ) -> None:
        """Use a cluster that nothing else changes.

        Arguments:
            cluster: The devices; claims that are allocated are held.
            gang: The members.
            nodes: For each kind of member, the nodes on which one may fit.
            deadline: Of all orders together.
            plugins: The device plugins of the nodes, which nothing else changes; None without any.
        """
        self.cluster = cluster
        self.gang = gang
        self.nodes = nodes
        self.deadline = deadline
        self.plugins = GangPlugins(Snapshot(""), gang, {}) if plugins is None else plugins

    @property
    def seconds(self) -> float:
        """The time until the deadline."""
        return self.deadline.remaining()

    def run(
        self,
        order: Sequence[int],
        choice: Choice | None = None,
        *,
        on_failure: Callable[[int, list[Object]], None] | None = None,
    ) -> Outcome:
        """Place members in an order of kinds.

        `on_failure` is called with the kind and the claims of the first member that fits on no node, while the earlier
        ones have their devices.
        """
        run = Run(self, choice or Choice())
        try:
            return run.place_all(order, on_failure)
        finally:
            self.cluster.release(run.held)
            self.plugins.use.clear()


class Holding:
    """The devices of members that are placed, in the cluster."""

    def __init__(self, placer: Placer) -> None:
        """Begin with the claims that the cluster holds."""
        self._cluster = placer.cluster
        self._placer = placer
        self._plugin_use: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
        """What the member of a claim uses of a device plugin; the claim is that for its extended resources."""
        self.allocated: dict[tuple[str, str], Object] = {}
        """The claims that got an allocation."""
        self.is_fatal = False
        """The last allocation had an error at which kube-scheduler places the pod on no node."""

    @property
    def held(self) -> list[Object]:
        """The claims that have to be released."""
        return list(self.allocated.values())

    def claims_of(self, member: Member, first_alternative: int) -> list[Object]:
        """Return the claims of a member: with allocations where it shares them with an earlier one."""
        return [
            self.allocated.get(identity_of(claim)) or _without_alternatives(claim, first_alternative)
            for claim in member.claims
        ]

    def allocate(self, kind: int, node: str, claims: list[Object]) -> list[Object] | None:
        """Return the claims of a member with their allocations on a node; None if it does not fit there."""
        plugins = self._placer.plugins
        self.is_fatal = False
        if plugins.lacks(kind, node):
            return None
        needed = plugins.claims(kind, node, claims)
        if needed:
            found = self._cluster.allocate(node, needed, deadline=self._placer.seconds)
            if not found["allocated"]:
                self.is_fatal = found["fatal"]
                return None
            needed = [
                claim if allocation_of(claim) else {**claim, "status": {"allocation": result}}
                for claim, result in zip(needed, found["results"], strict=True)
            ]
        # Of the last claim, the device plugin may serve everything.
        return needed + [{**claim, "status": {"allocation": NO_DEVICES}} for claim in claims[len(needed) :]]

    def hold(self, kind: int, node: str, before: Sequence[Object], after: Sequence[Object]) -> list[Object]:
        """Hold what a member got on a node: the devices of its claims, and of a device plugin; return these claims."""
        new = [claim for old, claim in zip(before, after, strict=True) if not allocation_of(old)]
        self._cluster.hold(new)
        self.allocated.update((identity_of(claim), claim) for claim in new)
        if taken := self._placer.plugins.take(kind, node):
            self._plugin_use[identity_of(after[-1])] = taken
        return new

    def release(self, claims: Iterable[Object]) -> None:
        """Undo `hold`."""
        for claim in claims:
            name = identity_of(claim)
            del self.allocated[name]
            self._cluster.release([claim])
            if taken := self._plugin_use.pop(name, None):
                self._placer.plugins.use.subtract(taken)


class Run(Holding):
    """One order of members, which hold their devices until they are released."""

    def __init__(self, placer: Placer, choice: Choice) -> None:
        """Place nothing yet."""
        super().__init__(placer)
        self._choice = choice
        self._members = Counter[str]()
        for kind in placer.gang.kinds:
            self._members.update(kind.running)
        kinds = placer.gang.kinds
        self._best = [_best_score(kind.members[0].claims) if kind.members else 0 for kind in kinds]
        self._scores: list[dict[str, int]] = [{} for _ in kinds]
        self._open = [set(nodes) for nodes in placer.nodes]
        """The nodes on which a member of a kind may still fit."""
        self._queues = [
            sorted((self._key(kind, node), node) for node in nodes) for kind, nodes in enumerate(self._open)
        ]
        """Heaps of these nodes, the best one first; keys may be outdated, and nodes may be there several times."""

    def place_all(self, order: Sequence[int], on_failure: Callable[[int, list[Object]], None] | None = None) -> Outcome:
        """Place members, as `Placer.run` does."""
        outcome = Outcome([], [], is_late=False)
        next_member = [iter(kind.members) for kind in self._placer.gang.kinds]
        for kind in order:
            member = next(next_member[kind])
            claims = self.claims_of(member, self._choice.first_alternative.get(kind, 0))
            placed = self._place(kind, member, claims)
            if placed is not None:
                outcome.placed.append(placed)
            elif not self._placer.seconds:
                return outcome._replace(is_late=True)
            else:
                outcome.failed.append((kind, member))
                if len(outcome.failed) == 1 and on_failure is not None:
                    on_failure(kind, claims)
        return outcome

    def _place(self, kind: int, member: Member, claims: list[Object]) -> Placed | None:
        """Place a member on its best node.

        What does not fit on a node does not fit there later: members only add to what is in use. So a node leaves the
        queue of the kind when one of its members does not fit.
        """
        queue, misses = self._queues[kind], 0
        while queue and self._placer.seconds:
            known, node = queue[0]
            if node not in self._open[kind]:
                heappop(queue)
                continue
            if known != (current := self._key(kind, node)):
                heapreplace(queue, (current, node))
                continue
            after = self.allocate(kind, node, claims)
            if after is None:
                if not self._placer.seconds:
                    return None
                if self.is_fatal:
                    self._open[kind].clear()
                self._open[kind].discard(node)
                misses += 1
                if misses % _MISSES_BEFORE_SWEEP == 0:
                    self._sweep(kind, claims)
                continue
            score = _alternatives_score(after)
            if score < self._score(kind, node):
                # Another node may have a better alternative.
                self._scores[kind][node] = score
                continue
            self.hold(kind, node, claims, after)
            self._members[node] += 1
            if self._choice.packs:
                # The other entries of a queue are corrected when they are at its head; this one moves towards it.
                for other, entries in enumerate(self._queues):
                    heappush(entries, (self._key(other, node), node))
            return Placed(kind, member, node, after)
        return None

    def _sweep(self, kind: int, claims: list[Object]) -> None:
        others = self._open[kind] & self._placer.plugins.nodes(kind)
        nodes = self._open[kind] - others
        sweep = self._placer.cluster.fits(claims, nodes=nodes, deadline=self._placer.seconds)
        self._open[kind] &= {*sweep.fits, *sweep.unexamined, *others}

    def _key(self, kind: int, node: str) -> _Key:
        members = self._members[node]
        return -self._score(kind, node), -members if self._choice.packs else members, node

    def _score(self, kind: int, node: str) -> int:
        return self._scores[kind].get(node, self._best[kind])


def _best_score(claims: Iterable[Object]) -> int:
    return sum(MAX_ALTERNATIVES for claim in claims for request in requests_of(claim) if request.get("firstAvailable"))


def _alternatives_score(claims: Iterable[Object]) -> int:
    """Return how good the alternatives of allocated claims are, as kube-scheduler scores a node.

    computeScore, pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go at v1.37.
    """
    score = 0
    for claim in claims:
        chosen = {result.get("request") for result in results_of(claim)}
        for request in requests_of(claim):
            for place, alternative in enumerate(request.get("firstAvailable") or ()):
                if f"{request.get('name')}/{alternative.get('name')}" in chosen:
                    score += MAX_ALTERNATIVES - place
    return score


def _without_alternatives(claim: Object, first: int) -> Object:
    """Return a claim without the alternatives before a place; the last one of each request is kept."""
    if not first or allocation_of(claim):
        return claim
    requests = []
    for request in requests_of(claim):
        listed = request.get("firstAvailable") or []
        kept = listed[min(first, len(listed) - 1) :] if listed else []
        requests.append({**request, "firstAvailable": kept} if listed else request)
    return {**claim, "spec": {**claim["spec"], "devices": {**claim["spec"]["devices"], "requests": requests}}}

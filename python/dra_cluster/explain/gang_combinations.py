"""Tries every order, node and alternative of the members of a small gang, until the steps or the time end."""

from __future__ import annotations

import json
from collections import Counter

from dra_agent.api_object import Object, allocation_of, identity_of, requests_of, results_of
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_placement import Holding, Placed, Placer

MAX_STEPS = 4000
"""Placements of one member that are tried."""


class Combinations(Holding):
    """The combinations of one gang."""

    def __init__(self, placer: Placer, gang: Gang) -> None:
        """Try nothing yet."""
        super().__init__(placer)
        self._gang = gang
        self._steps = 0
        self._path: list[Placed] = []
        self._known: set[object] = set()
        """States that lead to no placement."""
        users = Counter(identity_of(claim) for kind in gang.kinds for one in kind.members for claim in one.claims)
        self._shared = {name for name, count in users.items() if count > 1}
        self.dead_ends = 0
        """Combinations of which no further member fits."""
        self.is_complete = all(_lists(gang, kind) < 2 for kind in range(len(gang.kinds)))
        """Every combination was tried. Of a member with several lists of alternatives, only some are."""

    def search(self) -> list[Placed] | None:
        """Return enough placed members in their order; None if there is no such combination, or none was found."""
        left = tuple(len(kind.members) for kind in self._gang.kinds)
        try:
            return list(self._path) if self._descend(left) else None
        finally:
            self.release(self.held)

    def _descend(self, left: tuple[int, ...]) -> bool:
        """Place one more member, and those after it; return True if that is enough. Nothing stays placed otherwise."""
        if self._gang.running + len(self._path) >= self._gang.needed:
            return True
        state = (left, self._use())
        if state in self._known:
            return False
        missing = self._gang.needed - self._gang.running - len(self._path)
        is_dead_end = True
        for kind, count in enumerate(left):
            if not count:
                continue
            fits, is_enough = self._place_next(kind, left)
            if is_enough:
                return True
            if self._is_spent():
                self.is_complete = False
                return False
            is_dead_end &= not fits
            if not fits and sum(left) - count < missing:
                break  # Later members leave no more room for this kind.
        self.dead_ends += is_dead_end
        self._known.add(state)
        return False

    def _place_next(self, kind: int, left: tuple[int, ...]) -> tuple[bool, bool]:
        """Place the next member of a kind in each way; return whether it fits, and whether one way is sufficient."""
        member = self._gang.kinds[kind].members[-left[kind]]
        below = (*left[:kind], left[kind] - 1, *left[kind + 1 :])
        fits = False
        for first in range(max(1, longest_list(self._gang, kind))):
            for node in self._placer.nodes[kind]:
                if self._is_spent():
                    return fits, False
                self._steps += 1
                before = self.claims_of(member, first)
                after = self.allocate(kind, node, before)
                if after is None:
                    continue
                fits = True
                new = self.hold(kind, node, before, after)
                self._path.append(Placed(kind, member, node, after))
                if self._descend(below):
                    return True, True
                self._path.pop()
                self.release(new)
        return fits, False

    def _is_spent(self) -> bool:
        return self._steps >= MAX_STEPS or not self._placer.seconds

    def _use(self) -> object:
        """Return which devices are used and how, independent of the names of claims that one member has alone."""
        devices = sorted(
            (name if name in self._shared else ("", ""), _use_of(claim)) for name, claim in self.allocated.items()
        )
        return tuple(devices), frozenset(item for item in self._placer.plugins.use.items() if item[1])


def longest_list(gang: Gang, kind: int) -> int:
    """Return the length of the longest list of alternatives that a kind of member has; 0 without any."""
    return max((len(listed) for listed in _alternatives(gang, kind)), default=0)


def _lists(gang: Gang, kind: int) -> int:
    return len(_alternatives(gang, kind))


def _alternatives(gang: Gang, kind: int) -> list[list[Object]]:
    """Return the lists of alternatives of which one is still to be chosen."""
    members = gang.kinds[kind].members
    claims = [claim for claim in members[0].claims if not allocation_of(claim)] if members else []
    return [listed for claim in claims for request in requests_of(claim) if (listed := request.get("firstAvailable"))]


def _use_of(claim: Object) -> str:
    # The identifier of a share is random.
    return json.dumps([{**result, "shareID": None} for result in results_of(claim)], sort_keys=True)

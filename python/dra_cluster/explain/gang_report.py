"""The placements of a gang as JSON, and its result in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dra_agent.api_object import Object, results_of
from dra_cluster.explain.counts import counted, has, share_of
from dra_cluster.explain.gang_evaluation import Evaluation
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_placement import Outcome, Placed
from dra_cluster.explain.gang_search import is_enough


def evaluated_placements(evaluation: Evaluation, placed: Sequence[Placed]) -> Object:
    """Return the placements, with the number of nodes on which a member of each kind may be, and fits alone."""
    found = placements(evaluation.gang, placed)
    for kind, usable, fitting in zip(found["kinds"], evaluation.usable, evaluation.fitting, strict=True):
        kind |= {"usable_nodes": len(usable), "fits_alone_on": len(fitting)}
    return found


def placements(gang: Gang, placed: Sequence[Placed]) -> Object:
    """Return the members of each kind by node, and the node and devices of each member."""
    kinds = [
        {
            "name": kind.name,
            "members": len(kind.members) + kind.running.total(),
            "running": kind.running.total(),
            "placed": sum(1 for one in placed if one.kind == number),
            "nodes": dict(sorted(Counter(one.node for one in placed if one.kind == number).items())),
            "alternatives": _alternatives([one for one in placed if one.kind == number]),
        }
        for number, kind in enumerate(gang.kinds)
    ]
    return {"placed": len(placed), "kinds": kinds, "placements": [_placement(gang, one) for one in placed]}


def summary(gang: Gang, outcome: Outcome, failure: Object | None, usable: int) -> str:
    """Describe an outcome.

    Arguments:
        gang: The members.
        outcome: Those that are placed, and those that are not.
        failure: Why the first one fits nowhere.
        usable: The number of nodes that its pod permits.
    """
    placed, waiting = len(outcome.placed), len(gang.order)
    nodes = len({one.node for one in outcome.placed})
    where = f" on {counted(nodes, 'node')}" if placed else ""
    text = f"{share_of(placed, waiting, 'waiting pod' if gang.running else 'pod')} can be placed{where}"
    if gang.running:
        text += f"; {gang.running} {has(gang.running)} a node already"
    if is_enough(gang, outcome) and placed < waiting:
        text += f"; {gang.needed} are needed"
    if outcome.is_late:
        return f"{text}; the others have no result in time"
    if failure is None:
        return text
    fits_nowhere = f"fits on none of {usable} nodes" if usable > 1 else "does not fit"
    at = f"{failure['node']}: " if failure["node"] else ""
    return f"{text}; {failure['member']} {fits_nowhere}; {at}{failure['reason']}"


def _alternatives(placed: Sequence[Placed]) -> dict[str, int]:
    """Return how many members have each alternative of `firstAvailable`."""
    chosen = Counter(
        request for one in placed for request in {result.get("request") for c in one.claims for result in results_of(c)}
    )
    return {str(request): count for request, count in sorted(chosen.items()) if "/" in str(request)}


def _placement(gang: Gang, one: Placed) -> Object:
    devices = [
        {key: result.get(key) for key in ("request", "driver", "pool", "device")}
        for claim in one.claims
        for result in results_of(claim)
    ]
    return {"member": one.member.name, "kind": gang.kinds[one.kind].name, "node": one.node, "devices": devices}

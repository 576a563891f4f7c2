"""What would place a gang that kube-scheduler's order does not place, or why nothing would."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from dra_agent.api_object import Object, device_of, requests_of, results_of
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_placement import Outcome, Placed, Placer
from dra_cluster.explain.gang_report import placements
from dra_cluster.explain.gang_search import Found, search
from dra_cluster.explain.snapshot import Snapshot

UPSTREAM = "kubernetes/kubernetes#138765"
"""kube-scheduler does not reconsider the devices of earlier pods of a gang."""


def remedy(gang: Gang, snapshot: Snapshot, placer: Placer, outcome: Outcome, impossible: str | None) -> Object:
    """Search for what would place enough members after `outcome` did not, unless it is known to be `impossible`."""
    found = Found() if impossible else search(placer, gang, gang.order)
    result: Object = {
        "found": found.outcome is not None,
        "tried": found.tried,
        "complete": found.is_complete,
        "impossible": impossible,
        "differs": [],
        "order": [],
        "placed": 0,
        "kinds": [],
        "placements": [],
        "upstream": None,
    }
    needed = "all of them" if gang.needed == gang.total else "enough of them"
    if impossible:
        return {**result, "summary": f"no order can place {needed}: {impossible}"}
    if found.outcome is None:
        if result["complete"]:
            text = f"no order of the pods and no choice of nodes places {needed}; every one was tried"
        else:
            tried = f"{found.tried} combination{'' if found.tried == 1 else 's'}"
            text = f"nothing that places {needed} was found in {tried} of orders, nodes and alternatives"
        return {**result, "summary": text}
    result["differs"] = _differences(gang, found)
    result["order"] = [
        {"kind": gang.kinds[kind].name, "members": len(list(members))} for kind, members in groupby(found.order)
    ]
    result |= placements(gang, found.outcome.placed)
    if _is_upstream_limit(snapshot, gang, [*outcome.placed, *found.outcome.placed]):
        result["upstream"] = UPSTREAM
    return {**result, "summary": f"another {' and '.join(result['differs'])} would place {needed}"}


def _differences(gang: Gang, found: Found) -> list[str]:
    placed = found.outcome.placed if found.outcome is not None else []
    differs = ["order"] if found.order != gang.order[: len(found.order)] else []
    if found.chooses_nodes:
        differs.append("choice of nodes")
    if any(
        len(_alternatives(claim)) < len(_alternatives(original))
        for one in placed
        for claim, original in zip(one.claims, one.member.claims, strict=True)
    ):
        differs.append("choice of alternatives")
    return differs


def _alternatives(claim: Object) -> list[Object]:
    return [one for request in requests_of(claim) for one in request.get("firstAvailable") or ()]


def _is_upstream_limit(snapshot: Snapshot, gang: Gang, placed: Iterable[Placed]) -> bool:
    """Return whether a member has alternatives or got a partition, of which kube-scheduler keeps the first choice."""
    if any(_alternatives(claim) for kind in gang.kinds for member in kind.members[:1] for claim in member.claims):
        return True
    used = {device_of(result) for one in placed for claim in one.claims for result in results_of(claim)}
    return any(
        (spec.get("driver"), (spec.get("pool") or {}).get("name"), device.get("name")) in used
        for entry in snapshot.slices or ()
        for spec in [entry.get("spec") or {}]
        for device in spec.get("devices") or ()
        if device.get("consumesCounters")
    )

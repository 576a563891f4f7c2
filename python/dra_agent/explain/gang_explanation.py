"""Explains a gang: where members are placed, which one is the first that fits nowhere, and what would place all.

docs/how-to/operate/gangs.md describes the result.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dra_agent.api_object import Object, allocation_of
from dra_agent.cluster import Cluster
from dra_agent.errors import PermanentError
from dra_agent.explain.gang import Gang
from dra_agent.explain.gang_limits import impossible
from dra_agent.explain.gang_nodes import NodeComparison
from dra_agent.explain.gang_placement import Outcome, Placer
from dra_agent.explain.gang_remedy import MAX_TOPOLOGIES, remedy
from dra_agent.explain.gang_report import has, placements, summary
from dra_agent.explain.gang_search import is_enough
from dra_agent.explain.gates import gates_in_use, notes_of
from dra_agent.explain.kueue_admission import WAITS_FOR_QUOTA
from dra_agent.explain.pending import best_candidate, missing_basis, nodes_of, why
from dra_agent.explain.snapshot import Snapshot

MAX_EXPLAINED_NODES = 8
"""Nodes with different reasons of which the best one is explained."""
SWEEPS_SHARE = 0.3
"""The part of the time in which the nodes of each kind are examined before members are placed."""
MIN_COUNT_S = 1.0
"""For all counts of devices, if the deadline is over."""
ASSUMED = (
    "assumed: of several nodes, a pod gets the one with its best alternative, then with the fewest of these pods, then "
    "the first by name; kube-scheduler also considers CPU, memory, images, spread and pod affinity"
)


@dataclass
class _Evaluation:
    """The gang in the cluster, before a member is placed."""

    gang: Gang
    cluster: Cluster
    known: Mapping[str, Object]
    usable: list[list[str]]
    """For each kind, the nodes that its pod permits."""
    fitting: list[list[str]]
    """For each kind, those of them on which one member fits alone."""
    end: float
    blocked: list[Counter[str]] = field(default_factory=list)
    """For each kind, why other nodes are not usable."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Nodes of which it is not known if a kind can use them, with the reason."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - time.monotonic())


def explain_gang(snapshot: Snapshot, gang: Gang, *, node: str | None = None, deadline: float = 10.0) -> Object:
    """Explain a gang: its devices, and for a Workload of Kueue its quota.

    Arguments:
        snapshot: The cluster.
        gang: The members.
        node: The node whose devices are explained, if a member does not fit.
        deadline: Seconds for everything together.

    Raises:
        PermanentError: An object cannot be read, or the node is unknown.
    """
    result = _explained_devices(snapshot, gang, node, deadline)
    admission = gang.admission
    if admission is None:
        return result
    left_out = [f"not evaluated: {'; '.join(admission.not_evaluated)}"] if admission.not_evaluated else []
    result |= {"admission": admission.document, "notes": [*admission.notes, *left_out, *result["notes"]]}
    if (blocker := admission.blocker) is None:
        return result
    if blocker.startswith(WAITS_FOR_QUOTA):
        what = f"{WAITS_FOR_QUOTA}, not for devices" if result["fits"] else f"{WAITS_FOR_QUOTA} and for devices"
        blocker = what + blocker.removeprefix(WAITS_FOR_QUOTA)
    return {**result, "fits": False, "summary": f"{blocker}; devices: {result['summary']}"}


def _explained_devices(snapshot: Snapshot, gang: Gang, node: str | None, deadline: float) -> Object:
    result: Object = {
        "subject": gang.subject,
        "fits": False,
        "summary": "",
        "members": gang.total,
        "needed": gang.needed,
        "running": gang.running,
        "placed": 0,
        "kinds": [],
        "placements": [],
        "failure": None,
        "search": None,
        "admission": None,
        "notes": [*snapshot.notes, *gang.notes, ASSUMED],
        "events": snapshot.events,
    }
    problems = [*gang.problems, *(f"pod {kind.members[0].name}: {one}" for kind in gang.kinds for one in kind.problems)]
    (problems if gang.needed == gang.total else result["notes"]).extend(gang.lacks_quota)
    if problems:
        return {**result, "summary": problems[0]}
    if not gang.order:
        fits = gang.running >= gang.needed
        parts = [gang.end] if gang.end else []
        parts += ["no pod waits for a node", f"{gang.running} {has(gang.running)} one"]
        return {**result, "fits": fits, "summary": "; ".join(parts)}
    waiting = [claim for kind in gang.kinds for member in kind.members for claim in member.claims]
    if not waiting:
        return {**result, "fits": True, "summary": "uses no claim, so devices are not the reason why it does not run"}
    if reason := missing_basis(snapshot, waiting):
        return {**result, "summary": reason}
    if snapshot.nodes is None:
        result["notes"].insert(0, "cordons, taints and labels of nodes are not known")
    end = time.monotonic() + deadline
    gates = gates_in_use(snapshot.slices or ())
    result["notes"] += notes_of(gates)
    evaluation = _evaluation(snapshot, gang, gates, end)
    if node is not None and node not in evaluation.known:
        raise PermanentError(f"there is no node {node}", hint="see the names with `kubectl get nodes`")
    return _explained(result, evaluation, snapshot, node)


def _evaluation(snapshot: Snapshot, gang: Gang, gates: Iterable[str], end: float) -> _Evaluation:
    known = nodes_of(snapshot)
    held = [claim for claim in snapshot.claims if allocation_of(claim)]
    slices = snapshot.slices or []
    cluster = Cluster(slices, snapshot.classes or (), nodes=known.values(), claims=held, gates=gates)
    found = _Evaluation(gang, cluster, known, [], [], end)
    sweeps_end = time.monotonic() + found.seconds * SWEEPS_SHARE
    comparison = NodeComparison(known, end, has_fields=snapshot.nodes is not None)
    for kind in gang.kinds:
        permitted = comparison.permitted(kind)
        usable = permitted.usable
        found.usable.append(usable)
        found.blocked.append(permitted.blocked)
        found.unknown |= permitted.unknown
        seconds = sweeps_end - time.monotonic()
        if not kind.members or seconds <= 0:
            found.fitting.append(usable)  # Nodes on which it does not fit are found when its members are placed.
            continue
        sweep = cluster.fits(kind.members[0].claims, nodes=usable, deadline=seconds)
        found.fitting.append(sorted([*sweep.fits, *sweep.unexamined]))
    return found


def _explained(result: Object, evaluation: _Evaluation, snapshot: Snapshot, node: str | None) -> Object:
    gang = evaluation.gang
    failure: Object = {}
    allowed: set[str] = set()

    def explain_failure(kind: int, claims: list[Object]) -> None:
        failure.clear()
        usable = [name for name in evaluation.usable[kind] if name in allowed]
        failure.update(_failure(evaluation, kind, claims, usable if node is None else [node]))

    attempts: list[tuple[Outcome, Placer, Object]] = []
    for allowed in _topologies(evaluation):
        nodes = [[name for name in names if name in allowed] for names in evaluation.fitting]
        placer = Placer(evaluation.cluster, gang, nodes, evaluation.end)
        outcome = placer.run(gang.order, on_failure=explain_failure)
        attempts.append((outcome, placer, dict(failure) if outcome.failed else {}))
        if is_enough(gang, outcome) or not evaluation.seconds:
            break
    if not attempts:
        return {**result, "summary": f"the nodes have no value of label {gang.topology} that permits all pods"}
    # As kube-scheduler does: of several values of the label, the one with the most pods.
    attempts.sort(key=lambda attempt: -len(attempt[0].placed))
    outcome, _, failed = attempts[0]
    result.update(placements(gang, outcome.placed))
    for number, kind in enumerate(result["kinds"]):
        kind |= {"usable_nodes": len(evaluation.usable[number]), "fits_alone_on": len(evaluation.fitting[number])}
    result["fits"] = is_enough(gang, outcome)
    result["failure"] = _failed_member(evaluation, outcome, failed) if failed else None
    usable = len(evaluation.usable[outcome.failed[0][0]]) if outcome.failed else 0
    result["summary"] = summary(gang, outcome, result["failure"], usable)
    if evaluation.unknown:
        # Neither a search nor a proof is possible: a pod may be permitted on such a node.
        (name, reason), *others = evaluation.unknown.items()
        more = f" and {len(others)} more" if others else ""
        result["notes"].append(f"node {name}{more}: {reason}")
    elif not result["fits"] and not outcome.is_late:
        end = time.monotonic() + max(MIN_COUNT_S, evaluation.seconds)
        proof = impossible(gang, snapshot, evaluation.fitting, end)
        result["search"] = remedy(gang, snapshot, [placer for _, placer, _ in attempts], outcome, proof)
    return result


def _topologies(evaluation: _Evaluation) -> list[set[str]]:
    """Return the nodes on which all members may be: all nodes, or those with one value of the label of the group."""
    label = evaluation.gang.topology
    if label is None:
        return [set(evaluation.known)]
    by_value: dict[str, set[str]] = {}
    for name, node in evaluation.known.items():
        value = ((node.get("metadata") or {}).get("labels") or {}).get(label)
        if value is not None:
            by_value.setdefault(str(value), set()).add(name)
    running = {name for kind in evaluation.gang.kinds for name in kind.running}
    return [names for _, names in sorted(by_value.items()) if names >= running][:MAX_TOPOLOGIES]


def _failure(evaluation: _Evaluation, kind: int, claims: list[Object], names: list[str]) -> Object:
    """Explain why a member fits nowhere, while the earlier ones have their devices."""
    cluster = evaluation.cluster
    if not names:
        blocked = evaluation.blocked[kind].most_common(1)
        return {"node": None, "reason": blocked[0][0] if blocked else "there is no node", "explanation": None}
    sweep = cluster.fits(claims, nodes=names, deadline=evaluation.seconds)
    reasons = {**sweep.reasons, **sweep.errors, **dict.fromkeys(sweep.fits, "fits")}
    by_reason = {reason: name for name, reason in sorted(reasons.items(), reverse=True)}
    chosen = sorted(by_reason.values())[:MAX_EXPLAINED_NODES] or names[:1]
    seconds = evaluation.seconds / len(chosen)
    entries: list[Object] = [
        {"node": name, "obstacles": [], "explanation": cluster.explain(name, claims, deadline=seconds)}
        for name in chosen
    ]
    best = best_candidate(entries) or entries[0]
    return {"node": best["node"], "reason": why(best["explanation"]), "explanation": best["explanation"]}


def _failed_member(evaluation: _Evaluation, outcome: Outcome, failure: Object) -> Object:
    kind, member = outcome.failed[0]
    return {"member": member.name, "kind": evaluation.gang.kinds[kind].name, "failed": len(outcome.failed), **failure}

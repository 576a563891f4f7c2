"""Explains a gang: where members are placed, which one is the first that fits nowhere, and what would place all.

docs/how-to/operate/gangs.md describes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dra_agent.api_object import Object
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError
from dra_agent.explain.gates import derived_attributes, gates_in_use, notes_of
from dra_cluster.explain.counts import has
from dra_cluster.explain.gang_evaluation import MIN_FAILURE_S, NO_REASON_IN_TIME, Evaluation, evaluate, failure_of
from dra_cluster.explain.gang_limits import impossible
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_placement import Outcome, Placer
from dra_cluster.explain.gang_plugins import GangPlugins
from dra_cluster.explain.gang_remedy import remedy
from dra_cluster.explain.gang_report import evaluated_placements, summary
from dra_cluster.explain.gang_search import is_enough
from dra_cluster.explain.gang_topology import Topology, topologies
from dra_cluster.explain.group_explanation import explained_tree, rows_of
from dra_cluster.explain.kueue_admission import WAITS_FOR_QUOTA
from dra_cluster.explain.pending import missing_basis, nodes_of
from dra_cluster.explain.snapshot import Snapshot

ASSUMED = (
    "assumed: of several nodes, a pod gets the one with its best alternative, then with the fewest of these pods, then "
    "the first by name; kube-scheduler also considers CPU, memory, images, spread and pod affinity"
)


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
        "groups": [] if gang.tree is None else rows_of(gang.tree),
        "notes": [*snapshot.notes, *gang.notes, ASSUMED],
        "events": snapshot.events,
    }
    problems = [*gang.problems, *(f"pod {kind.members[0].name}: {one}" for kind in gang.kinds for one in kind.problems)]
    (problems if gang.needed == gang.total else result["notes"]).extend(gang.lacks_quota)
    if problems:
        return {**result, "summary": problems[0]}
    if not gang.order:
        fits = gang.running >= gang.needed if gang.tree is None else gang.tree.root.is_started
        parts = [gang.end] if gang.end else []
        parts += ["no pod waits for a node", f"{gang.running} {has(gang.running)} one"]
        return {**result, "fits": fits, "summary": "; ".join(parts)}
    plugins = GangPlugins(snapshot, gang, nodes_of(snapshot))
    if plugins.others:
        result["notes"].append(f"not considered: {', '.join(plugins.others)}, which no DeviceClass provides")
    waiting = [claim for kind in gang.kinds for member in kind.members for claim in member.claims]
    if not waiting:
        return {**result, "fits": True, "summary": "uses no claim, so devices are not the reason why it does not run"}
    # A device plugin needs no ResourceSlices.
    if (reason := missing_basis(snapshot, waiting)) and (snapshot.slices is None or snapshot.slices or not plugins):
        return {**result, "summary": reason}
    if reason := derived_attributes(waiting):
        return {**result, "summary": f"is not evaluated: {reason}"}
    if snapshot.nodes is None:
        result["notes"].insert(0, "cordons, taints and labels of nodes are not known")
    gates = gates_in_use(snapshot.slices or ())
    result["notes"] += notes_of(gates)
    evaluation = evaluate(snapshot, gang, gates, plugins, Deadline.of(deadline))
    if node is not None and node not in evaluation.known:
        raise PermanentError(f"there is no node {node}", hint="see the names with `kubectl get nodes`")
    explained = _explained if gang.tree is None else explained_tree
    return explained(result, evaluation, snapshot, node)


@dataclass
class _Attempt:
    """The order of kube-scheduler on the nodes of one topology."""

    topology: Topology
    placer: Placer
    outcome: Outcome = field(default_factory=lambda: Outcome([], [], is_late=False))
    failure: Object = field(default_factory=dict)
    """Why the first member that fits nowhere does not fit; empty if that is not evaluated."""


def _explained(result: Object, evaluation: Evaluation, snapshot: Snapshot, node: str | None) -> Object:
    gang = evaluation.gang
    choices = topologies(gang, evaluation.known, evaluation.fitting)
    if not choices:
        return {**result, "summary": f"the nodes have no value of label {gang.topology} that permits all pods"}
    attempts = _attempts(evaluation, choices, node)
    result["fits"] = is_enough(gang, attempts[-1].outcome)
    # As kube-scheduler does: of several values of the label, the one with the most pods.
    best = max(attempts, key=lambda attempt: len(attempt.outcome.placed))
    late = None if result["fits"] and gang.topology else _late(choices, attempts)
    result.update(evaluated_placements(evaluation, best.outcome.placed))
    usable = 0
    if best.outcome.failed and (late is None or gang.topology is None):
        result["failure"] = _failed_member(evaluation, best, node)
        usable = len(best.topology.nodes.intersection(evaluation.usable[best.outcome.failed[0][0]]))
    result["summary"] = summary(gang, best.outcome, result["failure"], usable, topology=best.topology.suffix, late=late)
    if len(attempts) > 1 and not result["fits"]:
        where = f"{len(attempts)} values of label {gang.topology}"
        result["notes"].append(f"of {where}, this is the one with the most pods: {best.topology.value}")
    if evaluation.unknown:
        result["notes"].append(evaluation.unknown_note)
    elif not result["fits"] and late is None:
        proof = impossible(evaluation, snapshot)
        result["search"] = remedy(gang, snapshot, [one.placer for one in attempts], best.outcome, proof)
    return result


def _attempts(evaluation: Evaluation, choices: Sequence[Topology], node: str | None) -> list[_Attempt]:
    """Place the members in each topology until one has enough of them, or the deadline; the last one may be late."""
    attempts = []
    for topology in choices:
        nodes = [[name for name in names if name in topology.nodes] for names in evaluation.fitting]
        placer = Placer(evaluation.cluster, evaluation.gang, nodes, evaluation.deadline, evaluation.plugins)
        attempt = _Attempt(topology, placer)
        # Of several topologies only the best one is explained, because that may take longer than to place the members.
        on_failure = _explainer(evaluation, attempt, node, evaluation.deadline) if len(choices) == 1 else None
        attempt.outcome = placer.run(evaluation.gang.order, on_failure=on_failure)
        attempts.append(attempt)
        if is_enough(evaluation.gang, attempt.outcome) or not evaluation.deadline.remaining():
            break
    return attempts


def _late(choices: Sequence[Topology], attempts: Sequence[_Attempt]) -> str | None:
    """Return what has no result at the deadline, as the begin of a sentence; None if everything has one."""
    number = len(choices) - len(attempts) + sum(attempt.outcome.is_late for attempt in attempts)
    if not number:
        return None
    if choices[0].label is None:
        return "the others have"
    have = "has" if number == 1 else "have"
    return f"{number} of {len(choices)} values of label {choices[0].label} {have}"


def _explainer(
    evaluation: Evaluation, attempt: _Attempt, node: str | None, deadline: Deadline
) -> Callable[[int, list[Object]], None]:
    """Return what explains the first member that fits nowhere, while the earlier ones have their devices."""

    def explain(kind: int, claims: list[Object]) -> None:
        attempt.failure = failure_of(evaluation, kind, claims, attempt.topology, node, deadline)

    return explain


def _failed_member(evaluation: Evaluation, attempt: _Attempt, node: str | None) -> Object:
    kind, member = attempt.outcome.failed[0]
    if not attempt.failure:
        deadline = evaluation.deadline.at_least(MIN_FAILURE_S)
        placer = Placer(evaluation.cluster, evaluation.gang, attempt.placer.nodes, deadline, evaluation.plugins)
        placer.run(evaluation.gang.order, on_failure=_explainer(evaluation, attempt, node, deadline))
    name, number = evaluation.gang.kinds[kind].name, len(attempt.outcome.failed)
    return {"member": member.name, "kind": name, "failed": number, **(attempt.failure or NO_REASON_IN_TIME)}

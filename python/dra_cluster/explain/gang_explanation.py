"""Explains a gang: where members are placed, which one is the first that fits nowhere, and what would place all.

docs/how-to/operate/gangs.md describes the result.
"""

from __future__ import annotations

from dra_agent.api_object import Object
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError
from dra_agent.explain.gates import derived_attributes, gates_in_use, notes_of
from dra_cluster.explain.counts import has
from dra_cluster.explain.fatal_error import NOTE
from dra_cluster.explain.gang_evaluation import Evaluation, evaluate, failure_of, last_fails
from dra_cluster.explain.gang_limits import impossible
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_placement import Placer
from dra_cluster.explain.gang_plugins import GangPlugins
from dra_cluster.explain.gang_remedy import remedy
from dra_cluster.explain.gang_report import evaluated_placements, summary
from dra_cluster.explain.gang_search import is_enough
from dra_cluster.explain.kueue import waits
from dra_cluster.explain.pending import missing_basis, nodes_of
from dra_cluster.explain.snapshot import Snapshot

ASSUMED = (
    "assumed: of several nodes, a pod gets the one with its best alternative, then with the fewest of these pods, then "
    "the first by name; kube-scheduler also considers CPU, memory, images, spread and pod affinity"
)


def explain_gang(snapshot: Snapshot, gang: Gang, *, node: str | None = None, deadline: float = 10.0) -> Object:
    """Explain a gang: its devices, with the quotes of what others decide. It does not fit while Kueue holds it back.

    Arguments:
        snapshot: The cluster.
        gang: The members.
        node: The node whose devices are explained, if a member does not fit.
        deadline: Seconds for everything together.

    Raises:
        PermanentError: An object cannot be read, or the node is unknown.
    """
    result = _explained_devices(snapshot, gang, node, deadline)
    if (reason := waits(gang.quotes)) is None:
        return result
    return {**result, "fits": False, "summary": f"{reason}; devices: {result['summary']}"}


def _explained_devices(snapshot: Snapshot, gang: Gang, node: str | None, deadline: float) -> Object:
    result: Object = {
        "subject": gang.subject,
        "fits": False,
        "summary": "",
        "scheduler_version": str(snapshot.scheduler),
        "fatal": None,
        "members": gang.total,
        "needed": gang.needed,
        "running": gang.running,
        "placed": 0,
        "kinds": [],
        "placements": [],
        "failure": None,
        "search": None,
        "quotes": gang.quotes,
        "notes": [*snapshot.notes, *gang.notes, ASSUMED],
        "events": snapshot.events,
    }
    problems = [*gang.problems, *(f"pod {kind.members[0].name}: {one}" for kind in gang.kinds for one in kind.problems)]
    (problems if gang.needed == gang.total else result["notes"]).extend(gang.lacks_quota)
    if problems:
        return {**result, "summary": problems[0]}
    if not gang.order:
        parts = [gang.end] if gang.end else []
        parts += ["no pod waits for a node", f"{gang.running} {has(gang.running)} one"]
        return {**result, "fits": gang.running >= gang.needed, "summary": "; ".join(parts)}
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
    return _explained(result, evaluation, snapshot, node)


def _explained(result: Object, evaluation: Evaluation, snapshot: Snapshot, node: str | None) -> Object:
    gang = evaluation.gang
    failures: list[Object] = []

    def explain(kind: int, claims: list[Object]) -> None:
        failures.append(failure_of(evaluation, kind, claims, node))

    placer = Placer(evaluation.cluster, gang, evaluation.fitting, evaluation.deadline, evaluation.plugins)
    outcome = placer.run(gang.order, on_failure=explain)
    if outcome.placed and not outcome.failed and (failure := last_fails(evaluation, outcome.placed)):
        *before, last = outcome.placed
        outcome = outcome._replace(placed=before, failed=[(last.kind, last.member)])
        failures.append(failure)
    result["fits"] = is_enough(gang, outcome)
    result.update(evaluated_placements(evaluation, outcome.placed))
    usable = 0
    if outcome.failed:
        kind, member = outcome.failed[0]
        usable = len(evaluation.usable[kind])
        about = {"member": member.name, "kind": gang.kinds[kind].name, "failed": len(outcome.failed)}
        result["failure"] = {**about, **failures[0]}
    result["summary"] = summary(gang, outcome, result["failure"], usable)
    result["notes"] += evaluation.notes
    if evaluation.fatal:
        result["fatal"] = next(iter(evaluation.fatal.values())).as_object()
        result["notes"].append(NOTE)
    elif evaluation.unknown:
        result["notes"].append(evaluation.unknown_note)
    elif not result["fits"] and not outcome.is_late:
        proof = impossible(evaluation, snapshot)
        result["search"] = remedy(gang, snapshot, placer, outcome, proof)
    return result

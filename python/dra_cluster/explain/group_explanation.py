"""Explains a composite pod group: which of its groups fit together, and which member of which group does not."""

from __future__ import annotations

from collections.abc import Mapping

from dra_agent.api_object import Object
from dra_cluster.explain.counts import counted, has, share_of
from dra_cluster.explain.gang_evaluation import MIN_FAILURE_S, NO_REASON_IN_TIME, Evaluation, failure_of
from dra_cluster.explain.gang_limits import impossible
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_remedy import described
from dra_cluster.explain.gang_report import evaluated_placements
from dra_cluster.explain.gang_search import Found
from dra_cluster.explain.gang_topology import Topology
from dra_cluster.explain.group_placement import GroupPlacer, GroupResult
from dra_cluster.explain.group_search import search
from dra_cluster.explain.group_tree import Group, GroupTree
from dra_cluster.explain.snapshot import Snapshot


def rows_of(tree: GroupTree, result: GroupResult | None = None) -> list[Object]:
    """Return each group of the tree as JSON; without a result, what it has and what it waits for."""
    found = {} if result is None else {one.group.key: one for one in result.walk()}
    return [_row(group, found.get(group.key), is_placed=result is not None) for group in tree.root.walk()]


def explained_tree(result: Object, evaluation: Evaluation, snapshot: Snapshot, node: str | None) -> Object:
    """Add the placement of the groups to a result."""
    gang = evaluation.gang
    tree = gang.tree
    if tree is None:
        raise ValueError("the gang has no groups")
    found = GroupPlacer(evaluation).run(tree.root)
    asked = next((one for one in found.walk() if one.group is tree.asked), GroupResult(tree.asked))
    result["fits"] = found.fits and asked.fits
    result.update(evaluated_placements(evaluation, found.placed))
    result["groups"] = rows_of(tree, found)
    late = any(one.is_late for one in found.walk())
    path = _failing(asked if found.fits and not asked.fits else found)
    if path and path[-1].failed and not late:
        result["failure"] = _failed_member(evaluation, found, path[-1], node)
    text = _summary(gang, found, path, result["failure"], evaluation, late=late)
    result["summary"] = _about(tree, found, asked, text)
    result["notes"] += _notes(found)
    if evaluation.unknown:
        result["notes"].append(evaluation.unknown_note)
    elif not found.fits and not late:
        proof = impossible(evaluation, snapshot)
        other = Found() if proof else search(evaluation, tree.root)
        result["search"] = described(gang, snapshot, other, found.placed, proof)
    return result


def _row(group: Group, result: GroupResult | None, *, is_placed: bool) -> Object:
    topology = result.topology if result is not None else None
    reason = group.waits_for() if result is None else result.reason
    if result is None and is_placed and not reason:
        reason = "not evaluated: the groups before it decide that the group above it does not fit"
    return {
        "name": group.name,
        "kind": group.kind,
        "parent": group.parent,
        "level": group.level,
        "minimum": group.minimum,
        "size": group.size,
        "reached": None if result is None else result.reached,
        "fits": None if result is None or result.is_late else result.fits,
        "topology": group.topology,
        "value": topology.value if topology is not None and topology.label is not None else None,
        "reason": reason or None,
    }


def _failing(result: GroupResult) -> list[GroupResult]:
    """Return the path to the first group that does not fit, or of which not all pods do; empty if all fit."""
    if not result.children:
        return [result] if not result.fits or result.failed else []
    below = [path for child in result.children if (path := _failing(child))]
    # If it has enough groups, what keeps another one from starting matters less than what keeps it from starting.
    chosen = next((path for path in below if not path[0].fits), below[0] if below else None)
    if chosen is None:
        return [] if result.fits else [result]
    return [result, *chosen]


def _failed_member(evaluation: Evaluation, root: GroupResult, failing: GroupResult, node: str | None) -> Object:
    """Place everything again, as before, to explain the first member that fits nowhere."""
    explained: list[Object] = []
    deadline = evaluation.deadline.at_least(MIN_FAILURE_S)

    def explain(group: Group, nodes: Mapping[str, Object], kind: int, claims: list[Object]) -> None:
        if group is not failing.group or explained:
            return
        allowed = failing.topology or Topology(frozenset(nodes))
        explained.append(failure_of(evaluation, kind, claims, allowed, node, deadline))

    values = {one.group.key: one.topology.value for one in root.walk() if one.topology is not None}
    GroupPlacer(evaluation, deadline=deadline, values=values, on_failure=explain).run(root.group)
    kind, member = failing.failed[0]
    found = explained[0] if explained else NO_REASON_IN_TIME
    name = evaluation.gang.kinds[kind].name
    return {"member": member.name, "kind": name, "group": failing.group.name, "failed": len(failing.failed), **found}


def _summary(
    gang: Gang,
    found: GroupResult,
    path: list[GroupResult],
    failure: Object | None,
    evaluation: Evaluation,
    *,
    late: bool,
) -> str:
    placed, waiting = len(found.placed), len(gang.order)
    nodes = len({one.node for one in found.placed})
    parts = [
        f"{share_of(placed, waiting, 'waiting pod' if gang.running else 'pod')} can be placed"
        + (f" on {counted(nodes, 'node')}" if placed else "")
    ]
    if gang.running:
        parts.append(f"{gang.running} {has(gang.running)} a node already")
    if late:
        return "; ".join([*parts, "the other groups have no result in time"])
    parts += [_part(one) for one in path]
    if failure is not None:
        kind = path[-1].failed[0][0]
        allowed = path[-1].topology
        usable = sum(allowed is None or name in allowed.nodes for name in evaluation.usable[kind])
        nowhere = f"fits on none of {usable} nodes" if usable > 1 else "does not fit"
        at = f"{failure['node']}: " if failure["node"] else ""
        parts += [f"{failure['member']} {nowhere}{_where(path[-1])}", f"{at}{failure['reason']}"]
    return "; ".join(parts)


def _part(result: GroupResult) -> str:
    """Return what a group needs and gets, or why it was not tried."""
    group = result.group
    if result.reason:
        return result.reason
    what = "group" if group.is_composite else "pod"
    needs = f"{group.label} needs {group.minimum} {what}{'' if group.minimum == 1 else 's'}{_where(result)}"
    return f"{needs}, and {result.reached} of {group.size} fit{'s' if result.reached == 1 else ''}"


def _where(result: GroupResult) -> str:
    """Return the end of a phrase about the nodes of a group."""
    suffix = "" if result.topology is None else result.topology.suffix
    return f" on nodes{suffix}" if suffix else ""


def _about(tree: GroupTree, root: GroupResult, asked: GroupResult, text: str) -> str:
    """Return the summary for the group that is asked about."""
    if tree.asked is tree.root:
        return text
    if not root.fits:
        return f"waits for {tree.root.label}: {text}"
    if not asked.fits:
        return f"{tree.root.label} starts without it: {text}"
    return f"starts with {tree.root.label}: {text}"


def _notes(found: GroupResult) -> list[str]:
    notes = []
    for one in found.walk():
        topology = one.topology
        if topology is None or topology.label is None or one.values < 2:
            continue
        where = f"of {one.values} values of label {topology.label}"
        if not one.fits:
            notes.append(f"{where}, this is the one with the most of {one.group.label}: {topology.value}")
        elif one.has_equals:
            notes.append(
                f"assumed: {where}, {one.group.label} gets {topology.value}; others have as many pods, and "
                "kube-scheduler takes any of these"
            )
    return notes

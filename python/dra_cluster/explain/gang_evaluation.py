"""The devices and nodes of a cluster for the members of a gang, before one is placed, and why a member fits nowhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_agent.api_object import Object, allocation_of, identity_of
from dra_agent.cluster import Cluster
from dra_agent.deadline import Deadline
from dra_agent.explain.gates import is_unevaluated
from dra_cluster.explain.fatal_error import FatalError, examines_all, find_fatal
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_nodes import NodeComparison
from dra_cluster.explain.gang_placement import Placed
from dra_cluster.explain.gang_plugins import GangPlugins
from dra_cluster.explain.pending import NOT_EVALUATED, best_candidate, nodes_of, why
from dra_cluster.explain.scheduler_version import ASSUMED, SchedulerVersion
from dra_cluster.explain.snapshot import Snapshot

MAX_EXPLAINED_NODES = 8
"""Nodes with different reasons of which the best one is explained."""
SWEEPS_SHARE = 0.3
"""The part of the time in which the nodes of each kind are examined before members are placed."""


@dataclass
class Evaluation:
    """The gang in the cluster, before a member is placed."""

    gang: Gang
    cluster: Cluster
    known: Mapping[str, Object]
    usable: list[list[str]]
    """For each kind, the nodes that its pod permits."""
    fitting: list[list[str]]
    """For each kind, those of them on which one member fits alone."""
    deadline: Deadline
    plugins: GangPlugins
    blocked: list[Counter[str]] = field(default_factory=list)
    """For each kind, why other nodes are not usable."""
    scheduler: SchedulerVersion = ASSUMED
    fatal: dict[int, FatalError] = field(default_factory=dict)
    """By kind, the error at which a member fits nowhere."""
    notes: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    """Nodes of which it is not known if a kind can use them, with the reason. With one, neither a search nor a proof is
    possible: a pod may be permitted on it."""

    @property
    def unknown_note(self) -> str:
        """The first of the nodes that are not known, with its reason, and the number of the others."""
        (name, reason), *others = self.unknown.items()
        more = f" and {len(others)} more" if others else ""
        return f"node {name}{more}: {reason}"


def evaluate(
    snapshot: Snapshot, gang: Gang, gates: Iterable[str], plugins: GangPlugins, deadline: Deadline
) -> Evaluation:
    """Find the nodes of each kind of member, until a part of the time is over."""
    known = nodes_of(snapshot)
    held = [claim for claim in snapshot.claims if allocation_of(claim)]
    slices = snapshot.slices or []
    cluster = Cluster(
        slices,
        snapshot.classes or (),
        nodes=known.values(),
        claims=held,
        gates=gates,
        scheduler_minor=snapshot.scheduler.minor,
    )
    found = Evaluation(gang, cluster, known, [], [], deadline, plugins, scheduler=snapshot.scheduler)
    sweeps_deadline = Deadline.of(deadline.remaining() * SWEEPS_SHARE)
    comparison = NodeComparison(known, deadline, has_fields=snapshot.nodes is not None)
    for number, kind in enumerate(gang.kinds):
        permitted = comparison.permitted(kind, plugins.of_kind(number))
        usable = permitted.usable
        found.usable.append(usable)
        found.blocked.append(permitted.blocked)
        found.unknown |= permitted.unknown
        seconds = sweeps_deadline.remaining()
        if not kind.members or not seconds:
            found.fitting.append(usable)  # Nodes on which it does not fit are found when its members are placed.
            continue
        fitting: list[str] = []
        errors: dict[str, str] = {}
        fatal: dict[str, str] = {}
        for claims, names in plugins.by_claims(number, usable, kind.members[0].claims):
            if not claims:
                fitting += names
                continue
            sweep = cluster.fits(claims, nodes=names, deadline=sweeps_deadline.remaining())
            fitting += [*sweep.fits, *sweep.unexamined]
            errors |= sweep.errors
            fatal |= {name: sweep.errors[name] for name in sweep.fatal}
        found.unknown |= {one: f"{NOT_EVALUATED}: {text}" for one, text in errors.items() if is_unevaluated(text)}
        error = find_fatal(fatal, (), snapshot.scheduler)
        if error is not None and examines_all(len(known), len(fitting)):
            found.fatal[number] = error
            fitting.clear()
        elif error is not None:
            found.notes.append(error.caution)
        found.fitting.append(sorted(fitting))
    return found


def failure_of(evaluation: Evaluation, kind: int, claims: list[Object], node: str | None) -> Object:
    """Explain why a member fits on no node, or not on this one, while the earlier ones have devices."""
    names = evaluation.usable[kind] if node is None else [node]
    cluster = evaluation.cluster
    if not names:
        blocked = evaluation.blocked[kind].most_common(1)
        return {"node": None, "reason": blocked[0][0] if blocked else "there is no node", "explanation": None}
    plugins = evaluation.plugins
    reasons = {name: lacking for name in names if (lacking := plugins.lacks(kind, name))}
    needed: dict[str, list[Object]] = {}
    fatal: dict[str, str] = {}
    for claims_there, alike in plugins.by_claims(kind, [name for name in names if name not in reasons], claims):
        if not claims_there:
            reasons |= dict.fromkeys(alike, "fits")
            continue
        needed |= dict.fromkeys(alike, claims_there)
        sweep = cluster.fits(claims_there, nodes=alike, deadline=evaluation.deadline.remaining())
        reasons |= {**sweep.reasons, **sweep.errors, **dict.fromkeys(sweep.fits, "fits")}
        fatal |= {name: sweep.errors[name] for name in sweep.fatal}
    error = evaluation.fatal.get(kind) or find_fatal(fatal, (), evaluation.scheduler)
    if error is not None:
        evaluation.fatal[kind] = error
        seconds = evaluation.deadline.remaining()
        claims_there = evaluation.plugins.claims(kind, error.nodes[0], claims)
        explanation = cluster.explain(error.nodes[0], claims_there, deadline=seconds)
        return {"node": error.nodes[0], "reason": error.reason, "explanation": explanation}
    return _most_free(evaluation, reasons, needed, names)


def last_fails(evaluation: Evaluation, placed: Sequence[Placed]) -> Object | None:
    """Return why the last member is placed nowhere, if the earlier ones cause an error on a node that it does not use.

    The placement of a member tries one node after another, and kube-scheduler examines all.
    """
    *before, last = placed
    if not before or not examines_all(len(evaluation.known), len(evaluation.fitting[last.kind])):
        return None
    new = {
        identity_of(after): after
        for one in before
        for claim, after in zip(one.member.claims, one.claims, strict=True)
        if not allocation_of(claim)
    }
    claims = [new.get(identity_of(claim), claim) for claim in last.member.claims]
    cluster = evaluation.cluster
    cluster.hold(new.values())
    try:
        for needed, names in evaluation.plugins.by_claims(last.kind, evaluation.usable[last.kind], claims):
            remaining = evaluation.deadline.remaining()
            if needed and remaining and cluster.fits(needed, nodes=names, deadline=remaining).fatal:
                return failure_of(evaluation, last.kind, claims, None)
    finally:
        cluster.release(new.values())
    return None


def _most_free(
    evaluation: Evaluation, reasons: Mapping[str, str], needed: Mapping[str, list[Object]], names: Sequence[str]
) -> Object:
    """Explain the node with the most free devices, of some with different reasons."""
    cluster = evaluation.cluster
    by_reason = {reason: name for name, reason in sorted(reasons.items(), reverse=True)}
    chosen = sorted(by_reason.values())[:MAX_EXPLAINED_NODES] or names[:1]
    seconds = evaluation.deadline.remaining() / len(chosen)
    entries: list[Object] = [
        {"node": name, "obstacles": [], "explanation": cluster.explain(name, needed[name], deadline=seconds)}
        for name in chosen
        if name in needed
    ]
    best = best_candidate(entries)
    if best is None:
        return {"node": chosen[0], "reason": reasons[chosen[0]], "explanation": None}
    return {"node": best["node"], "reason": why(best["explanation"]), "explanation": best["explanation"]}

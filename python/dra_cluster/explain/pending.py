"""On which nodes of a cluster pending claims fit, and why not on others, with causes other than devices separately.

Everything is evaluated from one snapshot and within one deadline. The allocator determines whether devices fit:
`Cluster.fits` on all nodes, and `Cluster.explain` device by device on as many nodes as a user can read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dra_agent.api_object import Object, allocation_of, full_name
from dra_agent.cluster import Cluster, Sweep
from dra_agent.deadline import Deadline
from dra_agent.explain.gates import (
    OVERHEAD_NOTE,
    derived_attributes,
    gates_in_use,
    have_overhead,
    is_unevaluated,
    notes_of,
)
from dra_agent.explain.object_state import allocated_node_selector, claim_state
from dra_agent.explain.search_time import attempts_s
from dra_cluster.explain.device_plugins import DevicePlugins, named
from dra_cluster.explain.fatal_error import NOTE, examines_all, find_fatal, note_of_one_node
from dra_cluster.explain.placement import matches, scheduling_blockers
from dra_cluster.explain.pod_claims import classes_of
from dra_cluster.explain.snapshot import Snapshot

DEADLINE_S = 10.0
MAX_EXPLAINED_NODES = 64
"""Nodes whose devices are explained; a node can have hundreds of devices, and a cluster thousands of nodes."""
MAX_CONCURRENCY = 8
"""Nodes that are explained concurrently."""
SWEEP_SHARE = 0.4
"""The part of the time in which all nodes are examined, before the devices of some are explained."""
FILTER_TIMEOUT_S = 10
"""The default of kube-scheduler (DynamicResourcesFilterTimeoutDefault)."""
MIN_MINOR_OF_FATAL_TIMEOUT = 36
"""The first version in which a search that takes longer ends the attempt for all nodes."""
TIMEOUT = "no result within"
"""The begin of the error of a search that reached its deadline (rust/engine/allocator/src/error.rs)."""
FITS = "fits"
_USABLE = (FITS, "is already allocated")
"""The summaries of claims that do not keep others from a node (rust/engine/allocator/src/explain/summary.rs)."""
NOT_EVALUATED = "not evaluated"
LATE = f"{NOT_EVALUATED}: no result in time"


class SnapshotCluster:
    """The nodes of a snapshot and their devices, which the allocator reads once for any number of claims."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.nodes = nodes_of(snapshot)
        self._held = [claim for claim in snapshot.claims if allocation_of(claim)]
        self._allocator: Cluster | None = None

    @cached_property
    def gates(self) -> tuple[str, ...]:
        """The feature gates that the slices use."""
        return gates_in_use(self._snapshot.slices or ())

    @cached_property
    def notes(self) -> list[str]:
        """What is assumed about the fields of the slices."""
        ignored = [OVERHEAD_NOTE] if have_overhead(self._snapshot.slices or ()) else []
        return [*notes_of(self.gates), *ignored]

    def read(self) -> Cluster:
        """Return the allocator with all objects; raises PermanentError if one cannot be read."""
        if self._allocator is None:
            self._allocator = self._with_held(self._held)
        return self._allocator

    def read_for(self, waiting: Iterable[Object]) -> Cluster:
        """Return the allocator for claims that have no devices; raises PermanentError if an object cannot be read."""
        own = {full_name(claim) for claim in waiting}
        others = [claim for claim in self._held if full_name(claim) not in own]
        # A claim that is still to be made may get the name of one that exists.
        return self.read() if len(others) == len(self._held) else self._with_held(others)

    def _with_held(self, held: Iterable[Object]) -> Cluster:
        snapshot = self._snapshot
        return Cluster(
            snapshot.slices or (),
            snapshot.classes or (),
            nodes=self.nodes.values(),
            claims=held,
            gates=self.gates,
            scheduler_minor=snapshot.scheduler.minor,
        )


@dataclass(frozen=True)
class NodeQuery:
    """The nodes on which claims are evaluated, and until when."""

    cluster: SnapshotCluster
    deadline: Deadline
    node: str | None = None
    """Only this node."""


@dataclass(frozen=True)
class PendingClaims:
    """The claims that are evaluated, and the pod that waits for them."""

    waiting: Sequence[Object]
    """The claims without an allocation."""
    allocated: Sequence[Object]
    """The other claims of the pod: it can only be on their nodes."""
    pod: Object | None
    plugins: DevicePlugins
    """Where the pod needs no claim for its extended resources."""


def evaluate_nodes(
    result: dict[str, Any], snapshot: Snapshot, query: NodeQuery, pending: PendingClaims
) -> dict[str, Any]:
    """Add nodes, holders, notes and summary to the result of pending claims.

    Arguments:
        result: The result so far.
        snapshot: The cluster.
        query: The nodes and the deadline.
        pending: The claims.

    Raises:
        PermanentError: An object cannot be read.
    """
    plugins = pending.plugins
    names = query.cluster.nodes
    serves = {name: served for name, node in names.items() if (served := plugins.serves(node))}
    # A device plugin needs no ResourceSlices.
    reason = missing_basis(snapshot, pending.waiting) if pending.waiting else None
    if reason and (snapshot.slices or not serves):
        return with_summary(result, False, reason)
    allocator = query.cluster.read_for(pending.waiting)
    if query.node is not None and query.node not in names:
        names = {**names, query.node: {"metadata": {"name": query.node}}}
        allocator.update_node(names[query.node])
    # The node of the query first: of the others, only errors that concern all nodes are of interest.
    entries = [_entry(name) for name in sorted(names, key=lambda name: (name != query.node, name))]
    unexamined = {entry["node"] for entry in entries}
    compared, excluded = _compare(entries, snapshot, query, pending, names)
    # The claims of the pod, by the resources that the device plugin of a node serves.
    claims = {served: plugins.claims(pending.waiting, served) for served in {(), *serves.values()}}
    claims_of = {name: claims[serves.get(name, ())] for name in names}
    derived = {served: derived_attributes(needed) for served, needed in claims.items()}
    open_entries = []
    for entry in compared:
        node = names[entry["node"]]
        if not _add_plugin_verdict(entry, plugins, node, claims_of[entry["node"]], unexamined):
            if snapshot.slices is None:
                entry["devices"] = f"{NOT_EVALUATED}: ResourceSlices are not known"
            elif reason := derived[serves.get(entry["node"], ())]:
                entry["devices"] = f"{NOT_EVALUATED}: {reason}"
            else:
                open_entries.append(entry)
    sweeps = Deadline.of(query.deadline.remaining() * SWEEP_SHARE)
    errors: dict[str, str] = {}
    for served, needed in claims.items():
        same = [entry for entry in open_entries if serves.get(entry["node"], ()) == served]
        for is_of_query in (True, False):
            group = [entry for entry in same if (entry["node"] == query.node) is is_of_query]
            errors |= _sweep(group, allocator, needed, sweeps, unexamined) if group else {}
    number = len(entries)
    if query.node is not None:
        entries, open_entries = (
            [one for one in found if one["node"] == query.node] for found in (entries, open_entries)
        )
        unexamined &= {query.node}
    explained = _most_different(open_entries, unexamined)
    without_list = _add_explanations(explained, allocator, claims_of, query.deadline, unexamined)
    # Of nodes that the sweep did not reach in time; a search that did not end in time here may end there.
    errors |= {
        entry["node"]: found["error"]
        for entry in entries
        if (found := entry["explanation"]) and found["fatal"] and entry["node"] not in unexamined
    }
    error = find_fatal(errors, excluded, snapshot.scheduler)
    if len(entries) <= MAX_EXPLAINED_NODES:
        for entry in entries:
            if entry["explanation"] is not None and entry["node"] not in unexamined:
                entry["devices"] = why(entry["explanation"])
    result["notes"] = [
        *result["notes"],
        *query.cluster.notes,
        *_notes(entries, len(explained), without_list),
        *([NOTE] if error is not None else note_of_one_node(_own_errors(entries, unexamined), snapshot.scheduler)),
    ]
    result["nodes"] = entries
    result["unexamined"] = sorted(unexamined)
    result["holders"] = _holders(entries, snapshot)
    result["fatal"] = None if error is None else error.as_object()
    fits, text = _conclusion(entries, unexamined)
    if error is None:
        return with_summary(result, fits, text + (_if_in_time(snapshot, entries, excluded) if fits else ""))
    if examines_all(number, sum(entry["fits"] and not entry["obstacles"] for entry in compared)):
        return with_summary(result, False, f"{error.summary}{_otherwise(entries)}")
    return with_summary(result, fits, f"{text}; {error.caution}")


def _compare(
    entries: Sequence[dict[str, Any]],
    snapshot: Snapshot,
    query: NodeQuery,
    pending: PendingClaims,
    nodes: Mapping[str, Object],
) -> tuple[list[dict[str, Any]], set[str]]:
    """Add the obstacles until the deadline; return these entries, and the nodes that other filters exclude first."""
    compared: list[dict[str, Any]] = []
    excluded: set[str] = set()
    for entry in entries:
        if not query.deadline.remaining():
            break
        name = entry["node"]
        entry["obstacles"] = _blockers(snapshot, nodes[name], pending)
        if entry["obstacles"]:
            excluded.add(name)
        # Where a claim is allocated is compared by the same filter as devices, and does not keep it from an error.
        entry["obstacles"] += _allocated_elsewhere(name, nodes[name], pending)
        compared.append(entry)
    return compared, excluded


def _sweep(
    entries: Sequence[dict[str, Any]],
    allocator: Cluster,
    claims: Sequence[Object],
    deadline: Deadline,
    unexamined: set[str],
) -> dict[str, str]:
    """Add the verdicts of nodes; return the errors at which kube-scheduler places the pod on no node."""
    names = [entry["node"] for entry in entries]
    sweep = allocator.fits(claims, nodes=names, deadline=deadline.remaining())
    _add_verdicts(entries, sweep, unexamined)
    return {name: sweep.errors[name] for name in sweep.fatal}


def _own_errors(entries: Iterable[dict[str, Any]], unexamined: Collection[str]) -> list[str]:
    """Return the nodes with an error of the allocator that concerns no other node."""
    explained = (entry for entry in entries if entry["explanation"] is not None and entry["node"] not in unexamined)
    return [one["node"] for one in explained if one["explanation"]["error"] and not one["explanation"]["fatal"]]


def _otherwise(entries: Iterable[dict[str, Any]]) -> str:
    usable = [entry["node"] for entry in entries if entry["fits"] and not entry["obstacles"]]
    return f"; without the error its devices are free on {some_nodes(usable)}" if usable else ""


def _if_in_time(snapshot: Snapshot, entries: Iterable[dict[str, Any]], excluded: set[str]) -> str:
    """Return the condition of a verdict where nodes have no result: a search that takes too long is an error too."""
    late = (entry["node"] for entry in entries if entry["devices"].startswith(LATE))
    names = sorted(name for name in late if name not in excluded)
    if not names or snapshot.scheduler.minor < MIN_MINOR_OF_FATAL_TIMEOUT:
        return ""
    return (
        f"; {some_nodes(names)} {'is' if len(names) == 1 else 'are'} {NOT_EVALUATED} in time: if a search of "
        f"{snapshot.scheduler.scheduler} there takes more than {FILTER_TIMEOUT_S} s, it places the pod nowhere"
    )


def _entry(name: str) -> dict[str, Any]:
    return {"node": name, "fits": False, "devices": LATE, "obstacles": [], "explanation": None}


def _blockers(snapshot: Snapshot, node: Object, pending: PendingClaims) -> list[str]:
    """Return why other filters of kube-scheduler exclude the node, which come before that for devices."""
    if pending.pod is None or snapshot.nodes is None:
        return []
    return [*scheduling_blockers(pending.pod, node), *pending.plugins.lacks_others(node)]


def _allocated_elsewhere(name: str, node: Object, pending: PendingClaims) -> list[str]:
    labels = (node.get("metadata") or {}).get("labels") or {}
    return [
        f"claim {claim['metadata']['name']} is allocated elsewhere"
        for claim in pending.allocated
        if (selector := allocated_node_selector(claim)) and not matches(selector, name, labels)
    ]


def _add_plugin_verdict(
    entry: dict[str, Any], plugins: DevicePlugins, node: Object, claims: Sequence[Object], unexamined: set[str]
) -> bool:
    """Add what the device plugin of a node decides alone; return False if claims are still to be evaluated."""
    served = plugins.serves(node)
    if not served and claims:
        return False
    if not served:
        # Of a pod without claims, the resources that only device plugins serve are obstacles where they are known.
        if not plugins.is_known and not entry["obstacles"]:
            entry["devices"] = f"{NOT_EVALUATED}: {named(plugins.others)}, and the pods of the node are not known"
            return True
        entry |= {"fits": True, "devices": "no claim is needed"}
    elif plugins.more(node) is None:
        entry["devices"] = f"{NOT_EVALUATED}: {named(served)}, and the pods of the node are not known"
        return True
    elif reason := plugins.lacks(node):
        entry["devices"] = reason
    elif claims:
        return False
    else:
        entry |= {"fits": True, "devices": f"{FITS}: {named(served)}"}
    unexamined.discard(entry["node"])
    return True


def _add_verdicts(entries: Iterable[dict[str, Any]], sweep: Sweep, unexamined: set[str]) -> None:
    reasons = {**sweep.reasons, **sweep.errors, **dict.fromkeys(sweep.fits, FITS)}
    for entry in entries:
        reason = reasons.get(entry["node"])
        if is_unevaluated(reason):
            entry["devices"] = f"{NOT_EVALUATED}: {reason}"
        elif reason is not None:
            entry |= {"fits": reason == FITS, "devices": reason}
            unexamined.discard(entry["node"])


def _most_different(entries: Sequence[dict[str, Any]], unexamined: set[str]) -> list[dict[str, Any]]:
    """Return the nodes to explain: one of each reason, those on which the pod may be first, and then the others."""
    groups: dict[tuple[bool, bool, str], list[dict[str, Any]]] = {}
    for entry in entries:
        key = entry["node"] in unexamined, bool(entry["obstacles"]), entry["devices"]
        groups.setdefault(key, []).append(entry)
    # Of the reasons, the one of the most nodes is first. Nodes that were not evaluated in time can need long again.
    ordered = [group for _, group in sorted(groups.items(), key=lambda item: (*item[0][:2], -len(item[1])))]
    known = [group for group in ordered if group[0]["node"] not in unexamined]
    late = [entry for group in ordered if group[0]["node"] in unexamined for entry in group]
    firsts = [group[0] for group in known]
    return [*firsts, *(entry for group in known for entry in group[1:]), *late][:MAX_EXPLAINED_NODES]


def _add_explanations(
    entries: Sequence[dict[str, Any]],
    allocator: Cluster,
    claims_of: Mapping[str, Sequence[Object]],
    deadline: Deadline,
    unexamined: set[str],
) -> int:
    """Explain the devices of nodes until the deadline; return of how many there was no time for it."""
    remaining_s = deadline.remaining()
    reserved_s = max((attempts_s(remaining_s, claims_of[entry["node"]]) for entry in entries), default=0.0)

    def explain(entry: dict[str, Any]) -> dict[str, Any] | None:
        seconds = (deadline.remaining() - reserved_s) / 2
        claims = claims_of[entry["node"]]
        return allocator.explain(entry["node"], claims, deadline=seconds) if seconds > 0 else None

    late = 0
    # Nodes are independent, and the allocator releases the GIL.
    with ThreadPoolExecutor(min(MAX_CONCURRENCY, os.cpu_count() or 1), thread_name_prefix="nodes") as threads:
        for entry, explanation in zip(entries, threads.map(explain, entries), strict=True):
            is_known = entry["node"] not in unexamined
            is_timeout = explanation is not None and str(explanation["error"] or "").startswith(TIMEOUT)
            if explanation is None or (is_timeout and is_known):
                late += 1
            elif is_timeout:
                cause = explanation["error"].partition(": ")[2]
                entry |= {"devices": f"{LATE}: {cause}" if cause else LATE, "explanation": explanation}
            elif is_unevaluated(explanation["error"]):
                entry |= {"devices": f"{NOT_EVALUATED}: {explanation['error']}", "explanation": explanation}
            elif not explanation["pools"] and not explanation["error"]:
                entry |= {"fits": False, "devices": "no driver has published devices for it"}
                unexamined.discard(entry["node"])
            else:
                entry |= {"fits": explanation["fits"], "explanation": explanation}
                unexamined.discard(entry["node"])
    return late


def _notes(entries: Sequence[dict[str, Any]], explained: int, without_list: int) -> list[str]:
    notes = []
    if len(entries) > MAX_EXPLAINED_NODES:
        listed = f"{explained - without_list} of {len(entries)} nodes"
        notes.append(
            f"devices and their holders are listed for {listed}: one for each reason, then by name; --node NAME lists "
            "those of another one"
        )
    elif without_list:
        notes.append(f"devices and their holders are not listed for {number_of_nodes(without_list)}: there was no time")
    return notes


def missing_basis(snapshot: Snapshot, claims: Sequence[Object]) -> str | None:
    """Return why pending claims cannot be evaluated on any node; None if they can."""
    if snapshot.slices is None:
        return "is pending; no more is known without ResourceSlices"
    if not snapshot.slices:
        return "is pending: no ResourceSlices are published, by no driver on no node"
    known = {entry["metadata"]["name"] for entry in snapshot.classes or ()}
    if snapshot.classes is not None and (missing := sorted(classes_of(claims) - known)):
        return f"there is no DeviceClass {missing[0]}"
    return None


def best_candidate(nodes: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Choose the best candidate: a node on which the pod may run, with the most free devices."""
    evaluate_node = [entry for entry in nodes if entry["explanation"] is not None]
    return min(
        evaluate_node, key=lambda entry: (bool(entry["obstacles"]), -_available(entry["explanation"])), default=None
    )


def _available(explanation: dict[str, Any]) -> int:
    counts: list[int] = [
        min(request["available"], request["needed"] or request["available"])
        for claim in explanation["claims"]
        for request in claim["requests"]
    ]
    return sum(counts)


def shown_node(result: dict[str, Any]) -> dict[str, Any] | None:
    """Choose the node of a result whose devices are shown: the best candidate, of those with a result if possible."""
    unexamined = set(result.get("unexamined", ()))
    known = [entry for entry in result["nodes"] if entry["node"] not in unexamined]
    return best_candidate(known) or best_candidate(result["nodes"])


def _conclusion(nodes: Sequence[dict[str, Any]], unexamined: set[str]) -> tuple[bool, str]:
    if not nodes:
        return False, "there is no node"
    usable = [entry["node"] for entry in nodes if entry["fits"] and not entry["obstacles"]]
    if usable:
        return True, f"its devices are free on {some_nodes(usable)}; if it stays pending, that is not about devices"
    known = [entry for entry in nodes if entry["node"] not in unexamined]
    if not known:
        where = f"node {nodes[0]['node']}" if len(nodes) == 1 else f"any of {len(nodes)} nodes"
        return False, f"is not evaluated on {where}: {nodes[0]['devices'].removeprefix(NOT_EVALUATED + ': ')}"
    verb = "are" if len(unexamined) > 1 else "is"
    is_late = any(entry["node"] in unexamined and entry["devices"].startswith(LATE) for entry in nodes)
    in_time = " in time" if is_late else ""
    rest = f"; {number_of_nodes(len(unexamined))} {verb} {NOT_EVALUATED}{in_time}" if unexamined else ""
    blocked = [entry for entry in known if entry["fits"]]
    if blocked:
        first = blocked[0]
        reasons = "; ".join(first["obstacles"])
        return False, f"its devices are free only where the pod may not be: {first['node']}: {reasons}{rest}"
    best = best_candidate(known) or known[0]
    text = why(best["explanation"]) if best["explanation"] is not None else best["devices"]
    if len(nodes) == 1:
        return False, f"does not fit on node {best['node']}: {text}"
    return False, f"fits on none of {number_of_nodes(len(known))}; {best['node']}: {text}{rest}"


def why(explanation: dict[str, Any]) -> str:
    """Return why claims do not fit on a node, in one line."""
    if explanation["fits"]:
        return "fits"
    notes = [pool["problem"] for pool in explanation["pools"] if pool["problem"]]
    summaries = [_of_claim(claim) for claim in explanation["claims"] if claim["summary"] not in _USABLE]
    text = explanation["error"] or (summaries[0] if summaries else explanation["summary"])
    return f"{text}; {notes[0]}" if notes else str(text)


def _of_claim(claim: dict[str, Any]) -> str:
    # A claim with an allocation can be another one than that which is explained.
    return f"claim {claim['claim']} {claim['summary']}" if claim["already_allocated"] else str(claim["summary"])


def _holders(nodes: Sequence[dict[str, Any]], snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the claims that hold suitable devices, with their pods, which a user can delete."""
    by_holder: dict[str, set[str]] = {}
    for entry in nodes:
        for claim in (entry["explanation"] or {}).get("claims", ()):
            for request in claim["requests"]:
                for device in request["devices"]:
                    for holder in device["holders"] if device["matches"] else ():
                        by_holder.setdefault(holder["claim"], set()).add(f"{entry['node']}: {device['device']}")
    by_name = {full_name(claim): claim for claim in snapshot.claims}
    return [
        {
            "claim": name,
            "devices": sorted(devices),
            "reserved_for": claim_state(by_name[name])["reserved_for"] if name in by_name else [],
        }
        for name, devices in sorted(by_holder.items())
    ]


def nodes_of(snapshot: Snapshot) -> dict[str, Object]:
    """Return the Node objects by name; where they may not be read, those that slices name, without labels."""
    if snapshot.nodes is not None:
        return {node["metadata"]["name"]: node for node in snapshot.nodes}
    named = {name for entry in snapshot.slices or () if (name := (entry.get("spec") or {}).get("nodeName"))}
    return {name: {"metadata": {"name": name}} for name in named}


def some_nodes(names: Sequence[str]) -> str:
    """Name some of these nodes."""
    shown = ", ".join(names[:3])
    return f"node{'s' if len(names) > 1 else ''} {shown}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def number_of_nodes(number: int) -> str:
    """Return a number with its noun."""
    return f"{number} node{'' if number == 1 else 's'}"


def with_summary(result: dict[str, Any], fits: bool, summary: str) -> dict[str, Any]:
    """Return the result with its verdict."""
    return {**result, "fits": fits, "summary": summary}

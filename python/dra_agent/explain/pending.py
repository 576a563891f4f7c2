"""Why a claim or a pod of a cluster has no devices: by node, with causes other than devices listed separately.

Everything is evaluated from one snapshot; the allocator (`Cluster.explain`) determines whether devices fit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dra_agent.api_object import Object, allocation_of, full_name
from dra_agent.cluster import Cluster
from dra_agent.explain.gates import gates_in_use, notes_of
from dra_agent.explain.object_state import allocated_node_selector, binding_of, claim_state, pod_state
from dra_agent.explain.placement import matches, scheduling_blockers
from dra_agent.explain.pod_claims import PodClaim, classes_of, group_notes, pod_claims
from dra_agent.explain.snapshot import Snapshot

MAX_CONCURRENCY = 8
"""Nodes that are evaluated concurrently."""


def explain_pod(snapshot: Snapshot, pod: Object, *, node: str | None = None) -> dict[str, Any]:
    """Explain every claim of a pod: they are allocated together, on the node where the pod can be."""
    needs = pod_claims(snapshot, pod)
    claims = [_claim_entry(need) for need in needs]
    result: dict[str, Any] = {
        "pod": f"{snapshot.namespace}/{pod['metadata']['name']}",
        "summary": "",
        "pods": [pod_state(pod)],
        "claims": claims,
        "nodes": [],
        "notes": [*snapshot.notes, *group_notes(snapshot, pod)],
        "events": snapshot.events,
    }
    if not needs:
        return _with(result, True, "uses no claim, so devices are not the reason why it does not run")
    if problems := [f"claim {need.name}: {problem}" for need in needs for problem in need.problems]:
        return _with(result, False, problems[0])
    there = [need.claim for need in needs if need.claim is not None]
    waiting = [claim for claim in there if not allocation_of(claim)]
    if not waiting:
        on = (pod.get("spec") or {}).get("nodeName")
        return _with(result, True, _all_allocated(claims, on))
    return _on_nodes(result, snapshot, waiting, [claim for claim in there if allocation_of(claim)], pod, node)


def explain_claim(snapshot: Snapshot, claim: Object, *, node: str | None = None) -> dict[str, Any]:
    """Explain one claim, with the other claims of the pod that waits for it: they are allocated together."""
    name = claim["metadata"]["name"]
    users = [
        pod
        for pod in snapshot.pods or ()
        if (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
        and any(need.claim is claim for need in pod_claims(snapshot, pod))
    ]
    entry = _claim_entry(PodClaim(name, claim))
    result: dict[str, Any] = {
        "claim": f"{snapshot.namespace}/{name}",
        "summary": "",
        "pods": [pod_state(pod) for pod in users],
        "claims": [entry],
        "nodes": [],
        "notes": snapshot.notes,
        "events": snapshot.events,
    }
    if entry["state"] == "deleting":
        return _with(result, False, entry["summary"])
    if allocation_of(claim):
        return _with(result, True, entry["summary"])
    pending = [pod for pod in users if not (pod.get("spec") or {}).get("nodeName")]
    if users and not pending:
        on = f"pod {users[0]['metadata']['name']} is on node {users[0]['spec']['nodeName']} already"
        return _with(result, False, f"{on}, and the claim is not allocated: no scheduler chose its devices")
    pod = pending[0] if pending else None
    result["notes"] = [*snapshot.notes, *(group_notes(snapshot, pod) if pod else ())]
    others = [need.claim for need in pod_claims(snapshot, pod) if need.claim is not claim and need.claim] if pod else []
    waiting = [claim, *(other for other in others if not allocation_of(other))]
    allocated = [other for other in others if allocation_of(other)]
    result = _on_nodes(result, snapshot, waiting, allocated, pod, node)
    if pod is None and snapshot.pods is not None:
        # Claims are allocated when a pod that uses them is scheduled, and not before.
        unused = f"no pod of namespace {snapshot.namespace} uses it, so it is not allocated"
        return _with(result, False, f"{unused}; {result['summary']}")
    return result


def _on_nodes(
    result: dict[str, Any],
    snapshot: Snapshot,
    waiting: list[Object],
    allocated: list[Object],
    pod: Object | None,
    only: str | None,
) -> dict[str, Any]:
    if reason := missing_basis(snapshot, waiting):
        return _with(result, False, reason)
    names = nodes_of(snapshot)
    if only is not None:
        names = {only: names.get(only, {"metadata": {"name": only}})}
    own = {full_name(claim) for claim in waiting}
    gates = gates_in_use(snapshot.slices or ())
    result["notes"] = [*result["notes"], *notes_of(gates)]
    cluster = Cluster(
        snapshot.slices or (),
        snapshot.classes or (),
        nodes=names.values(),
        claims=[claim for claim in snapshot.claims if full_name(claim) not in own],
        gates=gates,
    )

    def evaluate_node(name: str) -> dict[str, Any]:
        node = names[name]
        reasons = scheduling_blockers(pod, node) if pod is not None and snapshot.nodes is not None else []
        reasons += [
            f"claim {claim['metadata']['name']} is allocated elsewhere"
            for claim in allocated
            if (selector := allocated_node_selector(claim)) and not matches(selector, name, _labels(node))
        ]
        explanation = cluster.explain(name, waiting)
        if not explanation["pools"] and not explanation["error"]:
            return _verdict(name, False, "no driver has published devices for it", reasons, None)
        return _verdict(name, explanation["fits"], why(explanation), reasons, explanation)

    # Nodes are independent, and the allocator releases the GIL.
    with ThreadPoolExecutor(min(MAX_CONCURRENCY, os.cpu_count() or 1), thread_name_prefix="nodes") as threads:
        result["nodes"] = list(threads.map(evaluate_node, sorted(names)))
    result["holders"] = _holders(result["nodes"], snapshot)
    return _with(result, *_conclusion(result))


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


def _conclusion(result: dict[str, Any]) -> tuple[bool, str]:
    nodes = result["nodes"]
    if not nodes:
        return False, "there is no node"
    usable = [entry["node"] for entry in nodes if entry["fits"] and not entry["obstacles"]]
    if usable:
        return True, f"its devices are free on {_some(usable)}; if it stays pending, that is not about devices"
    blocked = [entry for entry in nodes if entry["fits"]]
    if blocked:
        first = blocked[0]
        return False, (
            f"its devices are free only where the pod may not be: {first['node']}: {'; '.join(first['obstacles'])}"
        )
    why = best_candidate(nodes) or nodes[0]
    where = f"fits on none of {len(nodes)} nodes" if len(nodes) > 1 else f"does not fit on node {nodes[0]['node']}"
    return False, f"{where}; {why['node']}: {why['devices']}" if len(nodes) > 1 else f"{where}: {why['devices']}"


def why(explanation: dict[str, Any]) -> str:
    """Return why claims do not fit on a node, in one line."""
    if explanation["fits"]:
        return "fits"
    notes = [pool["problem"] for pool in explanation["pools"] if pool["problem"]]
    summaries = [claim["summary"] for claim in explanation["claims"] if claim["summary"] != "fits"]
    text = explanation["error"] or (summaries[0] if summaries else explanation["summary"])
    return f"{text}; {notes[0]}" if notes else str(text)


def _verdict(
    node: str, fits: bool, devices: str, reasons: list[str], explanation: dict[str, Any] | None
) -> dict[str, Any]:
    return {"node": node, "fits": fits, "devices": devices, "obstacles": reasons, "explanation": explanation}


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


def _claim_entry(need: PodClaim) -> dict[str, Any]:
    if need.claim is None or not need.exists:
        summary = need.problems[0] if need.problems else "is still to be made"
        return {"name": need.name, "claim": None, "state": "missing", "summary": summary, "problems": need.problems}
    return {"name": need.name, **claim_state(need.claim), "problems": need.problems}


def _all_allocated(claims: Sequence[dict[str, Any]], node: str | None) -> str:
    deleting: list[str] = [claim["summary"] for claim in claims if claim["state"] == "deleting"]
    if deleting:
        return deleting[0]
    if node:
        return f"its claims are allocated, and it is on node {node}"
    for claim in claims:
        if binding := binding_of(claim.get("devices") or ()):
            return f"its claims are allocated; {claim['name']} {binding}"
    return "its claims are allocated; if it stays pending, that is not about free devices"


def nodes_of(snapshot: Snapshot) -> dict[str, Object]:
    """Return the Node objects by name; where they may not be read, those that slices name, without labels."""
    if snapshot.nodes is not None:
        return {node["metadata"]["name"]: node for node in snapshot.nodes}
    named = {name for entry in snapshot.slices or () if (name := (entry.get("spec") or {}).get("nodeName"))}
    return {name: {"metadata": {"name": name}} for name in named}


def _labels(node: Object) -> dict[str, str]:
    return (node.get("metadata") or {}).get("labels") or {}


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"node{'s' if len(names) > 1 else ''} {shown}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def _with(result: dict[str, Any], fits: bool, summary: str) -> dict[str, Any]:
    return {**result, "fits": fits, "summary": summary}

"""Why a claim, or the claims of a pod, have no devices: their state, and the nodes of the cluster.

Everything is evaluated from one snapshot; `pending.py` evaluates the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_agent.api_object import Object, allocation_of
from dra_agent.deadline import Deadline
from dra_agent.explain.object_state import binding_of, claim_state, pod_state
from dra_cluster.explain.device_plugins import DevicePlugins
from dra_cluster.explain.extended_resources import of_device_plugin, unused_classes
from dra_cluster.explain.group_quotes import quotes_of_group
from dra_cluster.explain.kueue import quotes_of
from dra_cluster.explain.pending import (
    DEADLINE_S,
    NOT_EVALUATED,
    NodeQuery,
    PendingClaims,
    SnapshotCluster,
    evaluate_nodes,
    number_of_nodes,
    some_nodes,
    with_summary,
)
from dra_cluster.explain.pod_claims import PodClaim, pod_claims, pod_notes
from dra_cluster.explain.snapshot import Snapshot, group_name


def explain_pod(
    snapshot: Snapshot,
    pod: Object,
    *,
    node: str | None = None,
    deadline: float = DEADLINE_S,
    cluster: SnapshotCluster | None = None,
) -> dict[str, Any]:
    """Explain every claim of a pod: they are allocated together, on the node where the pod can be.

    The arguments are those of `explain_claim`.
    """
    query = NodeQuery(cluster or SnapshotCluster(snapshot), Deadline.of(deadline), node)
    needs = pod_claims(snapshot, pod)
    claims = [_claim_entry(need) for need in needs]
    result: dict[str, Any] = {
        "pod": f"{snapshot.namespace}/{pod['metadata']['name']}",
        "summary": "",
        "scheduler_version": str(snapshot.scheduler),
        "fatal": None,
        "pods": [pod_state(pod)],
        "claims": claims,
        "nodes": [],
        "quotes": _quotes(snapshot, pod),
        "notes": [*snapshot.notes, *pod_notes(snapshot, pod), *_unused_classes(snapshot, pod)],
        "events": snapshot.events,
    }
    if not needs:
        return _explain_without_claim(result, snapshot, query, pod)
    if problems := [f"claim {need.name}: {problem}" for need in needs for problem in need.problems]:
        return with_summary(result, False, problems[0])
    there = [need.claim for need in needs if need.claim is not None]
    waiting = [claim for claim in there if not allocation_of(claim)]
    if not waiting:
        on = (pod.get("spec") or {}).get("nodeName")
        return with_summary(result, True, _all_allocated(claims, on))
    allocated = [claim for claim in there if allocation_of(claim)]
    pending = PendingClaims(waiting, allocated, pod, DevicePlugins(snapshot, pod, needs))
    return evaluate_nodes(result, snapshot, query, pending)


def _explain_without_claim(result: dict[str, Any], snapshot: Snapshot, query: NodeQuery, pod: Object) -> dict[str, Any]:
    """Explain a pod without a claim: it can request extended resources that only device plugins serve."""
    plugins = DevicePlugins(snapshot, pod, ())
    if not plugins.others or snapshot.nodes is None or (pod.get("spec") or {}).get("nodeName"):
        return with_summary(result, True, "uses no claim, so devices are not the reason why it does not run")
    result = evaluate_nodes(result, snapshot, query, PendingClaims([], [], pod, plugins))
    names = ", ".join(plugins.others)
    if result["fits"]:
        usable = [entry["node"] for entry in result["nodes"] if entry["fits"] and not entry["obstacles"]]
        where = some_nodes(usable)
        rest = "if it stays pending, that is not about devices"
        return with_summary(result, True, f"uses no claim; device plugins have enough of {names} on {where}; {rest}")
    unknown = set(result["unexamined"])
    known = [entry for entry in result["nodes"] if entry["node"] not in unknown]
    # Of the nodes whose device plugin serves them, one that only lacks free ones is named first.
    nodes = query.cluster.nodes
    best = min(known, key=lambda entry: (len(entry["obstacles"]), not _serves(nodes, entry, plugins)), default=None)
    text = f"uses no claim, and only device plugins serve {names}"
    if best is not None:
        text += f"; fits on none of {number_of_nodes(len(known))}; {best['node']}: {'; '.join(best['obstacles'])}"
    if unknown:
        text += f"; {number_of_nodes(len(unknown))} {'are' if len(unknown) > 1 else 'is'} {NOT_EVALUATED}"
    return with_summary(result, False, text)


def _serves(nodes: Mapping[str, Object], entry: dict[str, Any], plugins: DevicePlugins) -> bool:
    return bool(of_device_plugin(nodes.get(entry["node"], {}), plugins.others))


def explain_claim(
    snapshot: Snapshot,
    claim: Object,
    *,
    node: str | None = None,
    deadline: float = DEADLINE_S,
    cluster: SnapshotCluster | None = None,
) -> dict[str, Any]:
    """Explain one claim, with the other claims of the pod that waits for it: they are allocated together.

    Arguments:
        snapshot: The cluster, and the objects of the claim's namespace.
        claim: A claim of the snapshot.
        node: Only this node.
        deadline: Seconds for all nodes together. Nodes without a result by then are named as not evaluated.
        cluster: The nodes and devices of the snapshot, if several claims of it are explained.

    Raises:
        PermanentError: An object cannot be read.
    """
    query = NodeQuery(cluster or SnapshotCluster(snapshot), Deadline.of(deadline), node)
    name = claim["metadata"]["name"]
    users = [
        pod
        for pod in snapshot.pods or ()
        if (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
        and _may_use(pod, name)
        and any(need.claim is claim for need in pod_claims(snapshot, pod))
    ]
    entry = _claim_entry(PodClaim(name, claim))
    result: dict[str, Any] = {
        "claim": f"{snapshot.namespace}/{name}",
        "summary": "",
        "scheduler_version": str(snapshot.scheduler),
        "fatal": None,
        "pods": [pod_state(pod) for pod in users],
        "claims": [entry],
        "nodes": [],
        "notes": snapshot.notes,
        "events": snapshot.events,
    }
    if entry["state"] == "deleting":
        return with_summary(result, False, entry["summary"])
    if allocation_of(claim):
        return with_summary(result, True, entry["summary"])
    unbound = [pod for pod in users if not (pod.get("spec") or {}).get("nodeName")]
    if users and not unbound:
        on = f"pod {users[0]['metadata']['name']} is on node {users[0]['spec']['nodeName']} already"
        return with_summary(result, False, f"{on}, and the claim is not allocated: no scheduler chose its devices")
    pod = unbound[0] if unbound else None
    result["notes"] = [*snapshot.notes, *(pod_notes(snapshot, pod) if pod else ())]
    needs = pod_claims(snapshot, pod) if pod else []
    others = [need.claim for need in needs if need.claim is not claim and need.claim]
    waiting = [claim, *(other for other in others if not allocation_of(other))]
    allocated = [other for other in others if allocation_of(other)]
    pending = PendingClaims(waiting, allocated, pod, DevicePlugins(snapshot, pod, needs))
    result = evaluate_nodes(result, snapshot, query, pending)
    if pod is None and snapshot.pods is not None:
        # Claims are allocated when a pod that uses them is scheduled, and not before.
        unused = f"no pod of namespace {snapshot.namespace} uses it, so it is not allocated"
        return with_summary(result, False, f"{unused}; {result['summary']}")
    return result


def _quotes(snapshot: Snapshot, pod: Object) -> list[Object]:
    """Return what Kueue recorded about a pod, and kube-scheduler about its group."""
    group = snapshot.group_of(pod)
    of_group = [] if group is None else quotes_of_group(snapshot, group)
    return [*quotes_of(snapshot.kueue, "Pod", pod, ()), *of_group]


def _unused_classes(snapshot: Snapshot, pod: Object) -> list[str]:
    """Return a note on each class that kube-scheduler does not use, although it provides a resource of the pod.

    Of k8s.io/dynamic-resource-allocation v0.37.1, extendedresourcecache: removeResourceName2class removes the name for
    all classes that have it.
    """
    if snapshot.nodes is None:
        return []
    message = pod_state(pod)["scheduler"] or ""
    return [
        f"kube-scheduler does not use class {name}, which provides {resource}: its feature gate DRAExtendedResource is "
        f"off, or another class has or had the same extendedResourceName; if so, let class {name} be the only one with "
        "this name, and then remove the name from it and add it again, or restart kube-scheduler"
        for resource, name in unused_classes(pod, message, snapshot.classes or (), snapshot.nodes).items()
    ]


def _may_use(pod: Object, claim: str) -> bool:
    """Return whether a pod names a claim, or its group may: few of the pods of a namespace do."""
    status = pod.get("status") or {}
    entries = (
        *((pod.get("spec") or {}).get("resourceClaims") or ()),
        *(status.get("resourceClaimStatuses") or ()),
        status.get("extendedResourceClaimStatus") or {},
    )
    return bool(group_name(pod)) or any(entry.get("resourceClaimName") == claim for entry in entries)


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

"""How many more copies of a pod, a claim or a template fit in a cluster, and what limits each node.

Devices come from `Cluster.capacity`; cordons, taints and labels of nodes are evaluated as in `explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dra_agent.api_object import Object, allocation_of, consumers_of, full_name
from dra_agent.cluster import MAX_COPIES, Cluster
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError
from dra_agent.explain.gates import gates_in_use, notes_of
from dra_cluster.explain.claim_admission import NewClaim, admission_blockers
from dra_cluster.explain.copy_count import CopyCount, row_of
from dra_cluster.explain.device_plugins import DevicePlugins
from dra_cluster.explain.fatal_error import NOTE, examines_all, find_fatal
from dra_cluster.explain.kueue import NOT_EVALUATED, is_managed
from dra_cluster.explain.pending import nodes_of
from dra_cluster.explain.placement import scheduling_blockers
from dra_cluster.explain.pod_claims import PodClaim, extended_need, pod_claims
from dra_cluster.explain.snapshot import Snapshot, group_name

MAX_CONSUMERS = 256
"""Consumers that a ResourceClaim can be reserved for (ResourceClaimReservedForMaxSize, api/resource/v1/types.go)."""
BLOCKED = "node"
"""The cause of a node on which the pod cannot run, for reasons that do not concern devices."""
ERROR = "error"
"""The cause of a node whose devices cannot be evaluated, or of all nodes if kube-scheduler stops at such an error."""
CONSUMERS = "consumers"
"""The cause of a node on which more copies would fit, if a claim that they share could be reserved for more pods."""
NOT_CONSIDERED = (
    "not considered: CPU, memory and number of pods of a node, spread and pod affinity, quota of further copies"
)
QUOTA_NOT_EVALUATED = f"not evaluated: {NOT_EVALUATED}"
_COPY_NEEDS = "a further copy needs"


@dataclass
class Copy:
    """What one more copy needs."""

    subject: str
    """Such as `pod team-a/train`."""
    claims: list[Object]
    """The claims that each copy gets for itself; allocations of them are not considered."""
    shared: list[Object] = field(default_factory=list)
    """The claims that all copies use together."""
    pod: Object = field(default_factory=dict)
    """The constraints of the pod; empty for a claim or a template, as a pod without tolerations has."""
    problems: list[str] = field(default_factory=list)
    """Why a further copy cannot exist."""
    needs: Sequence[PodClaim] = ()
    """The claims as the pod names them; empty for a claim or a template."""
    replicas: int = 1
    """How many copies the object needs."""
    notes: list[str] = field(default_factory=list)
    unlimited: str | None = None
    """Why devices do not limit the number of copies."""
    not_counted: list[str] = field(default_factory=list)
    """Extended resources that no DeviceClass provides."""


def copy_of_claims(snapshot: Snapshot, claims: Sequence[Object], kind: str = "claim") -> Copy:
    """Return the copy that claims, or the claim of a template, describe: further ones with the same spec.

    The subject is the first one.
    """
    new = [NewClaim(claim, {}) for claim in claims]
    return Copy(
        f"{kind} {full_name(claims[0])}",
        list(claims),
        problems=admission_blockers(snapshot, new, _COPY_NEEDS),
        notes=["a pod without tolerations, node selector and affinity is assumed"],
    )


def copy_of_pod(snapshot: Snapshot, pod: Object) -> Copy:
    """Return what another pod like this one needs: claims of templates are made again, named claims are shared."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    named = {entry.get("name") for entry in spec.get("resourceClaims") or () if entry.get("resourceClaimName")}
    further = {
        **pod,
        # Quotas count the pod of a copy, too: it does not exist.
        "metadata": {key: value for key, value in pod["metadata"].items() if key != "uid"},
        "spec": {key: value for key, value in spec.items() if key != "nodeName"},
        # The claim for extended resources depends on the node, and is made again.
        "status": {key: value for key, value in status.items() if key != "extendedResourceClaimStatus"},
    }
    needs: list[PodClaim] = pod_claims(snapshot, further)
    claims: list[Object] = []
    shared: list[Object] = []
    new: list[NewClaim] = []
    for need in needs:
        if need.claim is None:
            continue
        if need.name in named:
            shared.append(need.claim)
        else:
            claims.append(need.claim)
            new.append(NewClaim(need.claim, need.resources, pod_exists=False))
    copy = Copy(
        f"pod {snapshot.namespace}/{pod['metadata']['name']}",
        claims,
        shared,
        further,
        [f"claim {need.name}: {problem}" for need in needs for problem in need.problems],
        needs,
    )
    if not copy.problems:
        copy.problems = admission_blockers(snapshot, new, _COPY_NEEDS)
    others = DevicePlugins(snapshot, further, needs).others
    if not needs:
        what = f"; {', '.join(others)}: not counted, as no DeviceClass provides it" if others else ""
        copy.unlimited = f"uses no claim, so devices do not limit it{what}"
        copy.not_counted = list(others)
    elif others:
        copy.notes.append(f"not considered: {', '.join(others)}, which no DeviceClass provides")
    if extended := extended_need(needs):
        names = ", ".join(sorted(extended.resources))
        copy.notes.append(f"kube-scheduler is assumed to have the feature gate DRAExtendedResource on, for {names}")
    if shared:
        names = ", ".join(claim["metadata"]["name"] for claim in shared)
        copy.notes.append(f"all copies share claim{'s' if len(shared) > 1 else ''} {names}")
    if is_managed(None, [pod]):
        copy.notes.append(QUOTA_NOT_EVALUATED)
    if group_name(pod):
        copy.notes.append(f"each copy is counted alone, not as a whole pod group {group_name(pod)}")
    return copy


def capacity(
    snapshot: Snapshot,
    copy: Copy,
    *,
    node: str | None = None,
    limit: int = MAX_COPIES,
    deadline: float = 10.0,
) -> Object:
    """Compute how many more copies fit; docs/how-to/operate/capacity.md describes the members.

    Arguments:
        snapshot: The cluster.
        copy: What each copy needs.
        node: Only this node.
        limit: The maximum number of copies on a node.
        deadline: Seconds for all nodes together.

    Raises:
        PermanentError: An object cannot be read, or the node is unknown.
    """
    result: Object = {
        "subject": copy.subject,
        "scheduler_version": str(snapshot.scheduler),
        "fatal": None,
        "total": 0,
        "total_is_partial": False,
        "largest_on_one_node": 0,
        "nodes": [],
        "unexamined": [],
        "problems": copy.problems,
        "unlimited": None,
        "notes": [*snapshot.notes, *copy.notes, NOT_CONSIDERED],
    }
    if snapshot.nodes is None:
        result["notes"].insert(0, "cordons, taints and labels of nodes are not known")
    if copy.problems:
        return result
    if copy.unlimited is not None:
        # What device plugins serve is not counted, so with such resources the number is not known.
        return {**result, "total": None, "total_is_partial": bool(copy.not_counted), "unlimited": copy.unlimited}
    plugins = DevicePlugins(snapshot, copy.pod, copy.needs)
    if snapshot.slices is None:
        return {**result, "problems": ["no more is known without ResourceSlices"]}
    known = nodes_of(snapshot)
    if node is not None and node not in known:
        raise PermanentError(f"there is no node {node}", hint="see the names with `kubectl get nodes`")
    held = [claim for claim in snapshot.claims if allocation_of(claim)]
    gates = gates_in_use(snapshot.slices)
    result["notes"] += notes_of(gates)
    cluster = Cluster(
        snapshot.slices,
        snapshot.classes or (),
        nodes=known.values(),
        claims=held,
        gates=gates,
        scheduler_minor=snapshot.scheduler.minor,
    )
    blocked = (
        {name: node_blockers(copy.pod, entry) for name, entry in known.items()} if snapshot.nodes is not None else {}
    )
    usable = {name: known[name] for name in known if not blocked.get(name)}
    permitted = {name: usable[name] for name in usable if node in (None, name)}
    most_used = min(copy.shared, key=remaining_consumers, default=None)
    remaining = None if most_used is None else remaining_consumers(most_used)
    if remaining is not None:
        limit = min(limit, remaining)
    count = CopyCount(cluster, copy.claims, copy.shared, plugins, limit, Deadline.of(deadline))
    rows = count.on(permitted)
    count.check({name: usable[name] for name in usable if name not in permitted})
    if most_used is not None and limit == remaining:
        _limit_by_consumers(rows, most_used)
    rows += [
        row_of(name, reason="; ".join(reasons), causes=[BLOCKED])
        for name, reasons in blocked.items()
        if reasons and node in (None, name)
    ]
    result["nodes"] = sorted(rows, key=lambda row: row["node"])
    result["total"] = count.total
    result["total_is_partial"] = count.total_is_partial
    result["largest_on_one_node"] = max((row["copies"] for row in rows), default=0)
    result["unexamined"] = count.unexamined
    if remaining is not None and count.total >= remaining:
        result["total"], result["total_is_partial"] = remaining, False
        result["notes"].append(f"a claim can be reserved for {MAX_CONSUMERS} pods; {remaining} more pods can share it")
    return _with_error(result, snapshot, count, len(known))


def _with_error(result: Object, snapshot: Snapshot, count: CopyCount, nodes: int) -> Object:
    """Limit the copies to those before an error of one node, at which kube-scheduler places no further one anywhere."""
    errors = {name: text for name, (_, text) in count.errors.items()}
    error = find_fatal(errors, (), snapshot.scheduler)
    if error is None:
        return result
    fitting = sum(bool(row["copies"]) for row in result["nodes"])
    if not examines_all(nodes, fitting):
        return {**result, "fatal": error.as_object(), "notes": [*result["notes"], error.caution]}
    least = min(copies for copies, _ in count.errors.values())
    # Copies on other nodes come before the error, too: which nodes kube-scheduler chooses is not known.
    result |= {"fatal": error.as_object(), "total": least, "total_is_partial": least > 0}
    result["notes"] += [NOTE]
    if least:
        result["notes"].append(f"after {least} of them on one node: {error.summary}")
        return result
    result["problems"] = [error.summary]
    result["largest_on_one_node"] = 0
    for row in result["nodes"]:
        if row["copies"]:
            reason = f"an error on {error.nodes[0]} keeps the pod from all nodes"
            row.update(copies=0, at_limit=False, causes=[ERROR], reason=reason)
    return result


def remaining_consumers(claim: Object) -> int:
    """Return how many more pods a claim can be reserved for."""
    return max(0, MAX_CONSUMERS - len(consumers_of(claim)))


def node_blockers(pod: Object, node: Object) -> list[str]:
    """Return why a pod cannot run on a node for reasons that do not concern devices; empty if it can.

    Raises:
        PermanentError: A field has a wrong type.
    """
    try:
        return scheduling_blockers(pod, node)
    except (AttributeError, TypeError, KeyError) as error:
        name = node["metadata"]["name"]
        raise PermanentError(
            f"the pod or Node {name} has a field of a wrong type: {error}", hint="export both again with kubectl"
        ) from None


def _limit_by_consumers(rows: Iterable[Object], claim: Object) -> None:
    """Name the claim that all copies share as the reason why no more of them fit on a node."""
    remaining = remaining_consumers(claim)
    number = f"{remaining or 'no'} more pod{'' if remaining == 1 else 's'}"
    for row in rows:
        if row["at_limit"]:
            reason = f"claim {full_name(claim)} can be reserved for {number}"
            row.update(at_limit=False, causes=[CONSUMERS], reason=reason)

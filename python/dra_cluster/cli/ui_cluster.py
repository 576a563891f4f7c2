"""What `dra-agent ui` shows of a cluster: nodes by devices, reclaims, and why claims wait."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dra_agent.api_object import Object, allocation_of, full_name, identity_of
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_cluster.page.views import ClusterView, NodeView, PendingView

if TYPE_CHECKING:
    from dra_agent.kube_client import ApiClient
    from dra_cluster.explain.snapshot import Snapshot

READ_TIMEOUT_S = 30.0
"""Seconds in which the API server must respond to all requests of one reading."""
MAX_EXPLAINED = 20
"""Pending claims that are explained, the oldest ones."""
EXPLAIN_BUDGET_S = 10.0
"""Seconds for all pending claims together."""
CLAIM_SHARE = 0.25
"""The part of the remaining time that one claim can use: one that needs long leaves time for the others."""


def read_cluster_view(args: argparse.Namespace) -> ClusterView:
    """Read the cluster; raises RetryableError if the API server does not respond in time."""
    from dra_agent.cli.connection import call_cluster

    snapshot, namespaces = call_cluster(args, _in_time)
    return cluster_view(snapshot, namespaces)


async def _in_time(api: ApiClient) -> tuple[Snapshot, dict[str, Snapshot]]:
    from dra_cluster.explain.cluster_snapshot import read_cluster, within

    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            snapshot = await read_cluster(api)
            namespaces = {identity_of(claim)[0] for claim in _pending(snapshot)[:MAX_EXPLAINED]}
            parts = await asyncio.gather(*(within(api, snapshot, namespace) for namespace in namespaces))
            return snapshot, {part.namespace: part for part in parts}
    except TimeoutError:
        raise RetryableError(f"the API server did not respond within {READ_TIMEOUT_S:.0f} s") from None


def cluster_view(snapshot: Snapshot, namespaces: Mapping[str, Snapshot]) -> ClusterView:
    """Return the view; `namespaces` are the snapshots that explain the claims of each namespace."""
    from dra_cluster.cli.cluster_claims import allocated_devices
    from dra_cluster.cli.cluster_nodes import by_node, newest
    from dra_cluster.explain.pending import nodes_of

    held = [row for claim in snapshot.claims for row in allocated_devices(claim)]
    held_devices = {(row["driver"], row["pool"], row["device"]) for row in held}
    slices = by_node(newest(snapshot.slices or []), lambda entry: entry["spec"].get("nodeName"))
    claims = by_node(held, lambda row: row["node"])
    nodes = nodes_of(snapshot)
    pending = _pending(snapshot)
    return ClusterView(
        nodes=tuple(
            _node(nodes[name], slices.get(name, ()), claims.get(name, ()), held_devices) for name in sorted(nodes)
        ),
        pending=_explained(pending[:MAX_EXPLAINED], snapshot, namespaces),
        pending_total=len(pending),
        notes=tuple(snapshot.notes),
    )


def _node(
    node: Object, slices: Sequence[Object], claims: Sequence[Object], held: set[tuple[Any, Any, Any]]
) -> NodeView:
    from dra_cluster.cli.cluster_nodes import attribute, devices_of, reclaim_of

    reclaim = reclaim_of(node, slices, claims)
    families: Counter[str] = Counter()
    held_count = tainted = 0
    for entry in slices:
        driver, pool = entry["spec"]["driver"], entry["spec"]["pool"]["name"]
        for device in devices_of(entry):
            families[str(attribute(device.get("attributes") or {}, "type") or driver)] += 1
            held_count += (driver, pool, device["name"]) in held
            tainted += any(taint.get("effect") != "None" for taint in device.get("taints") or ())
    return NodeView(
        name=node["metadata"]["name"],
        families=tuple(sorted(families.items())),
        devices=families.total(),
        held=held_count,
        tainted=tainted,
        phase=reclaim["phase"],
        message=reclaim["message"],
        claims=tuple(reclaim["claims"]),
    )


def _explained(
    claims: Sequence[Object], snapshot: Snapshot, namespaces: Mapping[str, Snapshot]
) -> tuple[PendingView, ...]:
    from dra_cluster.explain.claim_explanation import explain_claim
    from dra_cluster.explain.pending import SnapshotCluster

    deadline = Deadline.of(EXPLAIN_BUDGET_S)
    cluster = SnapshotCluster(snapshot)
    if claims and snapshot.slices and deadline.remaining():
        cluster.read()  # All claims wait for it, so it is not in the share of one.
    views = []
    for claim in claims:
        namespace, name = identity_of(claim)
        if seconds := deadline.remaining() * CLAIM_SHARE:
            found = explain_claim(namespaces[namespace], claim, deadline=seconds, cluster=cluster)
            reason = str(found["summary"])
        else:
            reason = f"not evaluated, too many claims wait: `kubectl dra explain {name} -n {namespace}`"
        views.append(
            PendingView(claim=full_name(claim), created=claim["metadata"].get("creationTimestamp"), reason=reason)
        )
    return tuple(views)


def _pending(snapshot: Snapshot) -> list[Object]:
    """Return the claims without an allocation, the oldest first."""
    waiting = [claim for claim in snapshot.claims if not allocation_of(claim)]
    return sorted(waiting, key=lambda claim: str(claim["metadata"].get("creationTimestamp") or ""))

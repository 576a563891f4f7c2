"""A snapshot of a whole cluster, and of it the part that explains the claims of one namespace.

Objects of all nodes are read once, and pods only in namespaces with claims to explain: a cluster has many.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from dra_agent.api_object import Object
from dra_agent.kube_client import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiClient,
    Kind,
)
from dra_cluster.explain.scheduler_version import read_version
from dra_cluster.explain.snapshot import (
    POD_GROUPS,
    RESOURCE_QUOTAS,
    Snapshot,
    allowed,
)
from dra_cluster.explain.taint_rules import taint_rules, tainted


async def read_cluster(api: ApiClient) -> Snapshot:
    """Read nodes, slices, classes and claims; raises RetryableError if the server does not respond."""
    found = Snapshot("")

    async def listed(kind: Kind, so: str) -> list[Object] | None:
        got = await allowed(api.list(kind), f"cannot list {kind.plural}", so, found.notes)
        return None if got is None else got.items

    found.nodes, slices, found.classes, claims, rules, found.scheduler = await asyncio.gather(
        listed(NODES, "labels, reclaims and nodes without devices are not known"),
        listed(RESOURCE_SLICES, "which devices there are is not known"),
        listed(DEVICE_CLASSES, "classes are not known"),
        listed(RESOURCE_CLAIMS, "claims are not known"),
        taint_rules(api, found.notes),
        read_version(api, found.notes),
    )
    found.slices = None if slices is None else tainted(slices, rules, found.classes, found.notes)
    found.claims = claims or []
    return found


async def within(api: ApiClient, cluster: Snapshot, namespace: str) -> Snapshot:
    """Return the snapshot with the objects that explain claims of a namespace; raises as `read_cluster` does."""
    notes: list[str] = []
    pods, quotas, groups, namespace_object = await asyncio.gather(
        allowed(api.list(PODS, namespace=namespace), f"cannot list pods in namespace {namespace}", "", notes),
        allowed(api.list(RESOURCE_QUOTAS, namespace=namespace), "", "", [], unread=notes),
        allowed(api.list(POD_GROUPS, namespace=namespace), "", "", [], unread=notes),
        allowed(api.get(NAMESPACES, namespace), "", "", []),
    )
    return replace(
        cluster,
        namespace=namespace,
        pods=None if pods is None else pods.items,
        quotas=[] if quotas is None else quotas.items,
        groups=None if groups is None else groups.items,
        namespace_object=namespace_object,
        notes=notes,
    )

"""The objects of a cluster from files that kubectl printed, as a snapshot of the API server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dra_agent.explain.printed_object import RESOURCE_KINDS, checked
from dra_agent.explain.snapshot import Snapshot, tainted
from dra_agent.manifests import load_manifests

Object = dict[str, Any]
_OTHERS = {"Pod", "Node", "ResourceQuota"}


def read_dump(paths: Iterable[str], namespace: str) -> Snapshot:
    """Read the objects; kinds that do not concern devices are skipped.

    Nodes, classes and slices are complete in a dump that has any of them. Pods, templates and quotas are those of the
    namespace.

    Raises:
        UsageError: A file cannot be read, or an object lacks a name or is of another version.
    """
    found: dict[str, list[Object]] = {kind: [] for kind in RESOURCE_KINDS | _OTHERS}
    for path in paths:
        for loaded in load_manifests(path, strict=False, allow_empty_list=True):
            if loaded.kind in found:
                found[loaded.kind].append(checked(loaded))

    def local(kind: str) -> list[Object]:
        return [entry for entry in found[kind] if entry["metadata"]["namespace"] == namespace]

    return Snapshot(
        namespace,
        slices=tainted(found["ResourceSlice"], found["DeviceTaintRule"]),
        classes=found["DeviceClass"],
        claims=found["ResourceClaim"],
        templates=local("ResourceClaimTemplate"),
        pods=local("Pod"),
        nodes=found["Node"] or None,
        quotas=local("ResourceQuota"),
    )

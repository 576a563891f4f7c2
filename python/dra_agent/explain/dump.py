"""The objects of a cluster from files that kubectl printed, as a snapshot of the API server."""

from __future__ import annotations

from collections.abc import Iterable

from dra_agent.api_object import Object
from dra_agent.explain.printed_object import RESOURCE_KINDS, checked
from dra_agent.explain.snapshot import WORKLOADS, Snapshot, tainted
from dra_agent.explain.workloads import GROUPS
from dra_agent.manifests import LoadedObject, load_manifests

_OTHERS = {"Pod", "Node", "ResourceQuota", *WORKLOADS}


def read_dump(paths: Iterable[str], namespace: str) -> Snapshot:
    """Read the objects; kinds that do not concern devices are skipped.

    Nodes, classes and slices are complete in a dump that has any of them. Pods, workloads, templates and quotas are
    those of the namespace.

    Raises:
        UsageError: A file cannot be read, or an object lacks a name or is of another version.
    """
    found: dict[str, list[Object]] = {kind: [] for kind in RESOURCE_KINDS | _OTHERS}
    for path in paths:
        for loaded in load_manifests(path, strict=False, allow_empty_list=True):
            if loaded.kind in found and _is_of_its_group(loaded):
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
        groups=local("PodGroup") or None,
        workloads={kind: local(kind) for kind in WORKLOADS},
        nodes=found["Node"] or None,
        quotas=local("ResourceQuota"),
    )


def _is_of_its_group(loaded: LoadedObject) -> bool:
    """Return False for an object of another API group that uses the name of the kind, as several have a PodGroup."""
    group, _, _ = str(loaded.value.get("apiVersion") or "").rpartition("/")
    return GROUPS.get(loaded.kind, group) == group

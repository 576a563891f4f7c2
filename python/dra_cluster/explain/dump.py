"""The objects of a cluster from files that kubectl printed, as a snapshot of the API server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_agent.explain.printed_object import RESOURCE_KINDS, checked
from dra_agent.free_form import unread_parts
from dra_agent.kube_client.response import bounded as bounded_notes
from dra_agent.manifests import LoadedObject, load_manifests
from dra_cluster.explain.extended_resources import served_by_device_plugins
from dra_cluster.explain.kueue import Workloads
from dra_cluster.explain.snapshot import WORKLOADS, Snapshot
from dra_cluster.explain.taint_rules import tainted
from dra_cluster.explain.workloads import GROUPS, WORKLOAD

_OTHERS = {"Pod", "Node", "ResourceQuota", *WORKLOADS}
_Known = dict[tuple[str, str, str], tuple[Object, LoadedObject]]
"""Objects with their places, by kind, namespace and name."""


def read_dump(paths: Iterable[str], namespace: str, *, pods: Sequence[Object] = ()) -> Snapshot:
    """Read the objects; kinds that do not concern devices are skipped.

    Nodes, classes and slices are complete in a dump that has any of them, and pods of all namespaces too. Workloads,
    templates and quotas are those of the namespace. `pods` are those of the user, or templates of them.

    Raises:
        UsageError: A file cannot be read, or an object lacks a name or is of another version.
    """
    found: dict[str, list[Object]] = {kind: [] for kind in RESOURCE_KINDS | _OTHERS}
    known: _Known = {}
    unread: list[str] = []
    for path in paths:
        for loaded in load_manifests(path, strict=False, allow_empty_list=True):
            if loaded.kind in found and _is_of_its_group(loaded):
                unread += _unread(loaded)
                value = checked(loaded)
                if _is_new(value, loaded, known):
                    found[loaded.kind].append(value)

    def local(kind: str) -> list[Object]:
        return [entry for entry in found[kind] if entry["metadata"]["namespace"] == namespace]

    notes = bounded_notes(unread, "API")
    asking = [*local("Pod"), *pods]
    if found["Pod"] and served_by_device_plugins(asking, found["Node"], found["DeviceClass"], with_others=True):
        notes.append("what device plugins have left is computed from the pods of the files")
    unlimited = [quota for quota in local("ResourceQuota") if not (quota.get("status") or {}).get("hard")]
    notes += [f"quota {quota['metadata']['name']} has no status.hard, and permits everything" for quota in unlimited]
    if not found["Node"] and any(not (one["spec"] or {}).get("nodeName") for one in found["ResourceSlice"]):
        notes.append("no Node is in the files: slices that name no node count on the nodes that other slices name")
    return Snapshot(
        namespace,
        slices=tainted(found["ResourceSlice"], found["DeviceTaintRule"], found["DeviceClass"], notes),
        classes=found["DeviceClass"],
        claims=found["ResourceClaim"],
        templates=local("ResourceClaimTemplate"),
        pods=local("Pod"),
        placed_pods=[pod for pod in found["Pod"] if (pod.get("spec") or {}).get("nodeName")] if found["Pod"] else None,
        groups=local("PodGroup") or None,
        composites=local("CompositePodGroup") or None,
        workloads={kind: local(kind) for kind in WORKLOADS},
        kueue=Workloads(local(WORKLOAD), "" if found[WORKLOAD] else "the files have no Workload of Kueue"),
        nodes=found["Node"] or None,
        quotas=local("ResourceQuota"),
        notes=notes,
    )


def _unread(loaded: LoadedObject) -> list[str]:
    """Return a note if the object has a part of another driver that cannot be read."""
    fields = unread_parts(loaded.value) if loaded.kind in RESOURCE_KINDS else []
    return [f"{loaded.kind} {loaded.name}: {', '.join(fields)} cannot be read; it is not considered"] if fields else []


def _is_new(value: Object, loaded: LoadedObject, known: _Known) -> bool:
    """Return False for an object that the files have already; raise UsageError if it had another content there."""
    key = loaded.kind, str(value["metadata"].get("namespace") or ""), loaded.name
    first, place = known.setdefault(key, (value, loaded))
    if place is loaded:
        return True
    if first != value:
        raise UsageError(
            f"{loaded.kind} {'/'.join(filter(None, key[1:]))} is another one than in {place.where()}",
            where=loaded.where(),
            hint="give the objects of one cluster at one moment, each once",
        )
    return False


def _is_of_its_group(loaded: LoadedObject) -> bool:
    """Return False for an object of another API group that uses the name of the kind, as several have a PodGroup."""
    group, _, _ = str(loaded.value.get("apiVersion") or "").rpartition("/")
    return GROUPS.get(loaded.kind, group) == group

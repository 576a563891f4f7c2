"""What `dra-agent capacity` counts: a copy of a pod, claim, template or workload, from the cluster or from files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_agent.explain.files import claim_of_template
from dra_agent.manifests import load_manifests
from dra_cluster.cli.cluster_input import CLAIM_KINDS, missing, read_snapshot, read_users
from dra_cluster.explain.capacity import Copy, copy_of_claims, copy_of_pod
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.explain.workloads import POD_GROUP, pod_sets

Finder = Callable[[Snapshot], Copy]
_PARTS = {"JobSet": "replicated Jobs", "Workload": "pod sets"}
"""What a workload can have several of."""


def read_query(args: argparse.Namespace) -> tuple[Snapshot, Finder]:
    """Read the cluster; the second result finds the copy in it, after changes.

    Raises:
        UsageError: A file, an object or a flag is invalid.
    """
    from dra_agent.cli.files import filenames
    from dra_agent.cli.object_names import CLAIM, POD, TEMPLATE, parse_pair

    files = getattr(args, "filename", [])
    if bool(args.object) == bool(files):
        raise UsageError(
            "files and an object of a cluster at once" if files else "nothing to count",
            hint="give -f FILE, or pod/NAME, claim/NAME or template/NAME",
        )
    if not files:
        # A bare name is of the same kind as in `explain`.
        first = (POD, CLAIM) if getattr(args, "is_plugin", False) else (CLAIM, POD)
        args.kind, namespace, name = parse_pair(args.object, kinds=(*first, TEMPLATE))
        args.namespace = namespace or args.namespace
        return read_snapshot(args, name), lambda snapshot: _named(args, snapshot, name)
    loaded = [one for path in filenames(args) for one in load_manifests(path, strict=False)]
    snapshot, users = read_users(args, loaded, operation="counted")
    where = ", ".join(args.filename)
    return snapshot, lambda changed: _of_files(changed, users, where)


def _of_files(snapshot: Snapshot, users: Sequence[tuple[str, Object]], where: str) -> Copy:
    pods = [(kind, value) for kind, value in users if kind not in (*CLAIM_KINDS, POD_GROUP)]
    if len(pods) > 1:
        raise UsageError(f"there are {len(pods)} pods and workloads", where=where, hint="give one of them")
    if pods:
        kind, value = pods[0]
        return copy_of_pod(snapshot, value) if kind == "Pod" else _of_workload(snapshot, kind, value)
    claims = [
        claim_of_template(value) if kind == "ResourceClaimTemplate" else value
        for kind, value in users
        if kind in CLAIM_KINDS
    ]
    if not claims:
        raise UsageError("there is no claim, template or pod", where=where)
    copy = copy_of_claims(snapshot, claims)
    if len(claims) > 1:
        copy.subject = f"{len(claims)} claims of {where}"
    return copy


def _of_workload(snapshot: Snapshot, kind: str, value: Object) -> Copy:
    name = value["metadata"]["name"]
    sets = pod_sets(kind, value)
    if len(sets) != 1:
        raise UsageError(
            f"{kind} {name} has {len(sets)} {_PARTS.get(kind, 'templates')}, only one can be counted",
            hint="count each of them alone: a Job file with its template, and --replicas",
        )
    template = sets[0].template
    pod = {"metadata": {**(template.get("metadata") or {}), "name": name}, "spec": template.get("spec") or {}}
    copy = copy_of_pod(snapshot, pod)
    copy.subject = f"{kind} {snapshot.namespace}/{name}"
    copy.replicas = max(1, sets[0].count)
    return copy


def _named(args: argparse.Namespace, snapshot: Snapshot, name: str) -> Copy:
    from dra_agent.cli.object_names import CLAIM, POD

    if args.kind == POD:
        found = snapshot.pod(name)
    elif args.kind == CLAIM:
        found = snapshot.claim(name)
    else:
        found = next((one for one in snapshot.templates or () if one["metadata"]["name"] == name), None)
    if found is None:
        raise missing(args, snapshot, args.kind, name)
    if args.kind == POD:
        return copy_of_pod(snapshot, found)
    return copy_of_claims(snapshot, [found if args.kind == CLAIM else claim_of_template(found)], args.kind)

"""What `dra-agent capacity` is about, and the cluster: from files, a dump, the agent of this host or the API server."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from dra_agent.errors import UsageError
from dra_agent.explain.capacity import Copy, copy_of_claim, copy_of_pod
from dra_agent.explain.dump import read_dump
from dra_agent.explain.files import claim_of_template
from dra_agent.explain.printed_object import checked
from dra_agent.explain.snapshot import Snapshot
from dra_agent.manifests import LoadedObject, load_manifests

Object = dict[str, Any]
WORKLOADS = {"Deployment": "replicas", "ReplicaSet": "replicas", "StatefulSet": "replicas", "Job": "parallelism"}
"""Kinds with one pod template, and the field with the number of pods that run together."""
JOB_SET = "JobSet"
"""jobset.x-k8s.io/v1alpha2 (kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go at 0336a8fd9fd3)."""
POD_KINDS = ("Pod", *WORKLOADS, JOB_SET)
Finder = Callable[[Snapshot], Copy]


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
        return _read_cluster(args, name), lambda snapshot: _named(snapshot, args.kind, name)
    loaded = [one for path in filenames(args) for one in load_manifests(path, strict=False)]
    users = [(one.kind, _checked(one)) for one in loaded]
    spaces = [value["metadata"].get("namespace") for kind, value in users if kind != "DeviceClass"]
    args.namespace = args.namespace or next((space for space in spaces if space), None)
    name = next((value["metadata"]["name"] for kind, value in users if kind != "DeviceClass"), "none")
    snapshot = _read_cluster(args, name)
    for kind, value in users:
        _add(snapshot, kind, value)
    where = ", ".join(args.filename)
    return snapshot, lambda changed: _of_files(changed, users, where)


def _checked(loaded: LoadedObject) -> Object:
    """Return an object of the user, checked against the limits of the API where it is of resource.k8s.io."""
    if loaded.kind in POD_KINDS:
        return checked(loaded)
    if loaded.kind not in {"ResourceClaim", "ResourceClaimTemplate", "DeviceClass"}:
        raise UsageError(
            f"a {loaded.kind or 'nameless kind'} cannot be counted",
            where=loaded.where("kind"),
            hint=f"give a ResourceClaim, ResourceClaimTemplate, {', '.join(POD_KINDS)}, or DeviceClasses here",
        )
    if problems := loaded.diagnostics():
        raise UsageError("\n".join(problems))
    return checked(loaded)


def _add(snapshot: Snapshot, kind: str, value: Object) -> None:
    """Add an object of the user to the cluster, in the place of the one with its name."""
    name = value["metadata"]["name"]
    if kind == "DeviceClass":
        others = [one for one in snapshot.classes or () if one["metadata"]["name"] != name]
        snapshot.classes = [*others, value]
    elif kind == "ResourceClaimTemplate":
        local = {**value, "metadata": {**value["metadata"], "namespace": snapshot.namespace}}
        others = [one for one in snapshot.templates or () if one["metadata"]["name"] != name]
        snapshot.templates = [*others, local]
    elif kind == "ResourceClaim" and snapshot.claim(name) is None:
        local = {**value, "metadata": {**value["metadata"], "namespace": snapshot.namespace}}
        snapshot.claims = [*snapshot.claims, local]


def _of_files(snapshot: Snapshot, users: Sequence[tuple[str, Object]], where: str) -> Copy:
    pods = [(kind, value) for kind, value in users if kind in POD_KINDS]
    if len(pods) > 1:
        raise UsageError(f"there are {len(pods)} pods and workloads", where=where, hint="give one of them")
    if pods:
        kind, value = pods[0]
        return copy_of_pod(snapshot, value) if kind == "Pod" else _of_workload(snapshot, kind, value)
    claims = [
        claim_of_template(value) if kind == "ResourceClaimTemplate" else value
        for kind, value in users
        if kind != "DeviceClass"
    ]
    if not claims:
        raise UsageError("there is no claim, template or pod", where=where)
    first, *others = [copy_of_claim(claim) for claim in claims]
    first.claims += [claim for other in others for claim in other.claims]
    if others:
        first.subject = f"{len(claims)} claims of {where}"
    return first


def _of_workload(snapshot: Snapshot, kind: str, value: Object) -> Copy:
    name = value["metadata"]["name"]
    template, replicas = _of_job_set(value) if kind == JOB_SET else _template_of(kind, value)
    pod = {"metadata": {**(template.get("metadata") or {}), "name": name}, "spec": template.get("spec") or {}}
    copy = copy_of_pod(snapshot, pod)
    copy.subject = f"{kind} {snapshot.namespace}/{name}"
    copy.replicas = max(1, replicas)
    return copy


def _template_of(kind: str, value: Object, name: str = "") -> tuple[Object, int]:
    """Return the pod template of a workload, and the number of its pods that run together."""
    subject, spec = f"{kind} {name or value['metadata']['name']}", value.get("spec") or {}
    template = spec.get("template")
    if not isinstance(template, dict):
        raise UsageError(f"{subject} has no pod template")
    replicas = _number(subject, spec, WORKLOADS[kind])
    if kind == "Job" and spec.get("completions") is not None:
        # A Job starts no more pods than have to complete.
        replicas = min(replicas, _number(subject, spec, "completions"))
    return template, replicas


def _of_job_set(value: Object) -> tuple[Object, int]:
    """Return the pod template of a JobSet with one replicated Job, and the number of pods of all its Jobs."""
    subject = f"{JOB_SET} {value['metadata']['name']}"
    jobs = (value.get("spec") or {}).get("replicatedJobs") or []
    if len(jobs) != 1:
        raise UsageError(
            f"{subject} has {len(jobs)} replicated Jobs, only one can be counted",
            hint="count each of them alone: a Job file with its template, and --replicas",
        )
    template, pods = _template_of("Job", jobs[0].get("template") or {}, name=f"of {subject}")
    return template, pods * _number(f"the Job of {subject}", jobs[0], "replicas")


def _number(subject: str, holder: Object, field: str) -> int:
    number = holder.get(field)
    if number is None:
        return 1
    if not isinstance(number, int) or isinstance(number, bool):
        raise UsageError(f"{subject}: {field} is not a number")
    return number


def _named(snapshot: Snapshot, kind: str, name: str) -> Copy:
    from dra_agent.cli.object_names import CLAIM, POD

    if kind == POD:
        found = snapshot.pod(name)
    elif kind == CLAIM:
        found = snapshot.claim(name)
    else:
        found = next((one for one in snapshot.templates or () if one["metadata"]["name"] == name), None)
    if found is None:
        notes = "; ".join(note for note in snapshot.notes if f"{kind}s" in note)
        raise UsageError(
            f"there is no {kind} {name} in namespace {snapshot.namespace}"
            + (f" that can be read: {notes}" if notes else ""),
            hint="choose the namespace with -n",
        )
    if kind == POD:
        return copy_of_pod(snapshot, found)
    return copy_of_claim(found if kind == CLAIM else claim_of_template(found), kind)


def _read_cluster(args: argparse.Namespace, name: str) -> Snapshot:
    from dra_agent.cli.connection import call_cluster, namespace_of
    from dra_agent.cli.explain_standalone import agent_without_cluster
    from dra_agent.cli.files import files_of
    from dra_agent.cli.output import progress
    from dra_agent.explain.snapshot import read

    if dump := getattr(args, "dump", []):
        paths = [file for entry in dump for file in files_of(entry, recursive=args.recursive)]
        with progress("reading the files"):
            return read_dump(paths, args.namespace or "default")
    if not getattr(args, "is_plugin", False) and agent_without_cluster(args):
        return _read_agent(args)
    namespace = namespace_of(args)
    with progress("querying the API server"):
        return call_cluster(args, lambda api: read(api, namespace, name))


def _read_agent(args: argparse.Namespace) -> Snapshot:
    from dra_agent.cli.connection import connect
    from dra_agent.standalone.protocol import Get, State

    namespace = args.namespace or "default"
    kind = getattr(args, "kind", None)
    if kind not in (None, "claim"):
        raise UsageError(
            f"there are no {kind}s: this host's agent runs without Kubernetes",
            hint="write capacity claim/NAME or -f FILE, or name a cluster with --kubeconfig",
        )
    with connect(args) as agent:
        state = agent.call(State())
        named = []
        if kind is not None:
            from dra_agent.cli.claim import key_of
            from dra_agent.cli.object_names import parse_pair

            named.append(
                agent.call(Get(*key_of(agent, parse_pair(args.object, kinds=(kind,)), args.namespace)))["claim"]
            )
    known = {one["metadata"]["name"] for one in state["allocated"] if one["metadata"].get("namespace") == namespace}
    waiting = [claim for claim in named if claim["metadata"]["name"] not in known]
    return Snapshot(namespace, slices=state["slices"], classes=state["classes"], claims=[*state["allocated"], *waiting])

"""The cluster that a query is about, from a dump, the agent of this host or the API server, and the user's objects."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dra_agent import garbage_collection
from dra_agent.api_object import Object
from dra_agent.errors import PermanentError, UsageError
from dra_agent.explain.printed_object import RESOURCE_KINDS, checked
from dra_agent.kube_client.response import may_be_about
from dra_agent.manifests import LoadedObject
from dra_cluster.explain.dump import read_dump
from dra_cluster.explain.pod_check import mistakes_of
from dra_cluster.explain.snapshot import WORKLOADS, Snapshot
from dra_cluster.explain.workloads import COMPOSITE, POD_GROUP, check_group, pod_sets

_KINDS = {"claim": "ResourceClaim", "template": "ResourceClaimTemplate", "pod": "Pod"}
CLAIM_KINDS = ("ResourceClaim", "ResourceClaimTemplate")
USER_KINDS = (*CLAIM_KINDS, "Pod", *(kind for kind in WORKLOADS if kind != COMPOSITE))


def read_users(
    args: argparse.Namespace, loaded: Sequence[LoadedObject], *, operation: str, with_kueue: bool = False
) -> tuple[Snapshot, list[tuple[str, Object]]]:
    """Read the cluster with the user's objects in it; return also these objects with their kinds, without classes.

    Without `-n` the namespace is the first that an object names. `operation` is in the message about another kind. With
    `with_kueue` the Workloads of Kueue are read too.

    Raises:
        UsageError: A file, an object or a flag is invalid.
    """
    users = [(one.kind, _checked(one, operation)) for one in loaded]
    _choose_namespace(args, loaded)
    names = [value["metadata"]["name"] for kind, value in users if kind != "DeviceClass"]
    pods = [pod for kind, value in users for pod in _pods_of(kind, value)]
    snapshot = read_snapshot(args, names[0] if names else "none", with_kueue=with_kueue, pods=pods)
    for kind, value in users:
        _add(snapshot, kind, value)
    return snapshot, [(kind, value) for kind, value in users if kind != "DeviceClass"]


def _choose_namespace(args: argparse.Namespace, loaded: Sequence[LoadedObject]) -> None:
    """Set the namespace to that of the objects unless a flag has set it; UsageError if an object has another one."""
    for one in loaded:
        space = one.value["metadata"].get("namespace") if one.kind != "DeviceClass" else None
        if not space:
            continue
        args.namespace = args.namespace or space
        if space != args.namespace:
            raise UsageError(
                f"{one.kind} {one.name} is in namespace {space}, and not in {args.namespace}",
                where=one.where("metadata.namespace"),
                hint="give objects of one namespace, and no other one with -n",
            )


def read_snapshot(
    args: argparse.Namespace,
    name: str,
    *,
    workload: str | None = None,
    with_kueue: bool = False,
    pods: Sequence[Object] = (),
) -> Snapshot:
    """Read the cluster; `name` is that of the object that the query is about, and `workload` its kind if it has one.

    With `with_kueue` the Workloads of Kueue are read too. `pods` are those of the user, or templates of them.

    Raises:
        UsageError: A file or a flag is invalid.
        RetryableError: The server does not respond.
    """
    from dra_agent.cli.connection import call_cluster, namespace_of
    from dra_agent.cli.explain_standalone import agent_without_cluster
    from dra_agent.cli.files import files_of
    from dra_agent.cli.terminal import progress
    from dra_cluster.explain.scheduler_version import parse_version
    from dra_cluster.explain.snapshot import read

    version = parse_version(text) if (text := getattr(args, "scheduler_version", None)) else None
    if dump := dump_of(args):
        paths = [file for entry in dump for file in files_of(entry, recursive=args.recursive)]
        with progress("reading the files"), garbage_collection.paused():
            found = read_dump(paths, args.namespace or "default", pods=pods)
            return replace(found, scheduler=version or found.scheduler)
    if not getattr(args, "is_plugin", False) and agent_without_cluster(args):
        return _read_agent(args)
    namespace = namespace_of(args)
    with progress("querying the API server"), garbage_collection.paused():
        found = call_cluster(
            args, lambda api: read(api, namespace, name, workload=workload, with_kueue=with_kueue, pods=pods)
        )
        return replace(found, scheduler=version or found.scheduler)


def _pods_of(kind: str, value: Object) -> list[Object]:
    """Return a pod, or the pod templates of a workload."""
    if kind == "Pod":
        return [value]
    has_templates = kind in WORKLOADS and kind != POD_GROUP
    return [one.template for one in pod_sets(kind, value)] if has_templates else []


def dump_of(args: argparse.Namespace) -> list[str]:
    """Return the files of `--from`; the plugin has no such flag."""
    files: list[str] = getattr(args, "dump", [])
    return files


def missing(args: argparse.Namespace, snapshot: Snapshot, kind: str, name: str) -> PermanentError:
    """Return the error about an object that the cluster does not have, or that may not be read.

    It is wrong use only if the object is known not to exist.
    """
    damaged = [note for note in snapshot.notes if may_be_about(note, _KINDS.get(kind, kind), snapshot.namespace, name)]
    notes = "; ".join([*(note for note in snapshot.notes if f"{kind}s" in note and note not in damaged), *damaged])
    is_unknown = damaged or any(one.endswith(f"{kind}s") for one in snapshot.unreadable)
    family = PermanentError if is_unknown else UsageError
    return family(
        f"there is no {kind} {name} in namespace {snapshot.namespace}"
        + (f" that can be read: {notes}" if notes else ""),
        hint="choose the namespace with -n" if args.namespace is None else None,
    )


def _checked(loaded: LoadedObject, operation: str) -> Object:
    """Return an object of the user, checked against the limits of the API where it is of resource.k8s.io."""
    if loaded.kind not in (*USER_KINDS, "DeviceClass"):
        raise UsageError(
            f"a {loaded.kind or 'nameless kind'} cannot be {operation}",
            where=loaded.where("kind"),
            hint=f"give a {', '.join(USER_KINDS)}, or DeviceClasses here",
        )
    check_group(loaded.kind, loaded.value, where=loaded.where("apiVersion"))
    if loaded.kind in RESOURCE_KINDS and (problems := loaded.diagnostics()):
        raise UsageError("\n".join(problems))
    value = checked(loaded)
    _check_pods(loaded, value)
    return value


def _check_pods(loaded: LoadedObject, value: Object) -> None:
    """Raise UsageError for a pod, or a template of pods, whose claims or extended resources the API server refuses."""
    specs = {"spec": value.get("spec") or {}} if loaded.kind == "Pod" else {}
    if loaded.kind in WORKLOADS and loaded.kind != POD_GROUP:
        specs = {f"{one.path}.spec": one.template.get("spec") or {} for one in pod_sets(loaded.kind, value)}
    for path, spec in specs.items():
        for mistake in mistakes_of(spec):
            field = f"{path}.{mistake.field}"
            message = f"{loaded.kind} {loaded.name}: {field} {mistake.message}"
            raise UsageError(message, where=loaded.where(field), hint=mistake.hint)


def _add(snapshot: Snapshot, kind: str, value: Object) -> None:
    """Add an object of the user to the cluster, in the place of the one with its name."""
    name = value["metadata"]["name"]

    def replaced(objects: Iterable[Object] | None) -> list[Object]:
        local = {**value, "metadata": {**value["metadata"], "namespace": snapshot.namespace}}
        return [*(one for one in objects or () if one["metadata"]["name"] != name), local]

    if kind == "DeviceClass":
        snapshot.classes = [*(one for one in snapshot.classes or () if one["metadata"]["name"] != name), value]
    elif kind == "ResourceClaimTemplate":
        snapshot.templates = replaced(snapshot.templates)
    elif kind == POD_GROUP:
        snapshot.groups = replaced(snapshot.groups)
    elif kind == "Pod":
        snapshot.pods = replaced(snapshot.pods)
    elif kind == "ResourceClaim" and snapshot.claim(name) is None:
        snapshot.claims = [*snapshot.claims, *replaced(())]


def _read_agent(args: argparse.Namespace) -> Snapshot:
    from dra_agent.cli.connection import connect
    from dra_agent.standalone.protocol import Get, State

    namespace = args.namespace or "default"
    kind = getattr(args, "kind", None)
    if kind not in (None, "claim"):
        raise UsageError(
            f"there are no {kind}s: this host's agent runs without Kubernetes",
            hint="name claim/NAME or give -f FILE, or name a cluster with --kubeconfig",
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

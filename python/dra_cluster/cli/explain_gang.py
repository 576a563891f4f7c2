"""`dra-agent explain job/NAME` and other objects with several pods: prints how many are placed, and why not more."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_agent.printable import printable
from dra_cluster.explain.composite_gang import gang_of_composite
from dra_cluster.explain.gang import gang_of_pods, gang_of_workload
from dra_cluster.explain.gang_explanation import explain_gang
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.kueue_admission import admission_of
from dra_cluster.explain.snapshot import Snapshot, group_name, parent_name
from dra_cluster.explain.workloads import COMPOSITE, POD_GROUP, WORKLOAD, PodSet, end_of, notes_of, pod_sets

MAX_SHOWN_COUNTS = 4
"""Nodes or alternatives of a kind of members that are named."""
MAX_SHOWN_RUNS = 6
"""Parts of an order that are named."""


def gang_of_object(snapshot: Snapshot, kind: str, value: Object) -> Gang:
    """Return the gang of an object of the cluster, with the pods that it has already."""
    name = value["metadata"]["name"]
    subject = f"{kind} {snapshot.namespace}/{name}"
    if kind == COMPOSITE or (kind == POD_GROUP and parent_name(value) and snapshot.composites is not None):
        return gang_of_composite(snapshot, subject, kind, value)
    if kind == POD_GROUP:
        pods = [pod for pod in snapshot.pods or () if group_name(pod) == name]
        gang = gang_of_pods(snapshot, subject, pods, group=value)
        if not pods:
            gang.problems.insert(0, "no pod names it in spec.schedulingGroup")
        return gang
    sets, end = pod_sets(kind, value), end_of(kind, value)
    gang = gang_of_workload(snapshot, subject, name, sets, pods=snapshot.pods or (), end=end)
    gang.notes += notes_of(kind, value)
    if kind == WORKLOAD:
        _add_admission(gang, snapshot, value)
    if not end and not all(one.finds_pods for one in sets):
        gang.notes.append("which pods it has already is not known; it is evaluated as if it had none")
    return gang


def gang_of_files(snapshot: Snapshot, users: Sequence[tuple[str, Object]], where: str) -> Gang:
    """Return the gang of the user's objects: of one workload, of a pod group, of a composite one, or of pods.

    Raises:
        UsageError: The files have none, or several.
    """
    if any(kind == COMPOSITE for kind, _ in users):
        return _composite_of_files(snapshot, users, where)
    workloads = [(kind, value) for kind, value in users if kind in _TEMPLATED]
    groups = [value for kind, value in users if kind == POD_GROUP]
    pods = [value for kind, value in users if kind == "Pod"]
    if len(workloads) + bool(pods) > 1 or (len(groups) > 1 and not workloads):
        raise UsageError(
            "there are several workloads, pod groups or sets of pods", where=where, hint="give one of them"
        )
    if workloads:
        kind, value = workloads[0]
        name = value["metadata"]["name"]
        subject, end = f"{kind} {snapshot.namespace}/{name}", end_of(kind, value)
        gang = gang_of_workload(snapshot, subject, name, pod_sets(kind, value), end=end)
        gang.notes += notes_of(kind, value)
        if kind == WORKLOAD:
            _add_admission(gang, snapshot, value)
        return gang
    if groups:
        return gang_of_object(snapshot, POD_GROUP, groups[0])
    return gang_of_pods(snapshot, f"{len(pods)} pods of {where}", pods)


def _composite_of_files(snapshot: Snapshot, users: Sequence[tuple[str, Object]], where: str) -> Gang:
    """Return the gang of the composite pod group that has no parent, with the pods of the user's workloads."""
    roots = [value for kind, value in users if kind == COMPOSITE and not parent_name(value)]
    if len(roots) > 1:
        raise UsageError("there are several composite pod groups without a parent", where=where, hint="give one")
    value = roots[0] if roots else next(value for kind, value in users if kind == COMPOSITE)
    templates: list[tuple[str, PodSet]] = []
    notes: list[str] = []
    for kind, one in users:
        if kind in _TEMPLATED and not end_of(kind, one):
            templates += [(one["metadata"]["name"], pods) for pods in pod_sets(kind, one)]
            notes += notes_of(kind, one)
    subject = f"{COMPOSITE} {snapshot.namespace}/{value['metadata']['name']}"
    gang = gang_of_composite(snapshot, subject, COMPOSITE, value, templates=templates)
    gang.notes += dict.fromkeys(notes)
    return gang


def _add_admission(gang: Gang, snapshot: Snapshot, value: Object) -> None:
    """Add what Kueue decides, and the flavors that restrict the nodes of each pod set."""
    if snapshot.kueue is None and gang.end:
        return
    if snapshot.kueue is None:
        gang.notes.append("Kueue's quota, flavors and topology are not evaluated")
        return
    admission = admission_of(snapshot, value, snapshot.kueue)
    gang.admission = admission
    is_single = len((value.get("spec") or {}).get("podSets") or ()) == 1
    for kind in gang.kinds:
        # The pods of a single pod set are named after the Workload.
        names: Iterable[str] = admission.flavors if is_single else [kind.pod_set]
        kind.flavors = next((admission.flavors[name] for name in names if name in admission.flavors), ())
    if snapshot.nodes is None and any(kind.flavors for kind in gang.kinds):
        admission.not_evaluated.append("node labels of flavors, as nodes are not known")


_TEMPLATED = ("Deployment", "ReplicaSet", "StatefulSet", "Job", "JobSet", WORKLOAD)


def run(args: argparse.Namespace, snapshot: Snapshot, gang: Gang) -> int:
    """Print the explanation; 0 if enough pods are placed, 1 if they are not."""
    from dra_agent.cli.output import emit
    from dra_agent.cli.terminal import progress

    with progress("evaluating the pods"):
        result = explain_gang(snapshot, gang, node=args.node, deadline=args.timeout)
    if args.output == "table":
        _print(result, everything=args.all_devices, node=args.node)
    else:
        emit(result, args.output)
    return 0 if result["fits"] else 1


def _print(result: Object, *, everything: bool, node: str | None) -> None:
    from dra_agent.cli.explain import print_details
    from dra_agent.cli.output import prints_names

    if prints_names():
        _print_kinds(result["kinds"])
        return
    print(printable(f"{result['subject']}: {result['summary']}", line=True))
    search = result["search"]
    if search is not None:
        print(printable(_search(search), line=True))
    for note in result["notes"]:
        print(printable(f"note: {note}", line=True))
    for event in result["events"]:
        print(printable(f"event {event}", line=True))
    if result["admission"] is not None:
        _print_admission(result["admission"])
    if result["groups"]:
        print()
        _print_groups(result["groups"])
    if result["kinds"]:
        print()
        _print_kinds(result["kinds"])
    if search is not None and search["found"]:
        print(f"\nwith another {' and '.join(search['differs'])}:")
        _print_kinds(search["kinds"])
    failure = result["failure"]
    if failure is None or failure["explanation"] is None:
        return
    print()
    if everything or node is not None:
        print(printable(f"pod {failure['member']} on node {failure['node']}, after the pods before it:", line=True))
        print_details(failure["explanation"], everything=everything)
    else:
        print(printable(f"--node {failure['node']} shows its devices for pod {failure['member']}", line=True))


def _search(search: Object) -> str:
    text = str(search["summary"])
    if "order" in search["differs"]:
        runs = [f"{run['kind']} ({run['members']})" for run in search["order"]]
        more = f", and {len(runs) - MAX_SHOWN_RUNS} more" if len(runs) > MAX_SHOWN_RUNS else ""
        text += f": {', '.join(runs[:MAX_SHOWN_RUNS])}{more}"
    if search["upstream"]:
        text += f"; kube-scheduler does not try this ({search['upstream']})"
    return text


def _print_admission(admission: Object) -> None:
    from dra_agent.cli.table import table

    columns = ("pod_set", "resource", "flavor", "needed", "used", "nominal", "borrowable", "result")
    if admission["quotas"]:
        print()
        print(printable(f"quota of ClusterQueue {admission['cluster_queue']}:", line=True))
        rows = [tuple(row[name] for name in columns) for row in admission["quotas"]]
        table(
            [name.replace("_", " ") for name in columns],
            rows,
            optional=("used", "nominal", "borrowable"),
            prose=("result",),
        )
    for flavor in admission["flavors"]:
        labels = ", ".join(f"{key}={value}" for key, value in flavor["node_labels"].items())
        print(printable(f"flavor {flavor['name']}: {f'nodes with {labels}' if labels else 'every node'}", line=True))


def _print_groups(groups: Sequence[Object]) -> None:
    from dra_agent.cli.table import table

    paths: dict[str | None, str] = {None: ""}
    rows = []
    for group in groups:
        path = f"{paths[group['parent']]}{group['name']}"
        what = "group" if group["kind"] == COMPOSITE else "pod"
        if group["kind"] == COMPOSITE:
            paths[group["name"]] = f"{path}/"
        needed = f"{group['minimum']} of {group['size']} {what}{'' if group['size'] == 1 else 's'}"
        nodes = group["topology"] and "=".join(filter(None, (group["topology"], group["value"])))
        result = group["reason"] or {True: "fits", False: "does not fit", None: "no result"}[group["fits"]]
        rows.append((path, needed, group["reached"], nodes, result))
    columns = ["group", "needs", "have a place", *(["nodes with"] if any(row[3] for row in rows) else []), "result"]
    table(columns, rows if len(columns) == 5 else [(*row[:3], row[4]) for row in rows], prose=("result",))


def _print_kinds(kinds: Iterable[Object]) -> None:
    from dra_agent.cli.table import table

    listed = list(kinds)
    rows = [(kind["name"], kind["members"], kind["running"], kind["placed"], _counts(kind["nodes"])) for kind in listed]
    columns = ["pods", "number", "on a node", "placed", "nodes"]
    if not any(kind["alternatives"] for kind in listed):
        table(columns, rows, prose=("nodes",))
        return
    chosen = [(*row, _counts(kind["alternatives"])) for row, kind in zip(rows, listed, strict=True)]
    table([*columns, "alternatives"], chosen, prose=("nodes", "alternatives"))


def _counts(counts: dict[str, int]) -> str:
    shown = [f"{name}: {count}" for name, count in list(counts.items())[:MAX_SHOWN_COUNTS]]
    more = [f"{len(counts) - MAX_SHOWN_COUNTS} more"] if len(counts) > MAX_SHOWN_COUNTS else []
    return ", ".join([*shown, *more])

"""`dra-agent explain job/NAME` and other objects with several pods: prints how many are placed, and why not more."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_agent.printable import printable
from dra_cluster.explain.gang import gang_of_pods, gang_of_workload
from dra_cluster.explain.gang_explanation import explain_gang
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.group_quotes import gang_of_composite
from dra_cluster.explain.kueue import quotes_of
from dra_cluster.explain.snapshot import Snapshot, group_name
from dra_cluster.explain.workloads import COMPOSITE, POD_GROUP, PodSet, end_of, notes_of, pod_sets

MAX_SHOWN_COUNTS = 4
"""Nodes or alternatives of a kind of members that are named."""
MAX_SHOWN_RUNS = 6
"""Parts of an order that are named."""


def gang_of_object(snapshot: Snapshot, kind: str, value: Object) -> Gang:
    """Return the gang of an object of the cluster, with the pods that it has already."""
    name = value["metadata"]["name"]
    subject = f"{kind} {snapshot.namespace}/{name}"
    if kind == COMPOSITE:
        return gang_of_composite(snapshot, subject, value)
    if kind == POD_GROUP:
        pods = [pod for pod in snapshot.pods or () if group_name(pod) == name]
        gang = gang_of_pods(snapshot, subject, pods, group=value)
        if not pods:
            gang.problems.insert(0, "no pod names it in spec.schedulingGroup")
        gang.quotes += quotes_of(snapshot.kueue, kind, value, pods)
        return gang
    sets, end = pod_sets(kind, value), end_of(kind, value)
    gang = gang_of_workload(snapshot, subject, name, sets, pods=snapshot.pods or (), end=end)
    gang.notes += notes_of(kind, value)
    gang.quotes += quotes_of(snapshot.kueue, kind, value, _pods(snapshot, sets))
    if not end and not all(one.finds_pods for one in sets):
        gang.notes.append("which pods it has already is not known; it is evaluated as if it had none")
    return gang


def gang_of_files(snapshot: Snapshot, users: Sequence[tuple[str, Object]], where: str) -> Gang:
    """Return the gang of the user's objects: of one workload, of a pod group, or of pods.

    Raises:
        UsageError: The files have none, or several.
    """
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
        subject, sets, end = f"{kind} {snapshot.namespace}/{name}", pod_sets(kind, value), end_of(kind, value)
        gang = gang_of_workload(snapshot, subject, name, sets, end=end)
        gang.notes += notes_of(kind, value)
        gang.quotes += quotes_of(snapshot.kueue, kind, value, _pods(snapshot, sets))
        return gang
    if groups:
        return gang_of_object(snapshot, POD_GROUP, groups[0])
    gang = gang_of_pods(snapshot, f"{len(pods)} pods of {where}", pods)
    gang.quotes += quotes_of(snapshot.kueue, "Pod", None, pods)
    return gang


def _pods(snapshot: Snapshot, sets: Sequence[PodSet]) -> list[Object]:
    """Return the pods of a workload, those that exist and the templates of others."""
    existing = [pod for pod in snapshot.pods or () if any(one.selects(pod) for one in sets)]
    return [*existing, *(one.template for one in sets)]


_TEMPLATED = ("Deployment", "ReplicaSet", "StatefulSet", "Job", "JobSet", "Workload")


def run(args: argparse.Namespace, snapshot: Snapshot, gang: Gang) -> int:
    """Print the explanation; 0 if enough pods are placed, 1 if they are not."""
    from dra_agent.cli.excluded import KnownExclusions
    from dra_agent.cli.output import emit
    from dra_agent.cli.terminal import progress
    from dra_agent.explain.row_budget import shorten

    with progress("evaluating the pods"):
        result = explain_gang(snapshot, gang, node=args.node, deadline=args.timeout)
        failure = result["failure"]
        if failure is not None:
            failure["excluded"] = KnownExclusions(args).of(failure["node"], failure["explanation"])
    if args.output == "table":
        _print(result, everything=args.all_devices, node=args.node)
    else:
        shown = [failure["explanation"]] if failure is not None and failure["explanation"] else []
        if omitted := shorten(shown, everything=args.all_devices):
            result["omitted"] = omitted
        emit(result, args.output)
    return 0 if result["fits"] else 1


def _print(result: Object, *, everything: bool, node: str | None) -> None:
    from dra_agent.cli.excluded import print_excluded
    from dra_agent.cli.explain import print_details
    from dra_agent.cli.output import prints_names
    from dra_cluster.cli.quotes import print_quotes

    if prints_names():
        _print_kinds(result["kinds"])
        return
    print(printable(f"{result['subject']}: {result['summary']}", line=True))
    search = result["search"]
    if search is not None:
        print(printable(_search(search), line=True))
    print_quotes(result["quotes"])
    for note in result["notes"]:
        print(printable(f"note: {note}", line=True))
    for event in result["events"]:
        print(printable(f"event {event}", line=True))
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
        print_excluded(failure["node"], failure["excluded"])
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

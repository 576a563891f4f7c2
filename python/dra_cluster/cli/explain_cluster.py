"""`dra-agent explain claim|pod NAME`: why it waits, on each node of the cluster. Nothing is changed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dra_agent import garbage_collection
from dra_agent.cli.explain import POD_KINDS
from dra_agent.printable import printable

if TYPE_CHECKING:
    from dra_agent.manifests import LoadedObject
    from dra_cluster.explain.snapshot import Snapshot

MAX_SHOWN_NODES = 20
"""Nodes that are listed individually; more are counted by their reasons."""


def run(args: argparse.Namespace) -> int:
    """Print the explanation; returns 0 if the object is allocated or fits, 1 if it does not.

    Raises UsageError if the object does not exist, and PermanentError if it may not be read.
    """
    from dra_agent.cli.object_names import CLAIM, POD, WORKLOADS
    from dra_cluster.cli.cluster_input import missing, read_snapshot

    snapshot = read_snapshot(args, args.name, workload=WORKLOADS.get(args.kind), with_kueue=args.kind != CLAIM)
    if (kind := WORKLOADS.get(args.kind)) is not None:
        from dra_cluster.cli.explain_gang import gang_of_object
        from dra_cluster.cli.explain_gang import run as run_gang

        workload = snapshot.workload(kind, args.name)
        if workload is None:
            raise missing(args, snapshot, args.kind, args.name)
        return run_gang(args, snapshot, gang_of_object(snapshot, kind, workload))
    subject = snapshot.claim(args.name) if args.kind == CLAIM else snapshot.pod(args.name)
    if subject is None:
        raise missing(args, snapshot, args.kind, args.name)
    return print_explanation(args, snapshot, subject, is_pod=args.kind == POD)


def run_files(args: argparse.Namespace, loaded: Sequence[LoadedObject]) -> int:
    """Explain a pod, or several pods that start together, in the cluster."""
    from dra_cluster.cli.cluster_input import read_users
    from dra_cluster.cli.explain_gang import gang_of_files
    from dra_cluster.cli.explain_gang import run as explain_gang

    # Each of these files may have objects of every kind.
    args.dump = [*args.dump, *args.slices, *args.classes, *args.allocated]
    snapshot, users = read_users(args, loaded, operation="explained", with_kueue=True)
    kinds = [kind for kind, _ in users if kind in POD_KINDS]
    if kinds == ["Pod"]:
        pod = next(value for kind, value in users if kind == "Pod")
        return print_explanation(args, snapshot, pod, is_pod=True)
    return explain_gang(args, snapshot, gang_of_files(snapshot, users, ", ".join(args.filename)))


def print_explanation(args: argparse.Namespace, snapshot: Snapshot, subject: dict[str, Any], *, is_pod: bool) -> int:
    """Print why a claim or pod waits; 0 where it is allocated or fits, 1 where it does not."""
    from dra_agent.cli.excluded import KnownExclusions
    from dra_agent.cli.output import emit
    from dra_agent.cli.terminal import progress
    from dra_agent.explain.row_budget import shorten
    from dra_cluster.explain.claim_explanation import explain_claim, explain_pod

    explain_object = explain_pod if is_pod else explain_claim
    with progress("evaluating the nodes"), garbage_collection.paused():
        result = explain_object(snapshot, subject, node=args.node, deadline=args.timeout)
        known = KnownExclusions(args)
        for entry in result["nodes"]:
            entry["excluded"] = () if entry["fits"] else known.of(entry["node"], entry["explanation"])
    if args.output == "table":
        _print(result, everything=args.all_devices, node=args.node)
    else:
        explanations = [entry["explanation"] for entry in result["nodes"] if entry["explanation"]]
        if omitted := shorten(explanations, everything=args.all_devices):
            result["omitted"] = omitted
        emit(result, args.output)
    return 0 if result["fits"] else 1


def _print(result: dict[str, Any], *, everything: bool, node: str | None) -> None:
    from dra_agent.cli.excluded import print_excluded
    from dra_agent.cli.output import prints_names
    from dra_cluster.cli.quotes import print_quotes
    from dra_cluster.explain.pending import shown_node

    if prints_names():
        for entry in result["nodes"]:
            if entry["fits"] and not entry["obstacles"]:
                print(printable(entry["node"], line=True))
        return
    kind = "pod" if "pod" in result else "claim"
    print(printable(f"{kind} {result[kind]}: {result['summary']}", line=True))
    print_quotes(result.get("quotes", ()))
    for note in result["notes"]:
        print(printable(f"note: {note}", line=True))
    for pod in result["pods"]:
        print(_pod(pod))
    if kind == "pod":
        for claim in result["claims"]:
            name = f"{claim['name']} ({claim['claim']})" if claim["claim"] else claim["name"]
            print(printable(f"claim {name}: {'; '.join(claim['problems']) or claim['summary']}", line=True))
    for event in result["events"]:
        print(printable(f"event {event}", line=True))
    if result["nodes"]:
        _print_nodes(result["nodes"])
    chosen = shown_node(result)
    if chosen is not None and (node is not None or not chosen["fits"]):
        from dra_agent.cli.explain import print_details

        print("\n" + printable(f"node {chosen['node']}:", line=True))
        print_details(chosen["explanation"], everything=everything)
        print_excluded(chosen["node"], chosen["excluded"])
        if others := len(result["nodes"]) - 1:
            print(f"\n--node NAME shows another of {others + 1} nodes")
    for entry in result["nodes"]:
        if entry["excluded"] and entry is not chosen:
            print_excluded(entry["node"], entry["excluded"])
    if result.get("holders"):
        _print_holders(result["holders"])


def _pod(pod: dict[str, Any]) -> str:
    text = f"pod {pod['pod']}: {pod['phase'] or 'no phase'}"
    if pod["node"]:
        text += f" on node {pod['node']}"
    if pod["deleting"]:
        text += f", being deleted since {pod['deleting']}"
    if pod["scheduler"]:
        text += f"; scheduler: {pod['scheduler']}"
    lines = [text, *(f"  container waits: {reason}" for reason in pod["waiting"])]
    return "\n".join(printable(line, line=True) for line in lines)


def _print_nodes(nodes: list[dict[str, Any]]) -> None:
    from dra_agent.cli.table import table

    print()
    if len(nodes) <= MAX_SHOWN_NODES:
        rows = [(entry["node"], entry["devices"], "\n".join(entry["obstacles"])) for entry in nodes]
    else:
        same_reasons: dict[tuple[str, str], list[str]] = {}
        for entry in nodes:
            same_reasons.setdefault((entry["devices"], "\n".join(entry["obstacles"])), []).append(entry["node"])
        rows = [
            (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", *reasons)
            for reasons, names in sorted(same_reasons.items(), key=lambda item: -len(item[1]))
        ]
    table(("node", "devices", "not about devices"), rows, prose=("devices", "not about devices"))


def _print_holders(holders: list[dict[str, Any]]) -> None:
    from dra_agent.cli.table import table

    print("\nwho holds the devices that match:")
    table(
        ("claim", "reserved for", "devices"),
        (
            (holder["claim"], ", ".join(holder["reserved_for"]) or "none", ", ".join(_short(holder["devices"])))
            for holder in holders
        ),
        prose=("reserved for", "devices"),
    )


def _short(devices: list[str]) -> list[str]:
    return devices if len(devices) <= 4 else [*devices[:3], f"{len(devices) - 3} more"]

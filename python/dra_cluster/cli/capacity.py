"""`dra-agent capacity`: how many more copies of a pod, claim or template fit, and what limits each node."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dra_agent import garbage_collection
from dra_agent.cli.flags import add_dump_flag, add_filename_flags, add_namespace_flags, add_timeout_flag
from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import examples
from dra_agent.printable import printable

if TYPE_CHECKING:
    from dra_cluster.explain.capacity import Copy
    from dra_cluster.explain.snapshot import Snapshot

EPILOG = (
    examples(
        ("capacity pod/train -n team-a", "how many more pods like this one fit in the cluster"),
        ("capacity template/one-gpu --if cordon=node-1", "how many claims of a template fit without a node"),
        ("capacity -f job.yaml --replicas 16", "whether 16 pods of a workload start together"),
        ("capacity -f claim.yaml --from cluster.json --if add=4:dgx-h100", "from files, with four more nodes"),
    )
    + """
Files of a cluster: kubectl get resourceslices,deviceclasses,nodes -o json > cluster.json
exit code: 0 the copies fit, 1 they do not or that is not known, 2 wrong use
"""
)
DEADLINE_S = 10
MAX_SHOWN_NODES = 20
"""Nodes that are listed individually; more are grouped by their result."""
MAX_LIMIT = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this subcommand."""
    from dra_agent.cli.connection import add_connection_flags

    parser.epilog = EPILOG
    add_object_argument(parser, nargs="*")
    add_namespace_flags(parser, default="that of the kubeconfig's context")
    add_filename_flags(parser, "a ResourceClaim, ResourceClaimTemplate, Pod or workload with one pod template")
    add_dump_flag(parser)
    add_query_flags(parser)
    add_connection_flags(parser, cluster=True)
    add_output_flag(parser)


def add_object_argument(parser: argparse.ArgumentParser, *, nargs: str) -> None:
    """Add the argument that names an object of a cluster."""
    parser.add_argument(
        "object", nargs=nargs, metavar="OBJECT", help="pod/NAME, claim/NAME or template/NAME, also as two words"
    )


def add_query_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe the query."""
    parser.add_argument(
        "--if",
        dest="changes",
        action="append",
        default=[],
        metavar="CHANGE",
        help="as if it was so: cordon=NODE, uncordon=NODE, untaint=KEY[:NODE], delete-claim=NAMESPACE/NAME, "
        "add=N:KIND with a simulated profile, a recording or a file of slices, or replace=NODE:KIND for a node with "
        "its devices or the partitions of --config; may be repeated",
    )
    parser.add_argument("--node", metavar="NODE", help="only this node")
    parser.add_argument(
        "--replicas", type=_count, metavar="N", help="how many copies are needed (default: those of the workload, or 1)"
    )
    parser.add_argument(
        "--limit",
        type=_count,
        default=1000,
        metavar="N",
        help="maximum number of copies on a node; not less than the copies that are needed (default 1000)",
    )
    add_timeout_flag(parser, DEADLINE_S, purpose="for the result")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MAX_LIMIT):
        raise argparse.ArgumentTypeError(f"{text} is not a number between 1 and {MAX_LIMIT}")
    return int(text[:9])


def run(args: argparse.Namespace) -> int:
    """Print the capacity; 0 if the copies fit, 1 if they do not or if that is not known."""
    from dra_cluster.cli.capacity_input import read_query
    from dra_cluster.cli.capacity_nodes import node_source
    from dra_cluster.explain.changes import apply_changes, parse_change

    changes = [parse_change(text) for text in args.changes]
    snapshot, find = read_query(args)
    changed = apply_changes(snapshot, changes, node_source(args))
    return _print_result(args, changed, find(changed))


def _print_result(args: argparse.Namespace, snapshot: Snapshot, copy: Copy) -> int:
    from dra_agent.cli.output import emit
    from dra_agent.cli.terminal import progress
    from dra_cluster.explain.capacity import capacity

    needed = args.replicas or copy.replicas
    limit = max(args.limit, min(needed, MAX_LIMIT))
    with progress("evaluating the nodes"), garbage_collection.paused():
        result = capacity(snapshot, copy, node=args.node, limit=limit, deadline=args.timeout)
    # A partial total is a lower bound.
    enough = result["total"] is None or result["total"] >= needed
    unknown = result["total_is_partial"] and (result["total"] is None or not enough)
    fits = None if unknown else enough
    result = {**result, "changes": args.changes, "replicas": needed, "fits": fits}
    if args.output == "table":
        _print(result)
    else:
        emit(result, args.output)
    return 0 if result["fits"] else 1


def _print(result: dict[str, Any]) -> None:
    from dra_agent.cli.output import prints_names
    from dra_agent.cli.table import table

    if prints_names():
        table(("node",), [(row["node"],) for row in result["nodes"] if row["copies"]])
        return
    print(printable(f"{result['subject']}: {_summary(result)}", line=True))
    for note in result["notes"]:
        print(printable(f"note: {note}", line=True))
    if not result["nodes"]:
        return
    print()
    columns = ("node", "copies", "limited by", "why no more")
    table(columns, _table_rows(result["nodes"]), optional=("limited by",), prose=("why no more",))


def _summary(result: dict[str, Any]) -> str:
    if result["problems"]:
        return "; ".join(result["problems"])
    if result["unlimited"]:
        return str(result["unlimited"])
    total, nodes = result["total"], result["nodes"]
    if not nodes:
        return "fits nowhere: there is no node"
    at_least = "at least " if result["total_is_partial"] else ""
    usable = sum(bool(row["copies"]) for row in nodes)
    text = (
        f"{at_least}{total} more fit{'s' if total == 1 else ''} on {usable} of {len(nodes)} nodes, "
        f"at most {result['largest_on_one_node']} on one"
    )
    if not total and not result["total_is_partial"]:
        text = f"fits on none of {len(nodes)} nodes" if len(nodes) > 1 else f"does not fit on node {nodes[0]['node']}"
    if any(row["has_network_devices"] for row in nodes):
        text += "; nodes share devices, so a node has its number only if no copy is on another"
    if result["fits"] is None:
        start = f"{result['replicas']} start together" if result["replicas"] > 1 else "one more fits"
        text += f"; whether {start} is not known"
    elif result["replicas"] > 1:
        text += f"; {result['replicas']} {'start' if result['fits'] else 'do not start'} together"
    if result["unexamined"]:
        text += f"; {len(result['unexamined'])} nodes have no complete result in time"
    return text


def _table_rows(nodes: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    from dra_agent.cli.output import is_wide

    rows: list[tuple[object, ...]] = [
        (
            row["node"],
            f"{row['copies']}+" if row["at_limit"] or not row["reason"] else row["copies"],
            ", ".join(cause.replace("_", " ") for cause in row["causes"]),
            row["reason"] or ("the limit of copies" if row["at_limit"] else "no complete result in time"),
        )
        for row in nodes
    ]
    if is_wide() or len(rows) <= MAX_SHOWN_NODES:
        return rows
    same: dict[tuple[object, ...], list[str]] = {}
    for name, *rest in rows:
        same.setdefault(tuple(rest), []).append(str(name))
    return [
        (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", *rest)
        for rest, names in sorted(same.items(), key=lambda item: -len(item[1]))
    ]

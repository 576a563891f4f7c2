"""`dra-agent explain`: prints for each request and device why it is not allocated. It changes nothing."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dra_agent.api_object import allocation_of, full_name
from dra_agent.cli.flags import add_dump_flag, add_filename_flags, add_namespace_flags, add_timeout_flag
from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import Parser, examples
from dra_agent.printable import printable

EPILOG = (
    examples(
        ("explain pod/train -n team-a", "why a pod of the cluster waits for its claims"),
        ("explain train -n team-a", "why a claim is not allocated, on a cluster or on this host"),
        (
            "explain job/train -n team-a",
            "whether all pods of a workload or pod group start together, and which one does not",
        ),
        ("explain -f claim.yaml", "query the agent that runs here in standalone mode"),
        ("explain -f claim.yaml --slices slices.yaml --classes classes.yaml --node n1", "without an agent"),
        ("explain -f job.yaml --from cluster.yaml", "a workload from a file, in a cluster from files"),
    )
    + """
Files as kubectl prints them: kubectl get resourceslices -o yaml > slices.yaml
Workloads: deployment, replicaset, statefulset, job, jobset, podgroup, compositepodgroup, workload (of Kueue).
exit code: 0 it fits or is allocated, 1 it is not, 2 wrong use
"""
)

DEADLINE_S = 10
POD_KINDS = (
    "Pod",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "Job",
    "JobSet",
    "PodGroup",
    "CompositePodGroup",
    "Workload",
)
"""Kinds that are explained in a whole cluster."""
MAX_NAMED_DEVICES = 3
"""Devices with the same reason that are named."""
MAX_REASONS = 50
"""Reasons of one request that are shown, one row each."""
NO_SLICES = (
    "does not fit: no ResourceSlices are published, so there are no devices to allocate; check that a DRA driver runs "
    "on the node and publishes: `kubectl get resourceslices`, and `dra-agent doctor` on the node"
)


def add_arguments(parser: Parser) -> None:
    """Declare the flags of this subcommand."""
    from dra_agent.cli.connection import add_connection_flags

    parser.epilog = EPILOG
    parser.add_argument(
        "object",
        nargs="*",
        metavar="OBJECT",
        help="claim/NAME, pod/NAME, or a workload such as job/NAME, also as two words; a NAME is a claim's",
    )
    add_namespace_flags(parser, default="that of the kubeconfig's context")
    add_filename_flags(parser, "ResourceClaims, a Pod or a workload to explain, with templates and DeviceClasses")
    add_dump_flag(parser)
    files = parser.add_flag_group(
        "without an agent", "files as kubectl prints them, YAML or JSON; each may be repeated"
    )
    files.add_argument(
        "--slices", action="append", default=[], metavar="FILE", help="ResourceSlices, and perhaps Nodes"
    )
    files.add_argument("--classes", action="append", default=[], metavar="FILE", help="DeviceClasses")
    files.add_argument(
        "--allocated", action="append", default=[], metavar="FILE", help="ResourceClaims that hold devices"
    )
    files.add_argument("--node", metavar="NAME", help="the node to allocate on")
    parser.add_argument("--all-devices", action="store_true", help="a row for each device, also of other classes")
    add_timeout_flag(parser, DEADLINE_S, purpose="for the result")
    add_connection_flags(parser, cluster=True)
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation; returns 0 if the claims fit, 1 if they do not.

    Raises UsageError for flags that do not belong together.
    """
    from dra_agent.cli.object_names import CLAIM, POD, WORKLOADS, parse_pair
    from dra_agent.errors import UsageError

    if bool(args.object) == bool(args.filename):
        raise UsageError(
            "files and an object of a cluster at once" if args.filename else "nothing to explain",
            hint="give -f FILE, or claim/NAME, or pod/NAME, or a workload such as job/NAME",
        )
    if args.filename:
        return _explain_files(args)
    args.kind, namespace, args.name = parse_pair(args.object, kinds=(CLAIM, POD, *WORKLOADS))
    args.namespace = namespace or args.namespace
    for flag in ("slices", "classes", "allocated"):
        if getattr(args, flag):
            raise UsageError(f"--{flag} is for files", hint=f"leave it out, or give the {args.kind} with -f")
    from dra_agent.cli.explain_standalone import agent_without_cluster
    from dra_agent.cli.explain_standalone import run as explain_standalone

    if not args.dump and agent_without_cluster(args):
        return explain_standalone(args)
    from dra_agent.agent.distributions import CLUSTER, load

    code: int = load(CLUSTER, "cli.explain_cluster", f"explain {args.kind} in a cluster").run(args)
    return code


def _explain_files(args: argparse.Namespace) -> int:
    from dra_agent.cli.excluded import KnownExclusions
    from dra_agent.cli.files import filenames
    from dra_agent.cli.output import emit
    from dra_agent.errors import UsageError
    from dra_agent.explain import explain, read_inputs
    from dra_agent.explain.gates import derived_attributes, gates_in_use, notes_of
    from dra_agent.explain.row_budget import shorten
    from dra_agent.explain.search_time import search_s
    from dra_agent.manifests import load_manifests

    users = [one for path in filenames(args) for one in load_manifests(path, strict=False)]
    if any(one.kind in POD_KINDS for one in users):
        from dra_agent.agent.distributions import CLUSTER, load

        code: int = load(CLUSTER, "cli.explain_cluster", "explain of a pod").run_files(args, users)
        return code
    if args.dump:
        raise UsageError("--from is for pods and workloads", hint="give the cluster with --slices and --classes")
    inputs = read_inputs(users, classes=args.classes, slices=args.slices, allocated=args.allocated)
    state = _state_of_files(args, inputs) if args.slices else _state_of_agent(args, inputs)
    own = {full_name(claim) for claim in inputs.claims}
    for name in sorted(own & {full_name(claim) for claim in state["allocated"] if allocation_of(claim)}):
        print(f"claim {name} is allocated already; this is the result for a claim that is not", file=sys.stderr)
    state["allocated"] = [claim for claim in state["allocated"] if full_name(claim) not in own]
    gates = gates_in_use(state["slices"])
    for note in notes_of(gates) if args.slices else ():
        print(f"note: {note}", file=sys.stderr)
    reason = derived_attributes(inputs.claims) if inputs.slices else None
    if reason:
        # Of a cluster, whose kube-scheduler may have them. The agent of a host allocates itself, and has none.
        explanation = _not_evaluated(state["node"], reason)
    else:
        seconds = search_s(args.timeout, inputs.claims)
        explanation = explain(claims=inputs.claims, gates=gates, deadline=seconds, **state)
    if args.slices and not inputs.slices:
        explanation["summary"] = NO_SLICES
    if not args.slices:
        explanation["excluded"] = KnownExclusions(args).of(explanation["node"], explanation)
    if args.output == "table":
        _print(explanation, everything=args.all_devices)
    else:
        if omitted := shorten([explanation], everything=args.all_devices):
            explanation["omitted"] = omitted
        emit(explanation, args.output)
    return 0 if explanation["fits"] else 1


def _not_evaluated(node: str | dict[str, Any], reason: str) -> dict[str, Any]:
    name = node if isinstance(node, str) else node["metadata"]["name"]
    summary = f"is not evaluated on node {name}: {reason}"
    return {
        "node": name,
        "fits": False,
        "error": None,
        "summary": summary,
        "claims": [],
        "pools": [],
        "results": [],
    }


def _state_of_files(args: argparse.Namespace, inputs: Any) -> dict[str, Any]:
    from dra_agent.errors import UsageError

    name = args.node or _only_node(inputs.slices)
    if name is None and not inputs.slices:
        name = "any"
    if name is None:
        raise UsageError("the slices are of several nodes, or of none", hint="choose the node with --node NAME")
    return {
        "node": inputs.node(name),
        "classes": inputs.classes,
        "slices": inputs.slices,
        "allocated": inputs.allocated,
    }


def _only_node(slices: list[dict[str, Any]]) -> str | None:
    names = {name for entry in slices if (name := entry.get("spec", {}).get("nodeName"))}
    return names.pop() if len(names) == 1 else None


def _state_of_agent(args: argparse.Namespace, inputs: Any) -> dict[str, Any]:
    """Return the state of the running agent. Classes and claims of the files replace its own."""
    from dra_agent.cli.connection import connect
    from dra_agent.errors import UsageError
    from dra_agent.standalone.protocol import State

    for flag in ("classes", "allocated", "node"):
        if getattr(args, flag):
            raise UsageError(f"--{flag} needs --slices", hint="without --slices the running agent provides everything")
    with connect(args) as agent:
        state = agent.call(State())
    given_names = {entry["metadata"]["name"] for entry in inputs.classes}
    known = [entry for entry in state["classes"] if entry["metadata"]["name"] not in given_names]
    return {
        "node": state["node"],
        "classes": inputs.classes + known,
        "slices": state["slices"],
        "allocated": state["allocated"],
    }


def _print(explanation: dict[str, Any], *, everything: bool) -> None:
    from dra_agent.cli.excluded import print_excluded
    from dra_agent.cli.output import prints_names

    if prints_names():
        print_allocated(explanation)
        return
    print(printable(explanation["summary"], line=True))
    print_details(explanation, everything=everything)
    # Files of a cluster are about no host.
    print_excluded(explanation["node"], explanation.get("excluded", ()))


def print_allocated(explanation: dict[str, Any]) -> None:
    """Print the names of the devices that the claims get; none if they do not fit."""
    if not explanation["fits"]:
        return
    for claim in explanation["claims"]:
        for request in claim["requests"]:
            for device in request["devices"]:
                if device["allocated"]:
                    print(printable(device["device"], line=True))


def print_details(explanation: dict[str, Any], *, everything: bool) -> None:
    """Print why devices of one node are not allocated, by reason, with `everything` device by device."""
    for pool in explanation["pools"]:
        if pool["problem"]:
            print(printable(f"pool {pool['driver']}/{pool['pool']}: {pool['problem']}", line=True))
    for claim in explanation["claims"]:
        print("\n" + printable(f"claim {claim['claim']}: {claim['summary']}", line=True))
        for constraint in claim["constraints"]:
            print(printable(_constraint(constraint), line=True))
        for request in claim["requests"]:
            described = f"request {request['request']} ({_describe_request(request)}): {request['summary']}"
            print("\n" + printable(described, line=True))
            devices = request["devices"]
            # If no device is of the class, the reason is the answer.
            shown = [device for device in devices if everything or not _of_another_class(device)] or devices
            is_shortened = _print_devices(shown, everything=everything) if shown else False
            if hidden := len(devices) - len(shown):
                more = f"{hidden} more device{' is' if hidden == 1 else 's are'}"
                print(f"{more} not of class {request['class']}; --all-devices shows them")
            elif is_shortened:
                print("--all-devices shows every device")


def _print_devices(devices: list[dict[str, Any]], *, everything: bool) -> bool:
    """Print a row for each device, or for each reason; return True if names were left out."""
    from dra_agent.cli.table import table

    rows = [_row(device) for device in devices]
    if everything:
        table(("device", "pool", "verdict", "why"), rows, optional=("pool",), prose=("why",))
        return False
    groups: dict[tuple[str, str], list[str]] = {}
    for name, _, verdict, why in rows:
        groups.setdefault((verdict, why), []).append(name)
    shown = list(groups.items())[:MAX_REASONS]
    grouped = ((verdict, len(names), _some(names), why) for (verdict, why), names in shown)
    table(("verdict", "count", "devices", "why"), grouped, prose=("devices", "why"))
    if more := len(groups) - len(shown):
        print(f"{more} more reasons")
        return True
    return any(len(names) > MAX_NAMED_DEVICES for names in groups.values())


def _some(names: list[str]) -> str:
    if len(names) <= MAX_NAMED_DEVICES:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMED_DEVICES])} and {len(names) - MAX_NAMED_DEVICES} more"


def _of_another_class(device: dict[str, Any]) -> bool:
    return any(
        rejection["kind"] == "selector" and rejection["owner"] != "request" and rejection["error"] is None
        for rejection in device["rejections"]
    )


def _describe_request(request: dict[str, Any]) -> str:
    count = "all devices" if request["all"] else f"{request['needed']} device{'' if request['needed'] == 1 else 's'}"
    return f"class {request['class']}, {count}{', admin access' if request['admin_access'] else ''}"


def _constraint(constraint: dict[str, Any]) -> str:
    kind = "distinct" if constraint["distinct"] else "same"
    values = ", ".join(f"{entry['value']}: {len(entry['devices'])}" for entry in constraint["values"])
    text = f"constraint: {kind} {constraint['attribute']} for {', '.join(constraint['requests']) or 'no request'}"
    return f"{text} (available devices by value: {values or 'none'})"


def _row(device: dict[str, Any]) -> tuple[str, str, str, str]:
    verdict = "allocated" if device["allocated"] else "free" if device["accepted"] else "rejected"
    why = "\n".join(printable(rejection["message"], line=True) for rejection in device["rejections"])
    return device["device"], device["pool"], verdict, why

"""`kubectl dra`: claims, explanations, reclaims and topology of a cluster, from any machine with a kubeconfig.

kubectl runs the program `kubectl-dra` for it. No agent is needed on the machine: all of it is read from the API server.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
from collections.abc import Sequence

from dra_agent import revision
from dra_agent.cli.capacity import add_object_argument, add_query_flags
from dra_agent.cli.capacity import run as capacity
from dra_agent.cli.explain import DEADLINE_S
from dra_agent.cli.flags import add_namespace_flags, add_timeout_flag, add_watch_flag
from dra_agent.cli.main import exit_code
from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import Parser, add_group_examples, examples
from dra_agent.cli.terminal import guarded
from dra_agent.cli.top import add_display_flags
from dra_agent.cli.top_cluster import add_cluster_flags

PROGRAM = "kubectl dra"
COMPLETE = "__complete"
"""The first word of a call by `kubectl_complete-dra`, which kubectl runs to complete words of a command line."""
_EXAMPLES = {
    "claims": (
        ("claims -A", "which claim holds which device of the cluster, and which pods use it"),
        ("claims --node node-1 --watch", "the claims of a node, and their changes"),
    ),
    "explain": (
        ("explain pod/train", "why a pod waits for its claims"),
        ("explain claim/train -n team-a --all-devices", "why a claim is not allocated, device by device"),
        ("explain job/train", "whether all pods of a workload or pod group start together, and which one does not"),
    ),
    "capacity": (
        ("capacity pod/train", "how many more pods like this one fit, node by node"),
        ("capacity template/one-gpu --if cordon=node-1", "how many claims of a template fit without a node"),
    ),
    "reclaim": (
        ("reclaim status", "nodes that are being reclaimed, and their claims"),
        ("reclaim status node-1 -o json", "one node, for programs"),
    ),
    "top": (
        ("top --show nodes --once", "what the devices of each node use now, if telemetry is on"),
        ("top --sort idle -o json", "values of devices and claims, for programs"),
    ),
    "topology": (
        ("topology node-1", "published devices of a node by NUMA node and PCIe root, and the claims that hold them"),
    ),
}
_SUMMARIES = {
    "claims": "show the claims that hold devices, and the pods that use them",
    "explain": "explain why a pod, claim or workload waits, node by node",
    "capacity": "count how many more copies of a pod or claim fit",
    "reclaim": "show which nodes are being reclaimed",
    "top": "show what devices and claims use now, live, if telemetry is on",
    "topology": "show the devices of a node by NUMA node and PCIe root",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes are the same as in dra-agent."""
    with guarded():
        return exit_code(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def build_parser() -> Parser:
    """Build the parser of the plugin."""
    parser = Parser(prog=PROGRAM, description="Shows devices and claims of Dynamic Resource Allocation in a cluster.")
    parser.add_argument("--version", action="version", version=f"kubectl-dra {revision.describe()}")
    parser.add_commands(dest="command", metavar="COMMAND")
    parsers = {
        name: parser.add_command(
            name,
            summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=examples(*_EXAMPLES[name], program=PROGRAM),
        )
        for name, summary in _SUMMARIES.items()
    }
    add_namespace_flags(parsers["claims"], default="that of the kubeconfig's context", every=True)
    parsers["claims"].add_argument("--node", metavar="NODE", help="only devices of this node")
    add_watch_flag(parsers["claims"])
    explain = parsers["explain"]
    explain.add_argument(
        "object", nargs="+", metavar="OBJECT", help="pod/NAME, claim/NAME, or a workload such as job/NAME"
    )
    add_namespace_flags(explain, default="that of the kubeconfig's context")
    explain.add_argument("--node", metavar="NODE", help="show the devices of this node")
    explain.add_argument("--all-devices", action="store_true", help="a row for each device, also of other classes")
    add_timeout_flag(explain, DEADLINE_S, purpose="for the result")
    add_object_argument(parsers["capacity"], nargs="+")
    add_namespace_flags(parsers["capacity"], default="that of the kubeconfig's context")
    add_query_flags(parsers["capacity"])
    parsers["topology"].add_argument("node", metavar="NODE", help="NAME or node/NAME")
    add_display_flags(parsers["top"])
    add_cluster_flags(parsers["top"])
    parsers["top"].set_defaults(all_nodes=True)
    parsers["reclaim"].add_commands(dest="verb", metavar="VERB")
    status = parsers["reclaim"].add_command(
        "status", _SUMMARIES["reclaim"], epilog=examples(*_EXAMPLES["reclaim"], program=PROGRAM)
    )
    status.add_argument("node", nargs="?", metavar="NODE", help="NAME or node/NAME; without, every node")
    for command in (parsers["claims"], explain, parsers["capacity"], parsers["top"], parsers["topology"], status):
        command.add_argument(
            "--kubeconfig", metavar="FILE", help="credentials (default: $KUBECONFIG, or ~/.kube/config)"
        )
        command.add_argument(
            "--context", metavar="CONTEXT", help="context of the kubeconfig (default: the current one)"
        )
        command.set_defaults(is_plugin=True)
        add_output_flag(command)
    add_group_examples(parsers["reclaim"])
    add_group_examples(parser)
    return parser


def _complete(words: Sequence[str]) -> int:
    """Print the candidates for the last word, and what the shell does, as kubectl expects it of a plugin.

    Names of objects are not among them. Source: k8s.io/kubectl pkg/cmd/plugin/plugin_completion.go, and the
    ShellCompDirective of github.com/spf13/cobra.
    """
    import argcomplete

    from dra_agent.cli.completion import Candidates, ValueCompleter

    files, no_files, directories = 0, 4, 16
    directive = no_files

    class Completer(ValueCompleter):
        """Lets kubectl's script complete paths, and reads nothing."""

        def files(self, prefix: str) -> Candidates:
            nonlocal directive
            directive = files
            return {}

        def directories(self, prefix: str) -> Candidates:
            nonlocal directive
            directive = directories
            return {}

        def names(self, kind: str, args: argparse.Namespace) -> Candidates:
            return {}

    # As the script of argcomplete for fish, whose candidates are not quoted either.
    line = shlex.join(("kubectl-dra", *words[:-1])) + f" {shlex.quote(words[-1]) if words and words[-1] else ''}"
    os.environ |= {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "fish", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    os.environ |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_DFS": "\t", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    candidates = io.StringIO()
    argcomplete.autocomplete(
        build_parser(),
        always_complete_options=False,
        exit_method=lambda code: None,
        output_stream=candidates,
        default_completer=Completer(),
    )
    for candidate in filter(None, candidates.getvalue().split("\n")):
        print(candidate.rstrip("\t"))
    print(f":{directive}")
    return 0


def _run(arguments: Sequence[str]) -> int:
    if arguments[:1] == [COMPLETE]:
        return _complete(arguments[1:])
    args = build_parser().parse_args(arguments)
    if args.command == "claims":
        from dra_agent.cli.cluster_claims import print_cluster
        from dra_agent.cli.connection import namespace_of

        return print_cluster(args, namespace=None if args.all_namespaces else namespace_of(args), node=args.node)
    if args.command == "explain":
        from dra_agent.cli.explain_cluster import run as explain
        from dra_agent.cli.object_names import CLAIM, POD, WORKLOADS, parse_pair

        args.kind, namespace, args.name = parse_pair(args.object, kinds=(POD, CLAIM, *WORKLOADS))
        args.namespace = namespace or args.namespace
        return explain(args)
    if args.command == "capacity":
        return capacity(args)
    if args.command == "top":
        from dra_agent.cli.top import CLUSTER_INTERVAL_S, show
        from dra_agent.cli.top_cluster import read_cluster

        return show(lambda: read_cluster(args), args, CLUSTER_INTERVAL_S)
    from dra_agent.cli.cluster_nodes import print_reclaims, print_topology
    from dra_agent.cli.object_names import NODE, parse

    node = None if args.node is None else parse(args.node, kinds=(NODE,)).name
    if node is not None and args.command == "topology":
        return print_topology(args, node)
    return print_reclaims(args, node)

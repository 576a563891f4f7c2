"""The flags of `dra-agent slices template`, which the distribution for clusters prints."""

from __future__ import annotations

import argparse

from dra_agent.errors import UsageError

CLUSTER = object()
"""The value of `--compare` without a file."""
PLACEHOLDER = "node-name"
"""The name of the node in a template, and so the first part of the names of its pools."""
SLICES, CLUSTER_API, KARPENTER = "slices", "cluster-api", "karpenter"
FORMS = (SLICES, CLUSTER_API, KARPENTER)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word `template` and the flags that belong to it."""
    parser.add_argument(
        "template",
        nargs="?",
        choices=("template",),
        help="print what every node of this kind has, with a placeholder for the node's name",
    )
    parser.add_argument(
        "--form",
        choices=FORMS,
        default=None,
        help="template: ResourceSlices (default), annotations for Cluster Autoscaler with Cluster API, or the devices "
        "of an instance type for a cloud provider of Karpenter",
    )
    parser.add_argument(
        "--compare",
        nargs="?",
        const=CLUSTER,
        metavar="FILE",
        default=None,
        help="template: name what differs from the slices of the node --node in a file of kubectl, or - for standard "
        "input; without FILE in the cluster of --kubeconfig; exit code 1 if anything does",
    )
    parser.add_argument("--node", metavar="NODE", help="the node to compare with (default: that of --node-name)")
    parser.add_argument("--context", metavar="CONTEXT", help="context of the kubeconfig (default: its current one)")


def check(args: argparse.Namespace) -> None:
    """Refuse flags that do not belong together.

    Raises:
        UsageError: A flag of the template without the word, or one that a template cannot have.
    """
    if not args.template and (args.compare is not None or args.form is not None):
        flag = "--form" if args.compare is None else "--compare"
        raise UsageError("belongs to a template", where=flag, hint="write `dra-agent slices template`")
    _check_comparison(args)
    if not args.template:
        return
    if args.watch:
        raise UsageError("a template does not change", where="--watch")
    if args.compare is not None and args.form not in (None, SLICES):
        raise UsageError("only slices can be compared", where=f"--form {args.form}")


def _check_comparison(args: argparse.Namespace) -> None:
    for flag in ("node", "kubeconfig", "context"):
        if getattr(args, flag) is None:
            continue
        if args.compare is None:
            raise UsageError("belongs to a comparison", where=f"--{flag}", hint="write --compare too")
        if args.compare is not CLUSTER and flag != "node":
            raise UsageError("a file and a cluster at once", where=f"--{flag}", hint="write --compare without a file")

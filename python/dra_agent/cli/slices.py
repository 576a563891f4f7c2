"""`dra-agent slices`: the ResourceSlices that describe a host, as the agent would publish them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from dra_agent.cli.flags import add_watch_flag
from dra_agent.cli.output import add_output_flag, emit, prints_names
from dra_agent.cli.parser import examples
from dra_agent.cli.table import Rows
from dra_agent.cli.terminal import progress

if TYPE_CHECKING:
    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.host import Host
    from dra_agent.slices import DesiredSlices

EPILOG = examples(
    ("slices", "pools and slices of this host"),
    ("slices --simulate dgx-h100 -o yaml", "the objects in the format of `kubectl get resourceslices -o yaml`"),
    ("slices -o json > slices.json", "for `dra-agent explain --slices slices.json`"),
    ("slices --watch", "slices as they change"),
    ("slices template --simulate dgx-h100", "what every node of a kind publishes, for autoscalers"),
    ("slices template --simulate dgx-h100 --compare --node node-7", "how a node of the cluster differs from it"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this subcommand."""
    from dra_agent.agent.config import HOST_FLAGS, add_flags
    from dra_agent.cli import template_flags

    parser.description = "Show the ResourceSlices that describe this host. Nothing is published."
    parser.epilog = EPILOG
    template_flags.add_arguments(parser)
    add_watch_flag(parser)
    add_output_flag(parser)
    add_flags(parser, (*HOST_FLAGS, "kubeconfig"))


def run(args: argparse.Namespace) -> int:
    """Print the slices; devices that cannot be published are reported on standard error."""
    from dra_agent.agent.distributions import CLUSTER, load
    from dra_agent.agent.setup_registry import command_host
    from dra_agent.cli import template_flags
    from dra_agent.cli.shown_host import shown_host

    template_flags.check(args)
    template = load(CLUSTER, "cli.slices_template", "slices template") if args.template else None
    shown = shown_host(args)
    config = shown.config
    if args.watch:
        shown.announce(args.output)
        with command_host(config) as host:
            _watch(args, shown, host)
    with command_host(config) as host, progress("reading the devices"):
        desired = _desired(shown, host, node=config.node if template is None else template_flags.PLACEHOLDER)
    if template is not None:
        code: int = template.show(args, desired.slices)
        _report(desired)
        return code
    shown.announce(args.output)
    if args.output == "table":
        if desired.slices:
            _rows().write(map(_row, desired.slices))
        elif not prints_names():
            print(f"{config.node} has no device that can be claimed")
    else:
        emit({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": desired.slices}, args.output)
    _report(desired)
    return 0


def _report(desired: DesiredSlices) -> None:
    for problem in desired.problems:
        print(f"not published: {problem}", file=sys.stderr)


def _desired(shown: ShownHost, host: Host, *, node: str) -> DesiredSlices:
    from dra_agent import topology
    from dra_agent.cli.agent_view import collected
    from dra_agent.slices import desired_slices

    config = shown.config
    found = collected(shown, host, topology.scan(host))
    return desired_slices(found, node=node, driver=config.driver_name, naming="fixed")


def _watch(args: argparse.Namespace, shown: ShownHost, host: Host) -> NoReturn:
    """Print the slices, and each one again when it changes; a removed slice has no devices."""
    from dra_agent.cli.watch import watch

    rows = _rows()

    watch(
        lambda: _desired(shown, host, node=shown.config.node).slices,
        lambda slices: rows.write(map(_row, slices)),
        output=args.output,
        identity=lambda item: item["metadata"]["name"],
        gone=lambda item: {**item, "spec": {"pool": item["spec"]["pool"]}},
    )


def _rows() -> Rows:
    return Rows(
        ("pool", "slice", "generation", "devices", "counter sets", "holds"),
        optional=("generation", "holds", "counter sets"),
        named=lambda row: str(row[1]),
    )


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    spec = item["spec"]
    return (
        spec["pool"]["name"],
        item["metadata"]["name"],
        spec["pool"]["generation"],
        len(spec.get("devices", ())) or None,
        len(spec.get("sharedCounters", ())) or None,
        _holds(spec),
    )


def _holds(spec: dict[str, Any]) -> str:
    names = [entry["name"] for entry in spec.get("devices") or spec.get("sharedCounters") or ()]
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}" if names else "nothing"

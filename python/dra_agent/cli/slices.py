"""`dra-agent slices`: the ResourceSlices that describe a host, as the agent would publish them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dra_agent.cli.output import add_output_flag, emit, progress, table
from dra_agent.cli.parser import examples

if TYPE_CHECKING:
    from dra_agent.slices import DesiredSlices

EPILOG = examples(
    ("slices", "pools and slices of this host"),
    ("slices --simulate dgx-h100 -o yaml", "the objects in the format of `kubectl get resourceslices -o yaml`"),
    ("slices -o json > slices.json", "for `dra-agent explain --slices slices.json`"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this subcommand."""
    from dra_agent.agent.config import HOST_FLAGS, add_flags

    parser.description = "Show the ResourceSlices that describe this host. Nothing is published."
    parser.epilog = EPILOG
    add_output_flag(parser)
    add_flags(parser, HOST_FLAGS)


def run(args: argparse.Namespace) -> int:
    """Print the slices; devices that cannot be published are reported on standard error."""
    from dra_agent import topology
    from dra_agent.agent.setup_registry import command_host
    from dra_agent.cli.agent_view import with_health
    from dra_agent.cli.shown_host import shown_host
    from dra_agent.inventory.collector import collect
    from dra_agent.inventory.passthrough import VfioBindingStore
    from dra_agent.slices import desired_slices

    shown = shown_host(args)
    config = shown.config
    with command_host(config) as host, progress("reading the devices"):
        collected = collect(
            host,
            topology.scan(host),
            config.inventory,
            driver=config.driver_name,
            handovers=VfioBindingStore(shown.records),
        )
        found = with_health(collected, shown, host)
    desired = desired_slices(found, node=config.node, driver=config.driver_name, naming="fixed")
    shown.announce(args.output)
    if args.output == "table":
        _print_table(desired, config.node)
    else:
        emit({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": desired.slices}, args.output)
    for problem in desired.problems:
        print(f"not published: {problem}", file=sys.stderr)
    return 0


def _print_table(desired: DesiredSlices, node: str) -> None:
    if not desired.slices:
        print(f"{node} has no device that can be claimed")
        return
    rows = [
        (
            spec["pool"]["name"],
            slice_["metadata"]["name"],
            spec["pool"]["generation"],
            len(spec.get("devices", ())) or None,
            len(spec.get("sharedCounters", ())) or None,
            _holds(spec),
        )
        for slice_ in desired.slices
        for spec in [slice_["spec"]]
    ]
    table(("pool", "slice", "generation", "devices", "counter sets", "holds"), rows)


def _holds(spec: dict[str, Any]) -> str:
    names = [entry["name"] for entry in spec.get("devices") or spec.get("sharedCounters") or ()]
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}" if names else "nothing"

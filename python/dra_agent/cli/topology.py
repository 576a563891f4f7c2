"""`dra-agent topology`: what hangs where on this host, as a tree, as data, or as a picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.cli.output import add_output_flag

if TYPE_CHECKING:
    from dra_agent.agent.config import Config
    from dra_agent.host import Host
    from dra_agent.topology import Topology
    from dra_agent.topology.branch import Holders

EPILOG = """\
examples:
  dra-agent topology                          the tree of this host
  dra-agent topology --simulate dgx-h100      the tree of a simulated DGX H100
  dra-agent topology -o json                  everything that was found, for programs
  dra-agent topology --svg host.svg           a picture
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the flags."""
    from dra_agent.agent.config import HOST_FLAGS, add_flags

    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw a picture into FILE instead of printing a tree")
    add_flags(parser, HOST_FLAGS)
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Scan, then print or draw. Exit code 0 also where damaged devices were found: they are reported."""
    from dra_agent.agent.config import load
    from dra_agent.agent.hosts import command_host
    from dra_agent.cli.holders import by_address
    from dra_agent.cli.output import emit, progress

    config = load(args)
    with progress("looking at the host"), command_host(config) as host:
        topology = _scan(host, config, distances=args.output != "table")
        holders = by_address(config)
    if args.svg:
        _write_picture(args.svg, topology, _title(config), holders)
    if args.output != "table":
        emit(topology, args.output)
    elif not args.svg:
        _print_tree(topology, holders)
    return 0


def _scan(host: Host, config: Config, *, distances: bool) -> Topology:
    from dra_agent.errors import PermanentError, UsageError
    from dra_agent.topology import scan

    try:
        return scan(host, distances=distances)
    except PermanentError as error:
        if config.sysfs_root == Path("/sys"):
            raise
        raise UsageError(error.what, todo=error.todo) from error


def _title(config: Config) -> str:
    if config.simulate is not None:
        return f"{config.simulate} (simulated)"
    return config.node if config.sysfs_root == Path("/sys") else str(config.sysfs_root)


def _print_tree(topology: Topology, holders: Holders | None) -> None:
    from dra_agent.cli.terminal import console
    from dra_agent.topology import tree

    # A pipe has no width: whoever reads it decides where lines end.
    console(width=None if sys.stdout.isatty() else 1000).print(tree.draw(topology, holders=holders), highlight=False)
    sys.stdout.flush()
    for problem in topology.problems:
        print(f"problem: {problem}", file=sys.stderr)


def _write_picture(path: Path, topology: Topology, title: str, holders: Holders | None) -> None:
    from dra_agent.errors import PermanentError
    from dra_agent.topology import svg

    picture = svg.draw(topology, title=title, holders=holders)
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise PermanentError(
            f"cannot write the picture: {error.strerror}", where=str(path), todo="name a file that can be written"
        ) from error

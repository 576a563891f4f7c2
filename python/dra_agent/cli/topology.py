"""`dra-agent topology`: what hangs where on this host, as a tree, as data, or as a picture."""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_agent.host import Host
    from dra_agent.topology import Topology

EPILOG = """\
examples:
  dra-agent topology                          the tree of this host
  dra-agent topology --simulate dgx-h100      the tree of a simulated DGX H100
  dra-agent topology -o json                  everything that was found, for programs
  dra-agent topology --svg host.svg           a picture
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this subcommand."""
    from dra_agent.cli.output import add_output_flag

    parser.description = "Show PCIe and NUMA topology: where each device hangs, and how devices relate."
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_output_flag(parser)
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw a picture into FILE instead of printing a tree")
    parser.add_argument("--sysfs-root", metavar="DIR", type=Path, help="read DIR in the place of /sys")
    parser.add_argument("--dev-root", metavar="DIR", type=Path, help="read DIR in the place of /dev")
    parser.add_argument("--simulate", metavar="PROFILE", help="show a simulated host instead of this one")


def run(args: argparse.Namespace) -> int:
    """Scan, then print or draw. Exit code 0, also where damaged devices were found: they are reported."""
    from dra_agent.cli.output import emit
    from dra_agent.errors import PermanentError, UsageError
    from dra_agent.topology import scan

    with _host(args) as (name, host):
        try:
            topology = scan(host)
        except PermanentError as error:
            if args.sysfs_root is None:
                raise
            raise UsageError(error.what, todo=error.todo) from error
    if args.svg:
        _write_picture(args.svg, topology, name)
    if args.output != "table":
        emit(topology, args.output)
    elif not args.svg:
        _print_tree(topology)
    return 0


@contextlib.contextmanager
def _host(args: argparse.Namespace) -> Iterator[tuple[str, Host]]:
    """The host that the flags name, and what to call it; a simulated one lasts as long as the scan."""
    from dra_agent.errors import UsageError
    from dra_agent.host import Host

    if args.simulate is None:
        roots = {"sysfs": args.sysfs_root, "dev": args.dev_root}
        name = socket.gethostname() if args.sysfs_root is None else str(args.sysfs_root)
        yield name, Host(**{root: path for root, path in roots.items() if path is not None})
        return
    if args.sysfs_root or args.dev_root:
        raise UsageError("--simulate brings its own /sys and /dev", todo="leave out --sysfs-root and --dev-root")
    from dra_agent import simulate

    with tempfile.TemporaryDirectory(prefix="dra-agent-") as folder:
        yield f"{args.simulate} (simulated)", simulate.build(args.simulate, Path(folder))


def _print_tree(topology: Topology) -> None:
    from rich.console import Console

    from dra_agent.topology import tree

    # A pipe has no width: whoever reads it decides where lines end.
    console = Console(width=None if sys.stdout.isatty() else 1000)
    console.print(tree.draw(topology), highlight=False)
    for problem in topology.problems:
        print(f"problem: {problem}", file=sys.stderr)


def _write_picture(path: Path, topology: Topology, name: str) -> None:
    from dra_agent.errors import PermanentError
    from dra_agent.topology import svg

    picture = svg.draw(topology, title=name)
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise PermanentError(
            f"cannot write the picture: {error.strerror}", where=str(path), todo="name a file that can be written"
        ) from error

"""The flags that say which host a command looks at: this one, one whose file systems lie elsewhere, a simulated one."""

from __future__ import annotations

import argparse
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_agent.host import Host
    from dra_agent.inventory import Inventory

DEFAULT_DRIVER = "dra-agent.internal"


@dataclass(frozen=True, slots=True)
class ChosenHost:
    """The host that the flags name."""

    host: Host
    title: str
    """For people: the host's name, a folder, or "dgx-h100 (simulated)"."""


def add_host_flags(parser: argparse.ArgumentParser) -> None:
    """Add --simulate, --sysfs-root and --dev-root."""
    parser.add_argument("--simulate", metavar="PROFILE", help="look at a simulated host instead of this one")
    parser.add_argument("--sysfs-root", metavar="DIR", type=Path, help="read DIR in the place of /sys")
    parser.add_argument("--dev-root", metavar="DIR", type=Path, help="read DIR in the place of /dev")


def add_publisher_flags(parser: argparse.ArgumentParser) -> None:
    """Add --node-name and --driver-name."""
    parser.add_argument("--node-name", metavar="NAME", default=node_name(), help="name of the node (%(default)s)")
    parser.add_argument(
        "--driver-name", metavar="NAME", default=DEFAULT_DRIVER, help="name of the driver (%(default)s)"
    )


def node_name() -> str:
    """Give this host's name as Kubernetes would name the node."""
    return re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower()).strip("-.") or "localhost"


@contextmanager
def chosen_host(args: argparse.Namespace) -> Iterator[ChosenHost]:
    """Give the host that the flags name; a simulated one is gone afterwards."""
    from dra_agent.errors import UsageError
    from dra_agent.host import Host

    roots = {"sysfs": args.sysfs_root, "dev": args.dev_root}
    given = {root: path for root, path in roots.items() if path is not None}
    if args.simulate is None:
        for root, path in given.items():
            if not path.is_dir():
                raise UsageError("not a folder", where=f"--{root}-root {path}")
        yield ChosenHost(Host(**given), str(args.sysfs_root or socket.gethostname()))
        return
    if given:
        raise UsageError("--simulate brings its own /sys and /dev", todo="leave out --sysfs-root and --dev-root")
    from dra_agent import simulate

    with tempfile.TemporaryDirectory(prefix="dra-agent-") as folder:
        yield ChosenHost(simulate.build(args.simulate, Path(folder)), f"{args.simulate} (simulated)")


def take_inventory(chosen: ChosenHost, driver: str) -> Inventory:
    """Take the inventory of a host, with progress where somebody waits for it."""
    from dra_agent import inventory, topology
    from dra_agent.cli.output import progress

    with progress(f"reading {chosen.title}"):
        return inventory.take(chosen.host, topology.scan(chosen.host), driver=driver)

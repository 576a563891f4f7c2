"""`dra-agent topology`: the PCIe and NUMA topology of this host as a tree, as data, or as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import examples

if TYPE_CHECKING:
    from dra_agent.agent.config import Config
    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.host import Host
    from dra_agent.inventory.model import Device
    from dra_agent.topology import LiveTopology, PciFunction, Topology
    from dra_agent.topology.display_tree import Holders
    from dra_agent.topology.pci_ids import PciIds

MAX_WITH_DISTANCES = 128
"""Functions whose distances are listed without --all-distances: the number of pairs is quadratic."""
EPILOG = examples(
    ("topology", "the tree of this host"),
    ("topology --simulate dgx-h100", "the tree of a simulated DGX H100"),
    ("topology -o json", "everything that was found, for programs"),
    ("topology --svg host.svg", "a picture"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the flags."""
    from dra_agent.agent.config import HOST_FLAGS, add_flags

    parser.epilog = EPILOG
    parser.add_argument(
        "--svg",
        metavar="FILE",
        type=Path,
        help="draw a picture into FILE (- is standard output) instead of printing a tree",
    )
    parser.add_argument(
        "--all-distances",
        action="store_true",
        help="with -o json or yaml: the distances of all pairs, also of many virtual functions",
    )
    add_flags(parser, HOST_FLAGS)
    add_output_flag(parser, names=False)


def run(args: argparse.Namespace) -> int:
    """Scan, then print or draw. Exit code 0 also where damaged devices were found: they are reported."""
    from dra_agent.agent.setup_registry import command_host
    from dra_agent.cli.output import emit
    from dra_agent.cli.shown_host import shown_host
    from dra_agent.cli.terminal import progress

    shown = shown_host(args)
    pictured = args.svg is not None or args.output == "table"
    with progress("scanning the host"), command_host(shown.config) as host:
        live = _scan(host, shown.config)
        topology = live.snapshot()
        holders, names = _known(shown, host, topology) if pictured else (None, None)
    if args.svg:
        _write_picture(args.svg, topology, picture_title(shown.config), holders, names)
    if args.output != "table":
        emit(_with_distances(live, topology, everything=args.all_distances), args.output)
    elif not args.svg:
        shown.announce(args.output)
        _print_tree(topology, holders, names)
    return 0


def _known(shown: ShownHost, host: Host, topology: Topology) -> tuple[Holders | None, PciIds | None]:
    """The part of a picture from the agent's inventory: holders, published devices, and product names."""
    from dra_agent.cli.agent_view import by_address, published
    from dra_agent.errors import AgentError

    try:
        devices = published(shown, host, topology).devices
    except AgentError:
        return by_address(shown), None  # the tree does not need the inventory
    return picture_facts(shown, devices)


def picture_facts(shown: ShownHost, devices: Sequence[Device]) -> tuple[Holders | None, PciIds]:
    """Return the holders of PCI functions, None without an agent, and the names of products."""
    from dra_agent.cli.agent_view import accepts_claims, by_address
    from dra_agent.topology.display_tree import KnownHolders
    from dra_agent.topology.pci_ids import PciIds

    holders = by_address(shown)
    names: dict[str, str] = {}
    for device in devices:
        product = device.attributes.get("productName")
        if product is not None and device.pci_address is not None:
            names.setdefault(device.pci_address, str(product.value))
    known = PciIds.of_this_machine().with_known(names)
    if holders is None:
        return None, known
    if not accepts_claims(shown):
        # Also the devices of claims that a notice has released: their containers may still run.
        return KnownHolders(holders, ()), known
    offered = (
        device.pci_address
        for device in devices
        if device.pci_address is not None and all(taint.effect == "None" for taint in device.taints)
    )
    return KnownHolders(holders, offered), known


def _with_distances(live: LiveTopology, topology: Topology, *, everything: bool) -> Topology | dict[str, Any]:
    """Return the topology with its distances; of many functions with some of them, and what is left out."""
    if everything or len(topology.relevant) <= MAX_WITH_DISTANCES:
        return live.snapshot(distances=True)
    import msgspec

    listed, omitted = listed_functions(topology.relevant)
    pairs = ((one, other) for position, one in enumerate(listed) for other in listed[position + 1 :])
    distances = {f"{one},{other}": found for one, other in pairs if (found := live.distance(one, other)) is not None}
    document: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(topology, distances=distances))
    return {**document, "omitted": omitted}


def listed_functions(functions: Sequence[PciFunction]) -> tuple[list[str], str]:
    """Return the addresses of at most MAX_WITH_DISTANCES functions, physical ones only, and what is left out."""
    physical = [one.pci_address for one in functions if one.physfn is None]
    virtual = len(functions) - len(physical)
    reasons = []
    if virtual:
        reasons.append(
            f"distances of {virtual} virtual functions: to other cards they are those of the physical function"
        )
    if (more := len(physical) - MAX_WITH_DISTANCES) > 0:
        reasons.append(f"distances of {more} more functions")
    return physical[:MAX_WITH_DISTANCES], "; ".join([*reasons, "--all-distances lists them"])


def _scan(host: Host, config: Config) -> LiveTopology:
    from dra_agent.errors import PermanentError, UsageError
    from dra_agent.topology import LiveTopology

    try:
        return LiveTopology(host)
    except PermanentError as error:
        if config.sysfs_root == Path("/sys"):
            raise
        raise UsageError(error.message, hint=error.hint) from error


def picture_title(config: Config) -> str:
    """Return the title of the picture of a host."""
    if config.simulate is not None:
        return f"{config.simulate} (simulated)"
    return config.host_label if config.sysfs_root == Path("/sys") else str(config.sysfs_root)


def _print_tree(topology: Topology, holders: Holders | None, names: PciIds | None) -> None:
    from dra_agent.cli.output import is_wide
    from dra_agent.cli.terminal import console, is_terminal
    from dra_agent.topology import tree

    # A pipe has no width, and -o wide leaves out nothing: lines are not wrapped.
    width = console().width if is_terminal() and not is_wide() else None
    console(width=width or 1000).print(tree.draw(topology, holders=holders, names=names, width=width), highlight=False)
    sys.stdout.flush()
    for problem in topology.problems:
        print(f"problem: {problem}", file=sys.stderr)


def _write_picture(path: Path, topology: Topology, title: str, holders: Holders | None, names: PciIds | None) -> None:
    from dra_agent.errors import PermanentError
    from dra_agent.topology import svg

    picture = svg.draw(topology, title=title, holders=holders, names=names)
    if str(path) == "-":
        print(picture, end="")
        return
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise PermanentError(
            f"cannot write the picture: {error.strerror}", where=str(path), hint="name a file that can be written"
        ) from error

"""The node that `dra-agent slices template --compare` compares with: its slices, from a file or from a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dra_agent.errors import PermanentError, RetryableError, UsageError
from dra_agent.printable import printable

if TYPE_CHECKING:
    from dra_agent.kube_client import ApiClient
    from dra_agent.slices import Slice

READ_TIMEOUT_S = 30.0
"""Seconds in which the API server must respond to all requests."""
MAX_SLICES = 1000
"""Slices of one node, of all drivers."""
_KIND = "ResourceSlice"


def slices_of_file(args: argparse.Namespace, driver: str) -> tuple[str, list[Slice]]:
    """Return the only node of the file, or the one that a flag names, and the driver's slices of it.

    The slices are those of the newest generation of each pool.

    Raises:
        UsageError: The file cannot be read, or has no such slices.
        RetryableError: A pool is incomplete.
    """
    from dra_cluster.explain.dump import read_dump

    every = [
        entry for entry in read_dump([args.compare], "default").slices or () if _spec(entry).get("driver") == driver
    ]
    nodes = sorted({str(_spec(entry).get("nodeName") or "") for entry in every} - {""})
    wanted = args.node or args.node_name
    if wanted is None and len(nodes) == 1:
        wanted = nodes[0]
    if wanted not in nodes:
        problem = (
            f"has no slice of driver {driver} on node {wanted}"
            if wanted
            else (
                f"has slices of driver {driver} on {len(nodes)} nodes" if nodes else f"has no slice of driver {driver}"
            )
        )
        hint = "name the node with --node" if nodes and not wanted else ""
        raise UsageError(problem, where=args.compare, hint=hint)
    loaded = [entry for entry in every if _spec(entry).get("nodeName") == wanted]
    return wanted, _current(wanted, loaded, "print the slices of the node again")


def slices_of_cluster(args: argparse.Namespace, driver: str) -> tuple[str, list[Slice]]:
    """Return the node that a flag names, and the driver's slices of it: those of the newest generation of each pool.

    Raises:
        UsageError: No node is named, or there is no such node, or it has no slice of the driver.
        RetryableError: A pool is incomplete, or the API server does not respond in time.
        PermanentError: The slices cannot be listed.
    """
    from dra_agent.cli.connection import call_cluster
    from dra_agent.cli.terminal import progress

    node = args.node or args.node_name
    if not node:
        raise UsageError("which node of the cluster?", where="--compare", hint="name it with --node")
    with progress("querying the API server"):
        every, unknown = call_cluster(args, lambda api: _read(api, node))
    found = [entry for entry in every if _spec(entry).get("driver") == driver]
    if not found:
        others = sorted({str(_spec(entry).get("driver")) for entry in every})
        hint = (
            f"it has slices of {', '.join(others)}: choose a driver with --driver-name"
            if others
            else f"see `kubectl get resourceslices --field-selector spec.nodeName={node}`"
        )
        raise UsageError(f"there is no slice of driver {driver}{unknown}", where=f"node {node}", hint=hint)
    return node, _current(node, found, "the driver is still publishing it: repeat the command")


async def _read(api: ApiClient, node: str) -> tuple[list[Slice], str]:
    """Return the slices of a node, and what is not known about the node."""
    import asyncio

    from dra_agent.kube_client import NODES, RESOURCE_SLICES, ForbiddenError, NotFoundError

    unknown = ""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            try:
                await api.get(NODES, node)
            except NotFoundError as error:
                raise UsageError(f"there is no node {node}", hint="`kubectl get nodes` lists them") from error
            except ForbiddenError:
                unknown = ", and whether the node exists is not known without permission to get nodes"
            try:
                listed = await api.list(RESOURCE_SLICES, fields={"spec.nodeName": node}, max_items=MAX_SLICES)
            except ForbiddenError as error:
                raise PermanentError(
                    f"the slices of node {node} cannot be listed: {error.message}",
                    where=error.where,
                    hint="grant this identity `list` on resourceslices of resource.k8s.io, or name a file",
                ) from error
    except TimeoutError:
        raise RetryableError(f"the API server did not respond within {READ_TIMEOUT_S:.0f} s") from None
    if listed.notes:
        raise PermanentError("; ".join(listed.notes), where=f"the slices of node {node}")
    # Again, for a server that ignores the selector.
    return [entry for entry in map(_checked, listed.items) if _spec(entry).get("nodeName") == node], unknown


def _checked(entry: Slice) -> Slice:
    from dra_agent.explain.printed_object import first_misfit

    if misfit := first_misfit(_KIND, entry):
        field, expected = misfit
        raise PermanentError(f"{field} is not {expected}", where=f"{_KIND} {_name(entry)} of the API server")
    return entry


def _current(node: str, slices: Iterable[Slice], hint: str) -> list[Slice]:
    """Return the slices of the newest generation of each pool, as kube-scheduler uses them.

    RetryableError with this hint for an incomplete pool.
    """
    from dra_cluster.cli.cluster_nodes import newest, number_of_pool

    pools: dict[str, list[Slice]] = {}
    for entry in slices:
        pools.setdefault(str(_pool(entry).get("name")), []).append(entry)
    current: list[Slice] = []
    for name, entries in sorted(pools.items()):
        those = newest(entries)
        generation = number_of_pool(those[0], "generation")
        needed = max(number_of_pool(entry, "resourceSliceCount") for entry in those)
        earlier = len(entries) - len(those)
        if len(those) < needed:
            more = f", and {earlier} of earlier generations" if earlier else ""
            raise RetryableError(
                f"pool {name} is incomplete: it has {len(those)} of {needed} slices of generation {generation}{more}",
                where=f"node {node}",
                hint=hint,
            )
        if earlier:
            have = "slice of an earlier generation is" if earlier == 1 else "slices of earlier generations are"
            note = f"pool {name} is compared in generation {generation}; {earlier} {have} not used"
            print(printable(note, line=True), file=sys.stderr)
        current += those
    return current


def _name(entry: Slice) -> str:
    metadata = entry.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else "without a name"


def _pool(entry: Slice) -> dict[str, Any]:
    pool: dict[str, Any] = _spec(entry).get("pool") or {}
    return pool


def _spec(entry: Slice) -> dict[str, Any]:
    return entry.get("spec") or {}

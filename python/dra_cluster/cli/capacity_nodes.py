"""The nodes that `dra-agent capacity --if add=N:KIND` adds: a simulated profile, a recording, or slices of one node."""

from __future__ import annotations

import argparse
from pathlib import Path

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_cluster.explain.changes import HOSTNAME, NodeSource

_OF_CONDITIONS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of taints that Kubernetes adds and removes."""
MAX_ADDED_DEVICES = 250_000
"""Devices of all added and replaced nodes together. The allocator needs one to two KiB for each."""


def node_source(args: argparse.Namespace) -> NodeSource:
    """Return the source of slices; `--config` determines driver, rules and partitions of profiles and recordings.

    The source raises UsageError if the nodes that it made have more than MAX_ADDED_DEVICES.
    """
    total = 0

    def make(kind: str, names: list[str]) -> tuple[list[Object], Object]:
        nonlocal total
        of_kind: Object = {}
        if Path(kind).is_file():
            node, slices, of_kind = _of_file(kind)
        else:
            node, slices = names[0], _of_host(args, kind, names[0])
        # A slice without devices needs memory, too.
        total += len(names) * sum(max(1, len(entry["spec"].get("devices") or ())) for entry in slices)
        if total > MAX_ADDED_DEVICES:
            raise UsageError(
                f"the nodes of all changes have {total} devices together, at most {MAX_ADDED_DEVICES} can be added",
                where="--if",
                hint="add fewer nodes",
            )
        # All nodes share the devices of one. The allocator reads the slices of a pool in the order of their names.
        slices.sort(key=lambda entry: str(entry["metadata"]["name"]))
        return [_renamed(entry, index, node, name) for name in names for index, entry in enumerate(slices)], of_kind

    return make


def _of_host(args: argparse.Namespace, kind: str, node: str) -> list[Object]:
    """Return the slices of one node with the devices of a profile or a recording."""
    from tempfile import TemporaryDirectory

    import msgspec

    from dra_agent import topology
    from dra_agent.agent.config import Config, load_config
    from dra_agent.agent.setup_registry import simulated_host
    from dra_agent.cli.terminal import progress
    from dra_agent.inventory.collector import collect
    from dra_agent.slices import desired_slices

    # The plugin knows no agent, and so no configuration of one.
    own = Config() if getattr(args, "is_plugin", False) else load_config(args)
    config = msgspec.structs.replace(own, simulate=kind)
    with TemporaryDirectory(prefix="dra-agent-") as directory, progress(f"reading the devices of {kind}"):
        host = simulated_host(config, Path(directory))
        inventory = collect(host, topology.scan(host), config.inventory, driver=config.driver_name)
    return desired_slices(inventory, node=node, driver=config.driver_name, naming="fixed").slices


def _of_file(path: str) -> tuple[str, list[Object], Object]:
    """Return the name and the slices of the node that a file describes, and what nodes of this kind have in common."""
    from dra_cluster.explain.dump import read_dump

    dump = read_dump([path], "default")
    slices = dump.slices or []
    nodes = {(entry.get("spec") or {}).get("nodeName") for entry in slices}
    if len(nodes) != 1 or not (node := str(nodes.pop() or "")):
        raise UsageError(
            "has not the slices of exactly one node", where=path, hint="all slices must have the same spec.nodeName"
        )
    found = next((one for one in dump.nodes or () if one["metadata"]["name"] == node), {})
    return node, slices, _of_kind(found)


def _of_kind(node: Object) -> Object:
    """Return what other nodes of the kind of this one have, too: not its cordon, and not its condition."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    taints = (node.get("spec") or {}).get("taints") or ()
    status = node.get("status") or {}
    return {
        "metadata": {"labels": {key: value for key, value in labels.items() if key != HOSTNAME}},
        "spec": {"taints": [one for one in taints if not str(one.get("key")).startswith(_OF_CONDITIONS)]},
        "status": {key: status[key] for key in ("allocatable", "declaredFeatures") if key in status},
    }


def _renamed(entry: Object, index: int, node: str, name: str) -> Object:
    spec = entry["spec"]
    pool = spec.get("pool") or {}
    parts = str(pool.get("name") or "").split("/")
    # A pool's name is unique in the cluster, so each copy needs another one. Only a whole part is the node: the name
    # of one node may be in that of another, or in the rest of the pool's name.
    new = "/".join(name if part == node else part for part in parts)
    if node not in parts and node != name:
        new += f"-{name}"
    return {
        **entry,
        # Each of several changes can give a node the slices of another driver.
        "metadata": {"name": f"{name}-{spec.get('driver')}-{index:05}"},
        "spec": {**spec, "nodeName": name, "pool": {**pool, "name": new}},
    }

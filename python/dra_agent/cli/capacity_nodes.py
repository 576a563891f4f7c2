"""The nodes that `dra-agent capacity --if add=N:KIND` adds: a simulated profile, a recording, or slices of one node."""

from __future__ import annotations

import argparse
from pathlib import Path

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_agent.explain.changes import HOSTNAME, NodeSource


def node_source(args: argparse.Namespace) -> NodeSource:
    """Return the source of slices; `--config` determines driver, rules and partitions of profiles and recordings."""

    def make(kind: str, names: list[str]) -> tuple[list[Object], dict[str, str]]:
        if Path(kind).is_file():
            return _of_file(kind, names)
        return _of_host(args, kind, names), {}

    return make


def _of_host(args: argparse.Namespace, kind: str, names: list[str]) -> list[Object]:
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
    return [
        entry
        for name in names
        for entry in desired_slices(inventory, node=name, driver=config.driver_name, naming="fixed").slices
    ]


def _of_file(path: str, names: list[str]) -> tuple[list[Object], dict[str, str]]:
    from dra_agent.explain.dump import read_dump

    dump = read_dump([path], "default")
    slices = dump.slices or []
    nodes = {(entry.get("spec") or {}).get("nodeName") for entry in slices}
    if len(nodes) != 1 or not (node := str(nodes.pop() or "")):
        raise UsageError(
            "has not the slices of exactly one node", where=path, hint="all slices must have the same spec.nodeName"
        )
    labels: dict[str, str] = next(
        (one["metadata"].get("labels") or {} for one in dump.nodes or () if one["metadata"]["name"] == node), {}
    )
    copies = [_renamed(entry, index, node, name) for name in names for index, entry in enumerate(slices)]
    return copies, {key: value for key, value in labels.items() if key != HOSTNAME}


def _renamed(entry: Object, index: int, node: str, name: str) -> Object:
    spec = entry["spec"]
    pool = spec.get("pool") or {}
    parts = str(pool.get("name") or "").split("/")
    # A pool's name is unique in the cluster, so each copy needs another one. Only a whole part is the node: the name
    # of one node may be in that of another, or in the rest of the pool's name.
    new = "/".join(name if part == node else part for part in parts)
    if node not in parts:
        new += f"-{name}"
    return {
        **entry,
        "metadata": {"name": f"{name}-{index}"},
        "spec": {**spec, "nodeName": name, "pool": {**pool, "name": new}},
    }

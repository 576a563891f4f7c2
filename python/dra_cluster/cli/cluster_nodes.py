"""Nodes of a cluster as the API server has them: which are being reclaimed, and where their devices are."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dra_agent.api_object import Object

if TYPE_CHECKING:
    from dra_agent.kube_client import ApiClient

Item = dict[str, Any]
_NUMA, _ROOT, _PRODUCT, _TYPE = "numaNode", "pcieRoot", "productName", "type"
"""Last parts of attribute names, which drivers publish with different prefixes."""


class _Cluster(NamedTuple):
    nodes: list[Object]
    slices: list[Object]
    claims: list[Item]


def print_reclaims(args: argparse.Namespace, node: str | None) -> int:
    """Print the nodes with a notice or hint, or one node; exit code 0 also where there is none."""
    from dra_agent.cli.output import emit, prints_names
    from dra_agent.cli.table import table

    cluster = _read(args, node)
    slices = by_node(cluster.slices, lambda entry: entry["spec"].get("nodeName"))
    claims = by_node(cluster.claims, lambda row: row["node"])
    reclaims = (
        reclaim_of(one, slices.get(name, ()), claims.get(name, ()))
        for one in cluster.nodes
        for name in [one["metadata"]["name"]]
    )
    rows = [row for row in reclaims if node or row["phase"] != "none"]
    if args.output in ("json", "yaml"):
        emit(rows, args.output)
        return 0
    if not any(row["phase"] != "none" for row in rows):
        if not prints_names():
            print(f"node {node} is not being reclaimed" if node is not None else "no node is being reclaimed")
        return 0
    cells = (
        [row["node"], row["phase"], row["since"], len(row["claims"]), ", ".join(row["pods"]), row["message"]]
        for row in rows
    )
    table(["node", "phase", "since", "claims", "pods", "why"], cells, optional=("since",), prose=("pods", "why"))
    return 0


def print_topology(args: argparse.Namespace, node: str) -> int:
    """Print the devices that are published for a node, by NUMA node and PCIe root."""
    from dra_agent.cli.output import emit, prints_names
    from dra_agent.printable import printable

    cluster = _read(args, node)
    holders: dict[tuple[str, str], list[str]] = {}
    for claim in cluster.claims:
        holders.setdefault((claim["pool"], claim["device"]), []).append(f"{claim['namespace']}/{claim['claim']}")
    devices = [_device(entry, device, holders) for entry in cluster.slices for device in devices_of(entry)]
    devices.sort(key=lambda one: (one["numa"] is None, one["numa"] or 0, one["root"] or "~", one["name"]))
    if args.output in ("json", "yaml"):
        emit(devices, args.output)
        return 0
    if prints_names():
        for one in devices:
            print(one["name"])
        return 0
    print(f"node {node}: {len(devices)} device{'' if len(devices) == 1 else 's'} published")
    place: tuple[object, object] = (object(), object())
    for one in devices:
        if one["numa"] != place[0]:
            print("NUMA node unknown" if one["numa"] is None else f"NUMA node {one['numa']}")
        if (one["numa"], one["root"]) != place:
            print(f"  {one['root'] or 'PCIe root unknown'}")
        place = one["numa"], one["root"]
        state = [*one["taints"], *(f"held by {claim}" for claim in one["claims"])]
        print(printable("   ".join(["    " + one["name"], one["product"], ", ".join(state) or "free"]), line=True))
    return 0


def _read(args: argparse.Namespace, node: str | None) -> _Cluster:
    """Read nodes, slices and held devices; raises UsageError for a node that does not exist."""
    from dra_agent.cli.connection import call_cluster
    from dra_agent.cli.output import print_notes
    from dra_agent.errors import UsageError
    from dra_agent.kube_client import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, NotFoundError, ObjectList
    from dra_cluster.cli.cluster_claims import allocated_devices

    async def read(api: ApiClient) -> _Cluster:
        import asyncio

        async def nodes() -> ObjectList:
            return await api.list(NODES) if node is None else ObjectList([await api.get(NODES, node)], "")

        fields = {} if node is None else {"spec.nodeName": node}
        found, slices, claims = await asyncio.gather(
            nodes(), api.list(RESOURCE_SLICES, fields=fields), api.list(RESOURCE_CLAIMS)
        )
        held = [row for claim in claims.items for row in allocated_devices(claim) if node in (None, row["node"])]
        print_notes([*found.notes, *slices.notes, *claims.notes])
        return _Cluster(found.items, newest(slices.items), held)

    try:
        return call_cluster(args, read)
    except NotFoundError as error:
        raise UsageError(f"there is no node {node}", hint="`kubectl get nodes` lists them") from error


def newest(slices: Sequence[Object]) -> list[Object]:
    """Leave out slices of earlier generations of their pools, as the scheduler does."""

    def pool(entry: Object) -> tuple[object, object]:
        return entry["spec"].get("driver"), (entry["spec"].get("pool") or {}).get("name")

    newest: dict[tuple[object, object], int] = {}
    for entry in slices:
        generation = number_of_pool(entry, "generation")
        newest[pool(entry)] = max(newest.get(pool(entry), generation), generation)
    return [entry for entry in slices if number_of_pool(entry, "generation") == newest[pool(entry)]]


def number_of_pool(entry: Object, field: str) -> int:
    """Return a number of the pool of a slice; 0 if it has none."""
    value = (entry["spec"].get("pool") or {}).get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def devices_of(entry: Object) -> Iterable[Object]:
    """Return the devices of a slice."""
    return entry["spec"].get("devices") or ()


def by_node(items: Iterable[Item], node: Callable[[Item], str | None]) -> dict[str, list[Item]]:
    """Group items by the node that the function returns; those without a node are left out."""
    found: dict[str, list[Item]] = {}
    for item in items:
        if (name := node(item)) is not None:
            found.setdefault(name, []).append(item)
    return found


def reclaim_of(node: Object, slices: Iterable[Object], claims: Sequence[Item]) -> Item:
    """Describe the reclaim of a node by its condition and by taints of the devices in its slices.

    `claims` has the devices of this node that claims hold, as `allocated_devices` returns them.
    """
    from dra_agent.reclaim.announcements import TAINT_NAME
    from dra_agent.reclaim.settings import CONDITION_NAME

    name = node["metadata"]["name"]
    conditions = (node.get("status") or {}).get("conditions") or ()
    notice: Object = next(
        (one for one in conditions if one["type"].endswith(f"/{CONDITION_NAME}") and one.get("status") == "True"), {}
    )
    taint: Object = next(
        (
            taint
            for entry in slices
            for device in devices_of(entry)
            for taint in device.get("taints") or ()
            if taint["key"].endswith(f"/{TAINT_NAME}")
        ),
        {},
    )
    phase = "notice" if notice else taint.get("value") or "none"
    return {
        "node": name,
        "phase": phase,
        "since": notice.get("lastTransitionTime") or taint.get("timeAdded"),
        "message": notice.get("message", ""),
        "claims": sorted({f"{row['namespace']}/{row['claim']}" for row in claims}),
        "pods": sorted({f"{row['namespace']}/{pod.removeprefix('pod ')}" for row in claims for pod in row["used_by"]}),
    }


def _device(entry: Object, device: Object, holders: Mapping[tuple[str, str], list[str]]) -> Item:
    pool = entry["spec"]["pool"]["name"]
    attributes = device.get("attributes") or {}
    kind, product = attribute(attributes, _TYPE), attribute(attributes, _PRODUCT)
    return {
        "name": device["name"],
        "driver": entry["spec"]["driver"],
        "pool": pool,
        "numa": attribute(attributes, _NUMA),
        "root": attribute(attributes, _ROOT),
        "product": str(product or kind or entry["spec"]["driver"]),
        "taints": [f"{taint['key']}:{taint['effect']}" for taint in device.get("taints") or ()],
        "claims": holders.get((pool, device["name"]), []),
    }


def attribute(attributes: Mapping[str, Mapping[str, Any]], name: str) -> Any:
    """Return the value of an attribute, with any prefix; None if there is none."""
    value = next((one for key, one in attributes.items() if key.rpartition("/")[2] == name), {})
    return next(iter(value.values()), None)

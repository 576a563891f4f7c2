"""`dra-agent top --all-nodes` and `kubectl dra top`: the telemetry of a cluster, node by node.

Values come from the agents' /metrics. The claims that hold devices come from the API server. The values of a claim are
only those that its agent reports as the claim's own: the values of a shared device are not those of one claim.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_agent.cli.top import DEFAULT_NAMESPACE, DIRECT_FLAGS

if TYPE_CHECKING:
    from dra_agent.cli.top_tables import NodeValues, Shown
    from dra_agent.kube_client import ApiClient
    from dra_agent.telemetry.control import ClaimValues, DeviceValues
    from dra_cluster.cli.top_endpoints import DirectAccess, Endpoint, Reading

Item = dict[str, Any]
_OTHER_AGENTS = "name other namespaces with --agent-namespace, or the addresses of metrics with --endpoint"


def read_cluster(args: argparse.Namespace) -> Shown:
    """Read the agents. Raises UsageError for wrong flags, and the errors of an API server that does not list pods."""
    import asyncio

    from dra_agent.cli.connection import call_cluster
    from dra_cluster.cli.top_endpoints import given_endpoint, read_endpoints

    access = _access(args)
    given = [given_endpoint(text, access) for text in args.endpoint]
    if given:
        if not args.all_nodes:
            return merged(asyncio.run(read_endpoints(None, given, access)))
        # With a cluster, its claims.
        return call_cluster(args, lambda api: _read(api, args, access, given))
    return call_cluster(args, lambda api: _read(api, args, access, None))


async def _read(
    api: ApiClient, args: argparse.Namespace, access: DirectAccess, endpoints: list[Endpoint] | None
) -> Shown:
    import asyncio

    from dra_agent.errors import PermanentError
    from dra_cluster.cli.top_endpoints import AGENT_NAMES, NAME_LABEL, find_endpoints, ignored_note, read_endpoints

    ignored: list[str] = []
    unread: list[str] = []
    if endpoints is None:
        namespaces = args.agent_namespace or [DEFAULT_NAMESPACE]
        found = await find_endpoints(api, namespaces, args.node, direct=args.direct, access=access)
        endpoints, ignored, unread = found
        if not endpoints:
            raise PermanentError(
                "no pod of an agent was found",
                where=f"pods of a DaemonSet with {NAME_LABEL} {' or '.join(AGENT_NAMES)}"
                f" in namespace {' or '.join(namespaces)}" + (f" on node {args.node}" if args.node else ""),
                hint="; ".join([*ignored_note(ignored), *unread, _OTHER_AGENTS]),
            )
    drivers = {endpoint.driver for endpoint in endpoints if endpoint.driver}
    (rows, notes), readings = await asyncio.gather(
        _claims(api, args.node, drivers), read_endpoints(api, endpoints, access)
    )
    return merged(readings, rows, [*ignored_note(ignored), *unread, *notes])


async def _claims(api: ApiClient, node: str | None, drivers: Collection[str]) -> tuple[list[Item], list[str]]:
    """Return the devices of these drivers that claims hold, of every driver if none is known.

    Without permission there are none, and a note.
    """
    from dra_agent.errors import AgentError
    from dra_agent.kube_client import RESOURCE_CLAIMS
    from dra_cluster.cli.cluster_claims import allocated_devices

    try:
        claims = await api.list(RESOURCE_CLAIMS)
    except AgentError as error:
        return [], [f"claims are not known: {error.message}"]
    rows = (row for claim in claims.items for row in allocated_devices(claim))
    own = [row for row in rows if node in (None, row["node"]) and (not drivers or row["driver"] in drivers)]
    return own, [*claims.notes]


def merged(readings: Sequence[Reading], rows: Sequence[Item] = (), notes: Sequence[str] = ()) -> Shown:
    """Combine the values of agents with the devices that claims hold, as `allocated_devices` returns them."""
    import msgspec

    from dra_agent.cli.top_tables import NodeValues, Shown
    from dra_cluster.cli.top_sources import accept

    holders: dict[tuple[str, str], set[str]] = {}
    nodes: dict[tuple[str, str], str] = {}
    devices: list[DeviceValues] = []
    found: list[NodeValues] = []
    failures: list[str] = []
    own: dict[tuple[str, str, str, str], ClaimValues] = {}
    for row in rows:
        holders.setdefault((row["pool"], row["device"]), set()).add(f"{row['namespace']}/{row['claim']}")
    unnamed = off = 0
    for reading, accepted in zip(readings, accept(readings), strict=True):
        node, values = reading.endpoint.node, reading.values
        if values is None:
            found.append(NodeValues(node, reading.endpoint.shown, reading.problem))
            failures.append(f"no values: {node}: {reading.endpoint.shown}: {reading.problem}")
            continue
        if not values.is_on:
            off += 1
            found.append(NodeValues(node, reading.endpoint.shown, "telemetry is off"))
            continue
        unnamed += not values.names_claims
        failures += (f"incomplete: {node}: {problem}" for problem in values.problems)
        failures += (f"not shown: {node}: {reading.endpoint.shown}: {problem}" for problem in accepted.problems)
        named: dict[str, set[str]] = {}
        for claim in accepted.claims:
            own[node, claim.namespace, claim.name, claim.device] = msgspec.structs.replace(claim, node=node)
            named.setdefault(claim.device, set()).add(f"{claim.namespace}/{claim.name}")
        of_node = []
        for device in accepted.devices:
            nodes[device.pool, device.device] = node
            names = holders.get((device.pool, device.device)) or named.get(device.device, set())
            of_node.append(msgspec.structs.replace(device, node=node, claims=tuple(sorted(names))))
        devices += of_node
        found.append(_node(node, reading.endpoint.shown, of_node, "" if of_node else "; ".join(accepted.problems)))
    known = [one for row in rows if (one := _claim(row, nodes, own)) is not None]
    # A device that several requests of a claim share is one row.
    claims = {(one.node, one.namespace, one.name, one.device): one for one in (*own.values(), *known)}
    read = sum(reading.values is not None for reading in readings)
    messages = list(notes)
    if off:
        messages.append(f"telemetry is off on {off} of {read} agents: set `interval` in the section [telemetry]")
    if unnamed:
        messages.append(
            f"{unnamed} of {read} agents show no values of claims on their /metrics: claim_labels in [telemetry]"
        )
    return Shown(
        title=f"cluster: {read} of {len(readings)} agents responded",
        devices=devices,
        claims=list(claims.values()),
        nodes=found,
        failures=failures,
        notes=messages,
        document={"agents": len(readings), "responded": read, "notes": messages, "failures": failures},
    )


def _claim(
    row: Item, nodes: dict[tuple[str, str], str], own: dict[tuple[str, str, str, str], ClaimValues]
) -> ClaimValues | None:
    """Return a device of a claim with the values that are the claim's own; None for a device of an unknown node."""
    import msgspec

    from dra_agent.telemetry.control import ClaimValues
    from dra_agent.telemetry.model import DeviceSample

    node = row["node"] or nodes.get((row["pool"], row["device"]))
    if node is None:
        return None
    values = own.get((node, row["namespace"], row["claim"], row["device"]))
    if values is None:
        values = ClaimValues(row["namespace"], row["claim"], row["device"], values=DeviceSample(), node=node)
    return msgspec.structs.replace(values, uid=row["uid"] or "")


def _node(node: str, endpoint: str, devices: Sequence[DeviceValues], problem: str) -> NodeValues:
    from dra_agent.cli.top_tables import NodeValues, power_of

    def known(field: str) -> dict[str, Any]:
        return {one.device: value for one in devices if (value := getattr(one.values, field)) is not None}

    def summands(values: dict[str, Any]) -> list[Any]:
        return [value for name, value in values.items() if not _is_part(name, values)]

    used, limits = (summands(known(field)) for field in ("memory_used_bytes", "memory_limit_bytes"))
    power = summands({one.device: watts for one in devices if (watts := power_of(one.values)) is not None})
    busy, heat = (list(known(field).values()) for field in ("gpu_utilization_ratio", "temperature_celsius"))
    return NodeValues(
        node,
        endpoint,
        problem,
        devices=len(devices),
        held=sum(bool(one.claims) for one in devices),
        gpu_utilization_ratio=sum(busy) / len(busy) if busy else None,
        memory_used_bytes=sum(used) if used else None,
        memory_limit_bytes=sum(limits) if limits else None,
        power_watts=sum(power) if power else None,
        temperature_celsius=max(heat) if heat else None,
    )


def _is_part(name: str, others: Collection[str]) -> bool:
    """Return whether a device is a partition of another one: its name begins with that of its GPU."""
    return any(name[:end] in others for end, character in enumerate(name) if character == "-")


def _access(args: argparse.Namespace) -> DirectAccess:
    """Raises UsageError if a file of the flags cannot be used, or is not used at all."""
    from dra_agent.bearer_tokens import read_tokens
    from dra_agent.errors import UsageError
    from dra_cluster.cli.top_endpoints import DirectAccess

    token = None
    for flag in DIRECT_FLAGS:
        if getattr(args, flag) and not (args.direct or args.endpoint):
            raise UsageError(
                "is used for direct connections only",
                where=f"--{flag.replace('_', '-')}",
                hint="the API server accepts any certificate of a pod, and forwards no token; add --direct",
            )
    if args.metrics_ca and not Path(args.metrics_ca).is_file():
        raise UsageError("the certificates cannot be read: no such file", where=f"--metrics-ca {args.metrics_ca}")
    if args.metrics_token_file:
        where = f"--metrics-token-file {args.metrics_token_file}"
        try:
            tokens = read_tokens(Path(args.metrics_token_file))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the token cannot be read: {getattr(error, 'strerror', None) or error}", where=where
            ) from error
        token = tokens[0].decode("ascii")
    return DirectAccess(
        authority=Path(args.metrics_ca) if args.metrics_ca else None, server_name=args.metrics_server_name, token=token
    )

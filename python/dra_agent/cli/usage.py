"""`dra-agent claim usage`: the memory that each prepared claim of this host uses now on its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from dra_agent.device_setup.shares.owners import HeldShare
    from dra_agent.device_setup.shares.usage import UsageReader
    from dra_agent.inventory.model import Device
    from dra_agent.kube_client import ApiClient
    from dra_agent.prepare.ledger import LedgerEntry

_GET_TIMEOUT_S = 10.0


def print_usage(args: argparse.Namespace) -> int:
    """Print one row for each device, or share of one, that a prepared claim holds."""
    from dra_agent.agent.setup_registry import command_host
    from dra_agent.cli.flags import chosen_namespace, in_namespace
    from dra_agent.cli.output import emit
    from dra_agent.cli.shown_host import shown_host
    from dra_agent.cli.table import table
    from dra_agent.device_setup.shares.owners import ProcessOwners, held_shares
    from dra_agent.device_setup.shares.usage import UsageReader
    from dra_agent.inventory.collector import collect
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET
    from dra_agent.topology import scan

    shown, namespace = shown_host(args), chosen_namespace(args)
    config = shown.config
    entries = _entries(shown.records)
    standalone = config.standalone or exists(config.state_dir / SOCKET)
    holdings = held_shares(entries, {} if standalone else _pods(args, entries))
    with command_host(config) as host:
        inventory = collect(host, scan(host), config.inventory, driver=config.driver_name)
        owners = ProcessOwners(host, [held for held, _ in holdings], standalone=standalone, is_sample=False)
        meter = UsageReader(host, config.state_dir, config.inventory.nvml_timeout, owners)
        try:
            rows = [
                _row(held, inventory.device(_name(held)), meter)
                for held, is_shown in holdings
                if is_shown and namespace in (None, held.claim.partition("/")[0])
            ]
        finally:
            meter.close()
    shown.announce(args.output)
    if args.output != "table":
        emit(rows, args.output)
        return 0
    table(
        ["device", "claim", "share", "limit", "used", "counted by"],
        (
            [
                row["device"],
                row["claim"],
                row["consumed"],
                _shown(row["limit"], "none") + (f", each {row['limit_for']}" if row["limit_for"] else ""),
                _shown(row["used"], "unknown"),
                row["counted_by"] or row["note"],
            ]
            for row in rows
        ),
        optional=("share",),
        prose=("counted by",),
        named=lambda row: str(row[1]),
        empty="no claim holds a device" + in_namespace(namespace),
    )
    return 0


def _entries(state_dir: Path) -> list[LedgerEntry]:
    from dra_agent.prepare.ledger_reader import read_copy

    entries, _ = read_copy(state_dir) or ([], None)
    return entries


def _pods(args: argparse.Namespace, entries: list[LedgerEntry]) -> dict[str, frozenset[str] | str]:
    """Return the pods that each claim is reserved for, by UIDs, or why they are not known."""
    from dra_agent.cli.connection import call_cluster, has_cluster
    from dra_agent.errors import AgentError

    if not entries:
        return {}
    if not has_cluster(args):
        why = "which pods use the claim is not known: name the API server with --kubeconfig"
        return dict.fromkeys((entry.uid for entry in entries), why)
    try:
        return call_cluster(args, lambda api: _reserved(api, entries))
    except AgentError as error:
        why = f"which pods use the claim is not known: {error.message}"
        return dict.fromkeys((entry.uid for entry in entries), why)


async def _reserved(api: ApiClient, entries: list[LedgerEntry]) -> dict[str, frozenset[str] | str]:
    import asyncio

    from dra_agent.api_object import consumers_of, is_pod
    from dra_agent.errors import AgentError
    from dra_agent.kube_client import RESOURCE_CLAIMS, NotFoundError

    async def one(entry: LedgerEntry) -> frozenset[str] | str:
        try:
            claim = await api.get(RESOURCE_CLAIMS, entry.name, entry.namespace, timeout=_GET_TIMEOUT_S)
        except NotFoundError:
            return "the claim was deleted from the API server"
        except AgentError as error:
            return f"which pods use the claim is not known: {error.message}"
        if claim["metadata"].get("uid") != entry.uid:
            return "the API server has another claim of this name"
        consumers = consumers_of(claim)
        for consumer in consumers:
            if not is_pod(consumer) or not consumer.get("uid"):
                return f"the claim is reserved for {consumer.get('resource')} {consumer.get('name')}, not for a pod"
        return frozenset(str(consumer["uid"]) for consumer in consumers)

    return dict(zip((entry.uid for entry in entries), await asyncio.gather(*map(one, entries)), strict=True))


def _name(held: HeldShare) -> str:
    return held.key.partition("/")[0]


def _row(held: HeldShare, device: Device | None, meter: UsageReader) -> dict[str, Any]:
    usage = meter.read(held, device)
    return {
        "device": _name(held),
        "claim": held.claim,
        "uid": held.uid,
        "key": held.key,
        "consumed": held.consumed,
        "limit": usage.limit,
        "limit_for": usage.limit_for,
        "used": usage.used,
        "counted_by": usage.counted_by,
        "note": usage.note,
    }


def _shown(amount: int | None, otherwise: str) -> str:
    return otherwise if amount is None else f"{amount / (1 << 20):.0f}Mi"

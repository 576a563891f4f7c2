"""`dra-agent claims --usage`: how much memory of its devices each prepared claim of this host has now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from dra_agent.inventory.device import Device
    from dra_agent.setup.shares.usage import Held, Meter


def print_usage(args: argparse.Namespace) -> int:
    """Print one row for each device, or share of one, that a prepared claim holds."""
    from dra_agent.agent.hosts import command_host
    from dra_agent.cli.output import emit, table
    from dra_agent.cli.shown_host import shown_host
    from dra_agent.inventory import take
    from dra_agent.setup.shares.usage import Meter
    from dra_agent.topology import scan

    shown = shown_host(args)
    config = shown.config
    with command_host(config) as host:
        inventory = take(host, scan(host), config.inventory, driver=config.driver_name)
        meter = Meter(host, config.state_dir, config.inventory.nvml_timeout)
        try:
            rows = [
                _row(held, name, inventory.device(name), meter)
                for held, name in _holdings(shown.records)
                if args.namespace in (None, held.claim.partition("/")[0])
            ]
        finally:
            meter.close()
    shown.announce(args.output)
    if args.output != "table":
        emit(rows, args.output)
        return 0
    table(
        ["device", "claim", "share", "held to", "used", "counted by"],
        (
            [
                row["device"],
                row["claim"],
                row["consumed"],
                _shown(row["limit"], "nothing") + (f", each {row['limit_for']}" if row["limit_for"] else ""),
                _shown(row["used"], "unknown"),
                row["counted_by"] or row["note"],
            ]
            for row in rows
        ),
    )
    return 0


def _holdings(state_dir: Any) -> list[tuple[Held, str]]:
    from dra_agent.inventory.shares import MEMORY
    from dra_agent.prepare.ledger_copy import read_copy
    from dra_agent.prepare.record import read
    from dra_agent.setup.shares.usage import Held

    entries, _ = read_copy(state_dir) or ([], None)
    return [
        (
            Held(
                entry.uid,
                f"{entry.namespace}/{entry.name}",
                item.key,
                item.consumed_capacity.get(MEMORY),
                tuple(item.requests),
            ),
            item.device,
        )
        for entry in entries
        if (record := read(entry)) is not None
        for item in record.devices
        if not item.admin_access
    ]


def _row(held: Held, name: str, device: Device | None, meter: Meter) -> dict[str, Any]:
    usage = meter.read(held, device)
    return {
        "device": name,
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

"""`dra-agent devices`: the devices of this host, their attributes, and the claims that hold them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NoReturn

from dra_agent.cli.flags import add_watch_flag
from dra_agent.cli.output import add_output_flag, rounded
from dra_agent.cli.parser import examples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dra_agent.agent.config import Config
    from dra_agent.cli.agent_view import DeviceHolders
    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.host import Host
    from dra_agent.inventory.api import Taint
    from dra_agent.inventory.model import Device, Inventory

EPILOG = examples(
    ("devices", "every device of this host"),
    ("devices gpu-0000-3b-00-0", "everything about one device"),
    ("devices --family gpu -o json", "the GPUs, for programs"),
    ("devices --simulate dgx-h100", "devices of a simulated DGX H100"),
    ("devices --watch", "devices as their state or their claims change"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the flags."""
    from dra_agent.agent.config import HOST_FLAGS, add_flags
    from dra_agent.inventory.model import FAMILIES

    parser.epilog = EPILOG
    parser.add_argument("name", nargs="?", metavar="DEVICE", help="show this device only, with all that is known of it")
    parser.add_argument("--family", choices=FAMILIES, help="show the devices of one family only")
    add_watch_flag(parser)
    add_flags(parser, HOST_FLAGS)
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print the devices; exit code 1 where the named device does not exist, or who holds devices is not known."""
    from dra_agent.agent.setup_registry import command_host
    from dra_agent.cli.agent_view import by_device, published
    from dra_agent.cli.output import emit, prints_names
    from dra_agent.cli.shown_host import shown_host
    from dra_agent.cli.terminal import progress
    from dra_agent.topology import scan

    shown = shown_host(args)
    config = shown.config
    if args.watch:
        shown.announce(args.output)
        with command_host(config) as host:
            _watch(args, shown, host)
    with command_host(config) as host, progress("reading the devices"):
        inventory = published(shown, host, scan(host))
        holders = by_device(shown)
    shown.announce(args.output)
    code = holders.warn()
    if args.name is not None:
        device = _named(inventory, args.name)
        if prints_names():
            print(device.name)
        elif args.output == "table":
            _show(device, holders.of(device.name), config)
        else:
            emit({**_document(device, holders, config), "notes": holders.notes}, args.output)
        return code
    chosen = [device for device in _in_order(inventory) if args.family in (None, device.family)]
    if args.output == "table":
        _list(chosen, holders)
        _print_problems(inventory)
        return code
    emit(listing(inventory, chosen, holders, config), args.output)
    return code


def _watch(args: argparse.Namespace, shown: ShownHost, host: Host) -> NoReturn:
    """Print the chosen devices, and each one again when its state, attributes or claims change."""
    from dra_agent.cli.agent_view import DeviceHolders, by_device, published
    from dra_agent.cli.table import Rows
    from dra_agent.cli.watch import watch
    from dra_agent.topology import scan

    if args.name is not None:
        _named(published(shown, host, scan(host)), args.name)
    rows = Rows(_COLUMNS, optional=_OPTIONAL)
    earlier = DeviceHolders()

    def fetch() -> list[dict[str, Any]]:
        nonlocal earlier
        current = shown.asked_again()
        inventory = published(current, host, scan(host))
        holders = by_device(current)
        holders.warn(earlier)
        earlier = holders
        return [
            {
                "document": {**_document(device, holders, shown.config), "notes": holders.notes},
                "cells": _cells(device, holders),
            }
            for device in _in_order(inventory)
            if args.family in (None, device.family) and args.name in (None, device.name)
        ]

    def show(items: list[dict[str, Any]]) -> None:
        rows.write(item["cells"] for item in items)

    def gone(item: dict[str, Any]) -> dict[str, Any]:
        cells = list(item["cells"])
        cells[_COLUMNS.index("state")] = _REMOVED
        return {"document": {**item["document"], "health": _REMOVED}, "cells": cells}

    watch(
        fetch,
        show,
        output=args.output,
        identity=lambda item: item["document"]["name"],
        gone=gone,
        document=lambda item: item["document"],
    )


def listing(inventory: Inventory, devices: Iterable[Device], holders: DeviceHolders, config: Config) -> dict[str, Any]:
    """Return devices for scripts, with the reason if one is not published; `holders` are the claims of each device."""
    return {
        "devices": [_document(device, holders, config) for device in devices],
        "excluded": inventory.excluded,
        "problems": inventory.problems,
        "notes": holders.notes,
    }


def _in_order(inventory: Inventory) -> list[Device]:
    from dra_agent.inventory.model import FAMILIES

    return sorted(inventory.devices, key=lambda device: FAMILIES.index(device.family))


def _named(inventory: Inventory, name: str) -> Device:
    import difflib

    from dra_agent.errors import PermanentError

    device = inventory.device(name)
    if device is not None:
        return device
    for exclusion in inventory.excluded:
        if exclusion.name == name:
            message = f"the device is here and is not published ({exclusion.code}): {exclusion.reason}"
            raise PermanentError(message, where=name, hint=exclusion.hint or None)
    near = difflib.get_close_matches(name, [device.name for device in inventory.devices], 1)
    hint = f"did you mean {near[0]}?" if near else "`dra-agent devices` lists the devices"
    raise PermanentError("no such device on this host", where=name, hint=hint)


def _value(device: Device, name: str) -> object:
    attribute = device.attributes.get(name)
    return None if attribute is None else attribute.value


def _state(device: Device, holders: list[str] | None) -> str:
    names = (taint.key.partition("/")[2] for taint in device.taints)
    causes = ", ".join(name for name in names if name != device.health)
    parts = [] if device.health == "healthy" else [f"{device.health} ({causes})" if causes else device.health]
    held = ["claims unknown"] if holders is None else [f"held by {holder}" for holder in holders]
    return ", ".join([*parts, *held]) or "ok"


def _list(devices: list[Device], holders: DeviceHolders) -> None:
    from dra_agent.cli.output import prints_names
    from dra_agent.cli.table import table

    if not devices:
        if not prints_names():
            print("no devices that can be claimed")
        return
    table(_COLUMNS, (_cells(device, holders) for device in devices), optional=_OPTIONAL)


_COLUMNS = ["name", "type", "vendor", "product", "numa", "switch", "memory", "state", "driver"]
_OPTIONAL = ("driver", "switch", "vendor", "numa", "memory", "product")
_REMOVED = "removed"
"""The state of a removed device in the output of --watch."""


def _cells(device: Device, holders: DeviceHolders) -> list[object]:
    return [
        device.name,
        _value(device, "type"),
        device.vendor,
        _value(device, "productName"),
        device.numa_node,
        device.pcie_switch,
        _memory(device),
        _state(device, holders.of(device.name)),
        _value(device, "driver"),
    ]


def _memory(device: Device) -> str | None:
    memory = device.capacity.get("memory")
    return None if memory is None else rounded(memory.value)


def _print_problems(inventory: Inventory) -> None:
    import sys

    sys.stdout.flush()
    for exclusion in inventory.excluded_by_reason():
        print(f"not published ({exclusion.code}): {exclusion.name}: {exclusion.reason}", file=sys.stderr)
    for problem in inventory.problems:
        label = "problem" if problem.severity == "error" else "warning"
        print(f"{label}: {problem}", file=sys.stderr)


def _show(device: Device, holders: list[str] | None, config: Config) -> None:
    from dra_agent.cli.table import table

    rows: list[tuple[str, str, object]] = [
        ("device", "name", device.name),
        ("device", "pool", _pool(device, config)),
        ("device", "health", device.health if device.health_reason is None else device.health_reason),
        ("device", "held by", "unknown" if holders is None else ", ".join(holders) or None),
    ]
    rows += [("attribute", name, _written(attribute.value)) for name, attribute in device.attributes.items()]
    rows += [("capacity", name, _exact(capacity.value)) for name, capacity in device.capacity.items()]
    rows += [("taint", taint.key, _since(taint)) for taint in device.taints]
    rows += [
        ("consumes", f"{consumed.counter_set}/{name}", counter.value)
        for consumed in device.consumes_counters
        for name, counter in consumed.counters.items()
    ]
    rows += [
        ("overhead", f"{name} {each}", amount)
        for name, cost in device.overhead.items()
        for each, amount in (("per pod", cost.per_pod), ("per container", cost.per_container))
        if amount is not None
    ]
    rows += [("node", node.path, node.role) for node in device.nodes]
    rows += [("known as", name, value) for name, value in device.identity.items()]
    table(["", "name", "value"], rows, optional=("",))


def _exact(value: str) -> str:
    short = rounded(value)
    return value if short == value else f"{value} ({short})"


def _since(taint: Taint) -> str:
    return f"{taint.effect} since {taint.time_added}" if taint.time_added else taint.effect


def _written(value: bool | int | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pool(device: Device, config: Config) -> str | None:
    """Return the name of its pool; None if no agent can run here, because the node has no name."""
    return device.pool(config.node) if config.node_problem is None else None


def _document(device: Device, holders: DeviceHolders, config: Config) -> dict[str, Any]:
    """Return a device for scripts: the API's object as it is published, and the agent's additional data."""
    return {
        **device.to_api(),
        "pool": _pool(device, config),
        "family": device.family,
        "pci_address": device.pci_address,
        "numa_node": device.numa_node,
        "pcie_switch": device.pcie_switch,
        "health": device.health,
        "health_reason": device.health_reason,
        "held_by": holders.of(device.name),
        "nodes": device.nodes,
        "identity": device.identity,
    }

"""Claims and health of devices as the agent of this host reports them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_agent.cli.shown_host import ShownHost
if TYPE_CHECKING:
    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.host import Host
    from dra_agent.inventory.model import Inventory
    from dra_agent.topology import Topology


_NAME = re.compile(r"[a-z]+-([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])(?:-|$)")
"""Device names come from the PCI address: gpu-0000-3b-00-0, gpu-0000-3b-00-0-mig-1g-10gb-4."""


def by_device(shown: ShownHost) -> dict[str, list[str]]:
    """Return the claims that hold each device, by its name; empty if no agent runs on this host."""
    from dra_agent.errors import AgentError
    from dra_agent.prepare.ledger_reader import read_copy
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET, Client, ListClaims

    holders: dict[str, list[str]] = {}
    if not shown.is_agents:
        return holders
    state_dir = shown.config.state_dir
    try:
        if exists(state_dir / SOCKET):
            with Client(state_dir / SOCKET) as agent:
                for claim in agent.call(ListClaims()):
                    for device in claim["devices"]:
                        holders.setdefault(device["device"], []).append(f"{claim['namespace']}/{claim['name']}")
            return holders
        entries, _ = read_copy(state_dir) or ([], None)
    except AgentError:
        # The agent may stop during the request; the devices can be shown without it.
        return {}
    for entry in entries:
        for device in entry.devices:
            holders.setdefault(device.device, []).append(entry.full_name)
    return holders


def accepts_claims(shown: ShownHost) -> bool:
    """Return whether new claims get devices: not while the agent of this host has a hint or notice of a reclaim."""
    from dra_agent.errors import AgentError
    from dra_agent.reclaim.control import Status, send_request

    if not shown.is_agents:
        return True
    try:
        return send_request(shown.config.state_dir, Status())["phase"] not in ("hint", "notice")
    except AgentError:
        return True  # the agent may stop during the request


def by_address(shown: ShownHost) -> dict[str, list[str]] | None:
    """Return the claims that hold a PCI function or a partition of it; None if no agent runs on this host."""
    if not shown.is_agents:
        return None
    holders: dict[str, list[str]] = {}
    for name, claims in by_device(shown).items():
        if match := _NAME.match(name):
            domain, bus, device, function = match.groups()
            known = holders.setdefault(f"{domain}:{bus}:{device}.{function}", [])
            known.extend(claim for claim in claims if claim not in known)
    return holders


def collected(shown: ShownHost, host: Host, topology: Topology) -> Inventory:
    """Return the inventory with the health of its devices, also of those that another manager advertises."""
    from dra_agent.agent.device_state import boot_id
    from dra_agent.health.state_file import HealthStateFile
    from dra_agent.health.taints import apply_recorded
    from dra_agent.inventory.collector import collect
    from dra_agent.inventory.passthrough import VfioBindingStore

    config = shown.config
    bindings = VfioBindingStore(shown.records)
    inventory = collect(host, topology, config.inventory, driver=config.driver_name, bindings=bindings)
    noted = HealthStateFile(shown.records, boot_id(host.proc)).read()
    return apply_recorded(inventory, config.health, config.driver_name, noted)


def published(shown: ShownHost, host: Host, topology: Topology) -> Inventory:
    """Return the inventory as it is published: with health, and without devices of other managers."""
    from dra_agent.conflicts import exclude, load_conflicts

    inventory = collected(shown, host, topology)
    saved = load_conflicts(shown.records)
    return inventory if saved.published else exclude(inventory, saved.verdict)

"""Claims and health of devices as the agent of this host reports them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.api_object import full_name, results_of

if TYPE_CHECKING:
    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.host import Host
    from dra_agent.inventory.model import Inventory
    from dra_agent.topology import Topology


_NAME = re.compile(r"[a-z]+-([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])(?:-|$)")
"""Device names come from the PCI address: gpu-0000-3b-00-0, gpu-0000-3b-00-0-mig-1g-10gb-4."""


@dataclass(frozen=True)
class DeviceHolders:
    """The claims that hold the devices of a host."""

    claims: Mapping[str, list[str]] = field(default_factory=dict)
    """NAMESPACE/NAME of the claims that hold each device, by its name."""
    unknown: str = ""
    """Why they are not known."""

    def of(self, device: str) -> list[str] | None:
        """Return the claims that hold a device; None if they are not known."""
        return None if self.unknown else self.claims.get(device, [])

    def warn(self) -> None:
        """Print on standard error why the claims are not known, if they are not."""
        import sys

        if self.unknown:
            print(f"warning: the claims that hold devices are not known: {self.unknown}", file=sys.stderr)


def devices_of_claims(state_dir: Path) -> list[tuple[str, list[str]]]:
    """Return NAMESPACE/NAME and devices of the claims that hold devices here; the API server is not needed for it.

    Raises AgentError if neither the agent nor its ledger can be read.
    """
    from dra_agent.prepare.ledger_reader import read_copy
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET, Client

    if exists(state_dir / SOCKET):
        with Client(state_dir / SOCKET) as agent:
            allocated = [view["claim"] for view in agent.claims(allocated=True)]
        return [(full_name(claim), [result["device"] for result in results_of(claim)]) for claim in allocated]
    entries, _ = read_copy(state_dir) or ([], None)
    return [(entry.full_name, [device.device for device in entry.devices]) for entry in entries]


def by_device(shown: ShownHost) -> DeviceHolders:
    """Return the claims that hold each device; none if no agent runs on this host."""
    from dra_agent.errors import AgentError

    if not shown.is_agents:
        return DeviceHolders()
    holders: dict[str, list[str]] = {}
    try:
        for claim, devices in devices_of_claims(shown.config.state_dir):
            for device in dict.fromkeys(devices):
                holders.setdefault(device, []).append(claim)
    except AgentError as error:
        return DeviceHolders(unknown=str(error))
    return DeviceHolders(holders)


def accepts_claims(shown: ShownHost) -> bool:
    """Return whether new claims get devices: not while the agent of this host has a hint or notice of a reclaim.

    False also if it is not known, because the agent does not respond.
    """
    from dra_agent.errors import AgentError
    from dra_agent.reclaim.control import Status, send_request

    if not shown.is_agents:
        return True
    try:
        return send_request(shown.config.state_dir, Status())["phase"] not in ("hint", "notice")
    except AgentError:
        return False


def by_address(shown: ShownHost) -> dict[str, list[str]] | None:
    """Return the claims that hold a PCI function or a partition of it.

    None if no agent runs on this host, or if the claims are not known.
    """
    known_claims = by_device(shown)
    if not shown.is_agents or known_claims.unknown:
        return None
    holders: dict[str, list[str]] = {}
    for name, claims in known_claims.claims.items():
        if match := _NAME.match(name):
            domain, bus, device, function = match.groups()
            known = holders.setdefault(f"{domain}:{bus}:{device}.{function}", [])
            known.extend(claim for claim in claims if claim not in known)
    return holders


def collected(shown: ShownHost, host: Host, topology: Topology) -> Inventory:
    """Return the inventory with the health of its devices, also of those that another manager advertises."""
    from dra_agent.health.state_file import HealthStateFile
    from dra_agent.health.taints import apply_recorded
    from dra_agent.inventory.collector import collect
    from dra_agent.inventory.passthrough import VfioBindingStore

    config = shown.config
    bindings = VfioBindingStore(shown.records)
    held = by_device(shown).claims
    inventory = collect(host, topology, config.inventory, driver=config.driver_name, bindings=bindings, held=held)
    noted = HealthStateFile(shown.records, host.boot_id()).read()
    return apply_recorded(inventory, config.health, config.driver_name, noted)


def published(shown: ShownHost, host: Host, topology: Topology) -> Inventory:
    """Return the inventory as it is published: with health, and without devices of other managers."""
    from dra_agent.conflicts import exclude, load_conflicts

    inventory = collected(shown, host, topology)
    saved = load_conflicts(shown.records)
    return inventory if saved.published else exclude(inventory, saved.conflicts)

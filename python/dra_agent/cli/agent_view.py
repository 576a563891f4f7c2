"""Claims and health of devices as the agent of this host reports them, or its ledger if it does not respond."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
    from_ledger: str = ""
    """Why they are those of the ledger, which has prepared claims only, and not those of the agent."""

    @property
    def notes(self) -> list[str]:
        """What is missing from the claims, and why."""
        if self.unknown:
            return [f"the claims that hold devices are not known: {self.unknown}"]
        if self.from_ledger:
            return [f"the claims that hold devices are those of the ledger: {self.from_ledger}"]
        return []

    def of(self, device: str) -> list[str] | None:
        """Return the claims that hold a device; None if they are not known."""
        return None if self.unknown else self.claims.get(device, [])

    def warn(self, known: DeviceHolders | None = None) -> int:
        """Print the notes on standard error, unless `known` had them; returns the exit code of a command."""
        import sys

        for note in self.notes if known is None or known.notes != self.notes else ():
            print(f"{'warning' if self.unknown else 'note'}: {note}", file=sys.stderr, flush=True)
        return 1 if self.unknown else 0


def devices_of_claims(state_dir: Path) -> list[tuple[str, list[str]]]:
    """Return NAMESPACE/NAME and devices of the claims that hold devices here; the API server is not needed for it.

    Raises AgentError if neither the agent nor its ledger can be read.
    """
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET, Client

    if exists(state_dir / SOCKET):
        with Client(state_dir / SOCKET) as agent:
            allocated = [view["claim"] for view in agent.claims(allocated=True)]
        return [(full_name(claim), [result["device"] for result in results_of(claim)]) for claim in allocated]
    return _of_ledger(state_dir) or []


def _of_ledger(state_dir: Path) -> list[tuple[str, list[str]]] | None:
    """Return the claims of the ledger and their devices; None if there is no ledger. Raises AgentError."""
    from dra_agent.prepare.ledger_reader import read_copy

    if (read := read_copy(state_dir)) is None:
        return None
    return [(entry.full_name, [device.device for device in entry.devices]) for entry in read[0]]


def by_device(shown: ShownHost) -> DeviceHolders:
    """Return the claims that hold each device of this host.

    They are those of its agent; if that does not respond, those of its ledger, which needs permission to read it. No
    device of a host without a ledger is held.
    """
    from dra_agent.agent.about import RunningAgent
    from dra_agent.errors import AgentError

    if not isinstance(shown.answer, RunningAgent):
        return _from_ledger(shown, shown.answer.reason)
    if not shown.is_agents:
        return DeviceHolders()
    try:
        return DeviceHolders(_grouped(devices_of_claims(shown.config.state_dir)))
    except AgentError as error:
        return _from_ledger(shown, str(error))


def _from_ledger(shown: ShownHost, reason: str) -> DeviceHolders:
    from dra_agent.errors import AgentError

    try:
        held = _of_ledger(shown.records)
    except AgentError as error:
        ledger = f"the ledger {error.message}"
        return DeviceHolders(unknown=f"{reason}; {ledger}" if error.message not in reason else reason)
    return DeviceHolders() if held is None else DeviceHolders(_grouped(held), from_ledger=reason)


def _grouped(held: Iterable[tuple[str, list[str]]]) -> dict[str, list[str]]:
    holders: dict[str, list[str]] = {}
    for claim, devices in held:
        for device in dict.fromkeys(devices):
            holders.setdefault(device, []).append(claim)
    return holders


def accepts_claims(shown: ShownHost) -> bool:
    """Return whether new claims get devices: not while the agent of this host has a hint or notice of a reclaim.

    False also if no agent responds: none allocates a device, or it is not known.
    """
    from dra_agent.errors import AgentError
    from dra_agent.reclaim.control import Status, send_request

    if not shown.is_agents:
        return False
    try:
        return send_request(shown.config.state_dir, Status())["phase"] not in ("hint", "notice")
    except AgentError:
        return False


def by_address(shown: ShownHost, known: DeviceHolders) -> dict[str, list[str]] | None:
    """Return the claims that hold a PCI function or a partition of it.

    None if the claims are not known, or if no agent has run on this host.
    """
    if known.unknown or not (shown.is_agents or known.from_ledger):
        return None
    holders: dict[str, list[str]] = {}
    for name, claims in known.claims.items():
        if match := _NAME.match(name):
            domain, bus, device, function = match.groups()
            listed = holders.setdefault(f"{domain}:{bus}:{device}.{function}", [])
            listed.extend(claim for claim in claims if claim not in listed)
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

"""What to set up for a claim before it can be used: by its configuration, its classes', and by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Device
from dra_agent.prepare.allocation import AllocatedDevice, ClaimAllocation, ConfigEntry
from dra_agent.prepare.config import decode
from dra_agent.prepare.setup import DeviceSetup, Kind, SetupDevice, UnsuitableError


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One vendor set-up for a claim, with the devices that it is for."""

    setup: DeviceSetup
    parameters: msgspec.Struct
    raw_parameters: Any
    """With apiVersion and kind, to be kept in the ledger."""
    devices: tuple[SetupDevice, ...]


@dataclass(slots=True)
class _Candidate:
    """Parameters of one set-up, and the devices that get them."""

    setup: DeviceSetup
    parameters: msgspec.Struct
    raw: Any
    entry: ConfigEntry | None = None
    """None: by default."""
    devices: list[SetupDevice] = field(default_factory=list)
    suits: bool = False
    unsuitable: PermanentError | None = None

    def claims(self, device: Device, claim: str) -> bool:
        """Tell whether it is for this device; PermanentError where the device cannot be set up so."""
        try:
            self.setup.check(device, self.parameters)
        except UnsuitableError as error:
            self.unsuitable = _refusal(self.entry, device, error, claim)
            if self.entry is not None and self.entry.requests:
                raise self.unsuitable from error
            return False
        except PermanentError as error:
            raise _refusal(self.entry, device, error, claim) from error
        self.suits = True
        return True


def plan(
    allocation: ClaimAllocation, devices: Mapping[tuple[str, str], Device], setups: Mapping[Kind, DeviceSetup]
) -> tuple[SetupStep, ...]:
    """Decide what to set up for a claim; PermanentError names the field of what is not understood or cannot be.

    `devices` are those of the allocation, by pool and name. Where several entries of a kind are for one device the last
    one wins: the class's come before the claim's own. Steps come in the order of `setups`, those of one set-up as the
    claim configures them and what it sets up by default last. What is allocated for admin access is never set up.
    """
    claim = str(allocation)
    wishes = [_decoded(entry, setups, claim) for entry in allocation.config]
    given: list[_Candidate] = []
    for item in allocation.devices:
        if item.admin_access:
            continue
        device = devices[item.pool, item.device]
        winners: dict[Kind, _Candidate] = {}
        for wish in reversed(wishes):
            if wish.entry is None or not wish.entry.applies_to(item.results):
                continue
            if wish.setup.kind in winners:
                wish.suits = True
            elif wish.claims(device, claim):
                winners[wish.setup.kind] = wish
        for kind, setup in setups.items():
            if kind not in winners and (default := _by_default(setup, device, given)) is not None:
                winners[kind] = default
        for wish in winners.values():
            wish.devices.append(_to_set_up(item, device))
    for wish in wishes:
        if wish.unsuitable is not None and not wish.suits:
            raise wish.unsuitable
    order = list(setups)
    return tuple(
        SetupStep(wish.setup, wish.parameters, wish.raw, tuple(wish.devices))
        for wish in sorted([*wishes, *given], key=lambda wish: order.index(wish.setup.kind))
        if wish.devices
    )


def _decoded(entry: ConfigEntry, setups: Mapping[Kind, DeviceSetup], claim: str) -> _Candidate:
    setup, parameters = decode(entry.parameters, setups, field=f"{entry.field}.opaque.parameters", where=claim)
    return _Candidate(setup, parameters, entry.parameters, entry)


def _by_default(setup: DeviceSetup, device: Device, given: list[_Candidate]) -> _Candidate | None:
    """Find what a set-up does with a device unasked: devices that get the same share one step."""
    parameters = setup.default(device)
    if parameters is None:
        return None
    for wish in given:
        if wish.setup is setup and wish.parameters == parameters:
            return wish
    version, kind = setup.kind
    settings: dict[str, Any] = msgspec.to_builtins(parameters)
    given.append(_Candidate(setup, parameters, {"apiVersion": version, "kind": kind, **settings}))
    return given[-1]


def _to_set_up(item: AllocatedDevice, device: Device) -> SetupDevice:
    return SetupDevice(device, item.requests, item.share_id, dict(item.consumed_capacity or {}), item.admin_access)


def _refusal(entry: ConfigEntry | None, device: Device, error: PermanentError, claim: str) -> PermanentError:
    field = f"{entry.field}.opaque.parameters: " if entry is not None else ""
    return PermanentError(
        f"{field}{error.message} (device {device.name})",
        where=claim,
        hint=error.hint or "correct the settings, or name the requests that they are for",
    )

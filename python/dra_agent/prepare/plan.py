"""Selects the set-ups of a claim: from its configuration, its classes' configuration, and defaults."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Device
from dra_agent.prepare.allocation import ClaimAllocation, ConfigEntry
from dra_agent.prepare.config import decode
from dra_agent.prepare.setup import DeviceSetup, Kind, SetupDevice, UnsuitableError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One vendor set-up for a claim, with its devices."""

    setup: DeviceSetup
    parameters: msgspec.Struct
    raw_parameters: Any
    """With apiVersion and kind, for the ledger."""
    devices: tuple[SetupDevice, ...]


@dataclass(slots=True)
class _Candidate:
    """Parameters of one set-up, and the devices selected for it."""

    setup: DeviceSetup
    parameters: msgspec.Struct
    raw: Any
    entry: ConfigEntry | None = None
    """None for a default."""
    devices: list[SetupDevice] = field(default_factory=list)
    suits: bool = False
    unsuitable: PermanentError | None = None

    def applies_to(self, device: Device, claim: str) -> bool:
        """Return whether it applies to this device; raises PermanentError if the device does not support it."""
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
    """Select the set-ups of a claim; PermanentError names the field that is invalid or cannot be satisfied.

    `devices` are the devices of the allocation, by pool and name. If several entries of a kind apply to one device the
    last one takes precedence: the class's precede the claim's own. Steps are in the order of `setups`, those of one
    set-up as the claim configures them and what it sets up by default last. Devices for admin access are never set
    up.
    """
    claim = str(allocation)
    candidates = [_decoded(entry, setups, claim) for entry in allocation.config]
    defaults: list[_Candidate] = []
    conflicts: set[str] = set()
    for item in allocation.devices:
        if item.admin_access:
            continue
        device = devices[item.pool, item.device]
        selected: dict[Kind, _Candidate] = {}
        for candidate in reversed(candidates):
            if candidate.entry is None or not candidate.entry.applies_to(item.allocated_requests):
                continue
            if candidate.setup.kind in selected:
                candidate.suits = True
                conflicts |= _conflict(candidate, selected[candidate.setup.kind])
            elif candidate.applies_to(device, claim):
                selected[candidate.setup.kind] = candidate
        for kind, setup in setups.items():
            if kind not in selected and (default := _by_default(setup, device, defaults)) is not None:
                selected[kind] = default
        for candidate in selected.values():
            candidate.devices.append(SetupDevice(item, device))
    for candidate in candidates:
        if candidate.unsuitable is not None and not candidate.suits:
            raise candidate.unsuitable
    for conflict in sorted(conflicts):
        log.warning(f"settings of several classes conflict: {conflict}", extra={"claim": claim})
    order = list(setups)
    return tuple(
        SetupStep(candidate.setup, candidate.parameters, candidate.raw, tuple(candidate.devices))
        for candidate in sorted([*candidates, *defaults], key=lambda candidate: order.index(candidate.setup.kind))
        if candidate.devices
    )


def _conflict(ignored: _Candidate, applied: _Candidate) -> set[str]:
    """Return that settings of a class are ignored for those of another; kube-scheduler no longer mixes them up.

    Before November 2025 it wrote the settings of each class without the requests of the class, so that those of the
    last class apply to all devices of the claim (kubernetes/kubernetes, allocator of dynamic-resource-allocation).
    """
    entries = ignored.entry, applied.entry
    if any(one is None or not one.from_class or one.requests for one in entries):
        return set()
    if ignored.parameters == applied.parameters:
        return set()
    first, last = (str(one.field) for one in entries if one is not None)
    return {
        f"{first} and {last} are of {ignored.setup.kind[1]} and name no requests, as this kube-scheduler writes them; "
        "the last one applies to all devices: request the classes in separate claims, or configure the claim"
    }


def _decoded(entry: ConfigEntry, setups: Mapping[Kind, DeviceSetup], claim: str) -> _Candidate:
    setup, parameters = decode(entry.parameters, setups, field=f"{entry.field}.opaque.parameters", where=claim)
    return _Candidate(setup, parameters, entry.parameters, entry)


def _by_default(setup: DeviceSetup, device: Device, defaults: list[_Candidate]) -> _Candidate | None:
    """Return the default set-up of a device; devices with equal parameters share one."""
    parameters = setup.default(device)
    if parameters is None:
        return None
    for candidate in defaults:
        if candidate.setup is setup and candidate.parameters == parameters:
            return candidate
    version, kind = setup.kind
    settings: dict[str, Any] = msgspec.to_builtins(parameters)
    defaults.append(_Candidate(setup, parameters, {"apiVersion": version, "kind": kind, **settings}))
    return defaults[-1]


def _refusal(entry: ConfigEntry | None, device: Device, error: PermanentError, claim: str) -> PermanentError:
    field = f"{entry.field}.opaque.parameters: " if entry is not None else ""
    return PermanentError(
        f"{field}{error.message} (device {device.name})",
        where=claim,
        hint=error.hint or "correct the settings, or name the requests that they are for",
    )

"""Configuration that claims and classes carry for this driver: decoded strictly, and given to devices in order.

Which kinds there are is said by the vendor set-ups that the agent was started with; none of them is known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.prepare.allocation import AllocatedDevice, Allocation, ConfigEntry
from dra_agent.prepare.setup import VendorSetup

Kind = tuple[str, str]
"""apiVersion and kind."""


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One vendor set-up that a claim asks for, with the devices that it is for."""

    setup: VendorSetup
    parameters: msgspec.Struct
    raw_parameters: Any
    """As the claim has them, to be kept in the ledger."""
    devices: tuple[AllocatedDevice, ...]


def plan(allocation: Allocation, setups: Mapping[Kind, VendorSetup]) -> tuple[SetupStep, ...]:
    """Decide what to set up for a claim; PermanentError names the field of what is not understood.

    Where several entries of a kind are for one device the last one wins: the class's come before the claim's own.
    """
    decoded = [(entry, *_decode(entry, setups, str(allocation))) for entry in allocation.config]
    devices_of: dict[int, list[AllocatedDevice]] = {}
    for device in allocation.devices:
        winners: dict[Kind, int] = {}
        for index, (entry, setup, _) in enumerate(decoded):
            if entry.applies_to(device.results):
                winners[setup.kind] = index
        for index in winners.values():
            devices_of.setdefault(index, []).append(device)
    return tuple(
        SetupStep(decoded[index][1], decoded[index][2], decoded[index][0].parameters, tuple(devices))
        for index, devices in sorted(devices_of.items())
    )


def _decode(entry: ConfigEntry, setups: Mapping[Kind, VendorSetup], claim: str) -> tuple[VendorSetup, msgspec.Struct]:
    field = f"{entry.field}.opaque.parameters"
    if not isinstance(entry.parameters, Mapping):
        raise PermanentError(f"{field} is not an object", where=claim, todo="give apiVersion, kind and the settings")
    settings = dict(entry.parameters)
    kind = (settings.pop("apiVersion", None), settings.pop("kind", None))
    for name, value in zip(("apiVersion", "kind"), kind, strict=True):
        if not isinstance(value, str):
            raise PermanentError(f"{field}.{name} is missing or no text", where=claim, todo="say which kind of set-up")
    setup = setups.get(kind)
    if setup is None:
        known = ", ".join(sorted(f"{name} of {version}" for version, name in setups)) or "none"
        raise PermanentError(
            f"{field}.kind: {kind[1]!r} of {kind[0]!r} is not known to this agent",
            where=claim,
            todo=f"remove it from the claim or its class; known kinds: {known}",
        )
    try:
        return setup, msgspec.convert(settings, setup.parameters)
    except msgspec.ValidationError as error:
        raise PermanentError(f"{field}: {error}", where=claim, todo="correct the settings") from error

"""Causes: what can be wrong with a device, how severe each is, and what XIDs mean.

XIDs are those of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.model import Device


class Severity(IntEnum):
    """How bad a cause is; more is worse."""

    NOTICE = 0
    """Nothing is known to be wrong, and nothing would tell us."""
    DEGRADED = 1
    """New work should go elsewhere; what runs may go on, or knows itself that it failed."""
    FATAL = 2
    """Nothing that uses the device can go on."""


class HealthIssue(msgspec.Struct, frozen=True):
    """One thing that is wrong with a device; `name` is the last part of its taint's key."""

    name: str
    severity: Severity
    message: str
    confirmed: bool = True
    """False: one look showed it, which evicts nothing (confirmation.py)."""


UNMONITORED = "unmonitored"
UNHEALTHY = "unhealthy"
"""Where a back end says no more than that."""
_SEVERITIES = {"gpu-lost": Severity.FATAL, UNMONITORED: Severity.NOTICE}

XIDS = {
    32: "invalid commands from a program",
    48: "an uncorrected memory error",
    54: "auxiliary power is not connected",
    56: "the display engine failed",
    61: "the internal microcontroller stopped",
    62: "the power controller halted",
    63: "a row of memory was noted for repair",
    64: "a row of memory could not be noted for repair",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    121: "an error of the link between chips",
    140: "an unrecovered memory error",
    143: "it could not be initialised",
    154: "the driver asks for a recovery",
}

KNOWN_CAUSES = (*_SEVERITIES, UNHEALTHY, *(f"xid-{number}" for number in XIDS))
"""Causes that can be named before they occur."""


def of_device(device: Device) -> list[HealthIssue]:
    """List what the last look at a device showed."""
    causes = [HealthIssue(ailment.cause, severity(ailment.cause), ailment.message) for ailment in device.ailments]
    if not causes and device.health == "unhealthy":
        causes.append(HealthIssue(UNHEALTHY, severity(UNHEALTHY), device.health_reason or "the device is not healthy"))
    if device.health == "unmonitored":
        causes.append(HealthIssue(UNMONITORED, Severity.NOTICE, device.health_reason or "its health is not monitored"))
    return causes


def of_fault(name: str, message: str, settings: HealthSettings) -> HealthIssue | None:
    """Say what something that happened means; None where the settings say that it is none of the device's fault."""
    number = xid(name)
    if number is None:
        return HealthIssue(name, severity(name), message)
    if number in settings.ignored_xids:
        return None
    known = XIDS.get(number)
    text = f"{message}: {known}" if known else message
    return HealthIssue(name, Severity.FATAL if number in settings.fatal_xids else Severity.DEGRADED, text)


def concerns_whole_gpu(name: str, settings: HealthSettings) -> bool:
    """Whether something that was told of a part of a GPU is wrong with all of it."""
    number = xid(name)
    return number is not None and number in settings.gpu_xids


def severity(name: str) -> Severity:
    """Say how severe a cause is; one that is not known is taken seriously."""
    return _SEVERITIES.get(name, Severity.DEGRADED)


def xid(name: str) -> int | None:
    """Give the number of a cause that is an XID."""
    kind, dash, number = name.partition("-")
    return int(number) if kind == "xid" and dash and number.isdecimal() else None

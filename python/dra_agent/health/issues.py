"""Causes: the issues that a device can have, the severity of each, and the meaning of XIDs.

XIDs are from NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.model import HOST_USE, NOT_CLAIMABLE, STARTING, Device


class Severity(IntEnum):
    """How bad a cause is; more is worse."""

    NOTICE = 0
    """The device is not monitored."""
    DEGRADED = 1
    """New work should go elsewhere; running work may continue, or has failed visibly."""
    FATAL = 2
    """Processes that use the device cannot continue."""


class HealthIssue(msgspec.Struct, frozen=True):
    """One issue of a device; `name` is the last part of its taint's key."""

    name: str
    severity: Severity
    message: str
    confirmed: bool = True
    """False: one observation showed it, which evicts nothing (`hysteresis.Confirmation`)."""
    transient: bool = False
    """It may be a stage of a start (`hysteresis.Grace`)."""


UNMONITORED = "unmonitored"
UNHEALTHY = "unhealthy"
"""Default text of issues without details."""
SETUP_FAILED = "setup-failed"
"""The cause of a device whose set-up for a claim failed before the pod of the claim was bound: an event."""
_SEVERITIES = {"gpu-lost": Severity.FATAL, UNMONITORED: Severity.NOTICE, STARTING: Severity.NOTICE}

XIDS = {
    32: "invalid commands from a program",
    46: "the GPU stopped processing",
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
    119: "the GPU System Processor (GSP) does not respond",
    120: "the GPU System Processor (GSP) failed",
    121: "an error of the link between chips",
    136: "the training of an NVLink failed",
    137: "an NVLink privilege error",
    140: "an unrecovered memory error",
    143: "it could not be initialised",
    144: "an NVLink error (SAW)",
    145: "an NVLink error (RLW)",
    146: "an NVLink error (TLW)",
    147: "an NVLink error (TREX)",
    148: "an NVLink error (NVLPW)",
    149: "an NVLink error (NETIR)",
    150: "an NVLink error (MSE)",
    151: "the rotation of a key failed",
    154: "the driver requests a recovery",
    155: "an NVLink error that the software defines",
    156: "a resource was retired",
    157: "a resource could not be retired",
    158: "a fatal timeout",
    160: "a channel was retired",
    161: "a channel could not be retired",
    167: "a fatal timeout of PCIe",
    168: "the capacity of its memory is reduced",
    171: "an uncorrected error of device memory",
    172: "an uncorrected error of internal memory",
    999: "an error whose number NVML does not know",
}
"""Meanings by number (NVIDIA's XID catalog, docs.nvidia.com/deploy/xid-errors). 999: nvmlEventData_t in nvml.h. Whether
a GPU needs a recovery is the driver's decision (inventory.nvidia.recovery)."""

KNOWN_CAUSES = (
    *_SEVERITIES,
    UNHEALTHY,
    SETUP_FAILED,
    HOST_USE,
    NOT_CLAIMABLE,
    "fabric-not-ready",
    "fabric-degraded",
    "gpu-unavailable",
    "memory-poison",
    "driver-missing",
    *(f"xid-{number}" for number in XIDS),
)
"""Causes that can be named before they occur."""

SEEN_IN_SYSFS = frozenset({HOST_USE, NOT_CLAIMABLE})
"""Causes that every observation covers, also one without the device's driver."""


def of_device(device: Device) -> list[HealthIssue]:
    """Return the issues of the last observation of a device."""
    causes = [
        HealthIssue(
            issue.cause,
            severity(issue.cause),
            issue.message,
            transient=issue.transient and issue.cause != STARTING,
        )
        for issue in device.issues
    ]
    if not causes and device.health == "unhealthy":
        causes.append(HealthIssue(UNHEALTHY, severity(UNHEALTHY), device.health_reason or "the device is not healthy"))
    if device.health == "unmonitored":
        causes.append(HealthIssue(UNMONITORED, Severity.NOTICE, device.health_reason or "its health is not monitored"))
    return causes


def of_fault(name: str, message: str, settings: HealthSettings) -> HealthIssue | None:
    """Return the issue of an event; None if the settings ignore it."""
    number = xid(name)
    if number is None:
        return HealthIssue(name, severity(name), message)
    if number in settings.ignored_xids:
        return None
    known = XIDS.get(number)
    text = f"{message}: {known}" if known else message
    return HealthIssue(name, Severity.FATAL if number in settings.fatal_xids else Severity.DEGRADED, text)


def concerns_whole_gpu(name: str, settings: HealthSettings) -> bool:
    """Whether an event of a partition affects the whole GPU."""
    number = xid(name)
    return number is not None and number in settings.gpu_xids


def severity(name: str) -> Severity:
    """Return the severity of an issue; an unknown one is serious."""
    return _SEVERITIES.get(name, Severity.DEGRADED)


def xid(name: str) -> int | None:
    """Return the number of a cause that is an XID."""
    kind, dash, number = name.partition("-")
    return int(number) if kind == "xid" and dash and number.isdecimal() else None

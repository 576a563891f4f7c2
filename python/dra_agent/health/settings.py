"""The `[health]` section of the configuration: taints by severity, durations, and the meaning of XIDs.

XIDs are from NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

TaintEffect = Literal["NoExecute", "NoSchedule", "tell", "none"]
"""tell: a taint with the effect None, which is informational. none: no taint."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=7 * 24 * 3600)]
Xids = Annotated[tuple[int, ...], msgspec.Meta(max_length=256)]


class HealthSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[health]`."""

    fatal: TaintEffect = "NoExecute"
    """Taint of a device that cannot be used any more: its pods are evicted and start again elsewhere."""
    degraded: TaintEffect = "NoSchedule"
    """Taint for an issue that running pods may survive: they keep the device, and new pods do not get it."""
    unmonitored: TaintEffect = "tell"
    """Taint of a device that is not monitored; `"tell"` is a taint with the effect None."""
    recovery_seconds: Seconds = 60.0
    """Seconds without an issue before its taint is removed."""
    event_seconds: Seconds = 300.0
    """Seconds for which an event, such as an XID, counts after it occurred last."""
    ignored_xids: Xids = (13, 31, 43, 45, 68, 109)
    """XIDs that programs cause: page faults, resets of a channel, a preemptive clean-up. A configured list replaces
    the default: every other XID counts."""
    fatal_xids: Xids = (79,)
    """XIDs after which the device cannot be used: the effect `fatal` applies."""
    gpu_xids: Xids = (
        *(46, 48, 54, 61, 62, 63, 64, 74, 79, 92, 95, 110, 119, 120, 121, 136, 140, 143),
        *(144, 145, 146, 147, 148, 149, 150, 154, 155, 156, 158, 167, 168, 171, 172),
    )
    """XIDs that concern the whole GPU, regardless of the MIG instance that the driver names."""
    fabric_grace_seconds: Seconds = 120.0
    """Seconds that a GPU may register with its NVLink fabric at boot before it counts as not ready."""
    corrected_errors_per_hour: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Corrected memory errors within an hour from which a device counts as degraded. 0: they never count."""

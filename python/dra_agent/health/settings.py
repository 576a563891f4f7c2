"""The `[health]` section of the configuration: what each severity does to a device, and for how long."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

TaintEffect = Literal["NoExecute", "NoSchedule", "tell", "none"]
"""tell: a taint whose effect is Kubernetes' None: everybody sees it, and it keeps nobody away. none: no taint."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=7 * 24 * 3600)]
Xids = Annotated[tuple[int, ...], msgspec.Meta(max_length=256)]


class HealthSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[health]`."""

    fatal: TaintEffect = "NoExecute"
    """For causes that nothing survives which uses the device: its pods are evicted, to start again elsewhere."""
    degraded: TaintEffect = "NoSchedule"
    """For causes that running pods may survive: they keep the device, and nobody new gets it."""
    unmonitored: TaintEffect = "tell"
    """For devices of which nobody would hear if they failed."""
    recovery_seconds: Seconds = 60.0
    """For how long nothing must be wrong before a taint goes."""
    event_seconds: Seconds = 300.0
    """For how long something that happened, such as an XID, counts after it happened last."""
    ignored_xids: Xids = (13, 31, 43, 45, 68, 109)
    """XIDs that programs cause: page faults, resets of a channel, a preemptive clean-up. Written down, it is the whole
    list: what is left out of it counts."""
    fatal_xids: Xids = (79,)
    gpu_xids: Xids = (48, 54, 61, 62, 63, 64, 74, 79, 92, 95, 110, 119, 120, 121, 140, 143, 154)
    """XIDs that are about the whole GPU, whichever MIG instance the driver names: it is lost, or has to be reset."""
    corrected_errors_per_hour: Annotated[int, msgspec.Meta(ge=0)] = 0
    """From how many corrected memory errors within an hour on a device counts as degraded. 0: they never count."""

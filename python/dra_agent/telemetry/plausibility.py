"""Drops values that cannot be true, and names them: a wrong number is worse than none."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from dra_agent.telemetry.model import AVERAGES, COUNTERS, GAUGES, DeviceSample

MAX_POWER_WATTS = 20_000.0
"""More than any accelerator draws; a value above it is in another unit."""
MAX_BYTES_PER_SECOND = 1e13
"""80 Tbit/s: ten times the NVLinks of a Blackwell GPU in one direction, and more than any adapter."""
MAX_PACKETS_PER_SECOND = 1e10
"""More than the smallest packets of Ethernet at 5 Tbit/s."""
MAX_ERRORS_PER_SECOND = 1e8
"""More than any GPU or link reports. A register of 32 bits of a device that has left the bus reads as 4.3e9."""
_RANGES = {
    "gpu_utilization_ratio": (0.0, 1.0),
    "memory_utilization_ratio": (0.0, 1.0),
    **dict.fromkeys(AVERAGES, (0.0, 1.0)),
    "memory_used_bytes": (0, 1 << 50),
    "memory_limit_bytes": (1, 1 << 50),
    "power_watts": (0.0, MAX_POWER_WATTS),
    "average_power_watts": (0.0, MAX_POWER_WATTS),
    "power_limit_watts": (0.0, MAX_POWER_WATTS),
    "temperature_celsius": (-50.0, 200.0),
    "sm_clock_hertz": (0.0, 1e11),
    "memory_clock_hertz": (0.0, 1e11),
}
_PACKETS = (
    *("network_receive_errors", "network_transmit_errors", "network_receive_drops", "network_transmit_drops"),
    *("rdma_receive_errors", "rdma_transmit_discards"),
)
_BYTES = tuple(name for name in COUNTERS if name.endswith("_bytes"))
_EVENTS = {**dict.fromkeys(COUNTERS, MAX_ERRORS_PER_SECOND), **dict.fromkeys(_PACKETS, MAX_PACKETS_PER_SECOND)}
_FASTEST = {**_EVENTS, **dict.fromkeys(_BYTES, MAX_BYTES_PER_SECOND), "energy_joules": MAX_POWER_WATTS}
COUNTER_RESOLUTION = {**_EVENTS, **dict.fromkeys(_BYTES, 0.0), "energy_joules": 2_000.0}
"""By how much a counter may be ahead of its time. Energy: what the fastest device counts in 100 ms. NVIDIA documents no
update interval of energy; PETSc's manual page PetscLogGpuEnergyMeter states 20 to 100 ms. Errors: those of a second."""
_ROUNDING_TOLERANCE = 1e-6


def drop_impossible(sample: DeviceSample) -> tuple[DeviceSample, list[str]]:
    """Return the sample without values that are out of range, and one message for each."""
    problems: dict[str, str] = {}
    for name in (*GAUGES, *COUNTERS):
        value = getattr(sample, name)
        if value is None:
            continue
        low, high = _RANGES.get(name, (0.0, float(1 << 64)))
        if not math.isfinite(value) or not low - _ROUNDING_TOLERANCE <= value <= high + _ROUNDING_TOLERANCE:
            problems[name] = f"{name} is {value:g}, outside of {low:g} to {high:g}"
    used, limit = sample.memory_used_bytes, sample.memory_limit_bytes
    if used is not None and limit is not None and used > limit and not problems.keys() & {"memory_limit_bytes"}:
        problems["memory_used_bytes"] = f"memory_used_bytes is {used}, more than the limit of {limit}"
    if not problems:
        return sample, []
    nothing: dict[str, Any] = dict.fromkeys(problems)
    return msgspec.structs.replace(sample, **nothing), list(problems.values())


def increase(name: str, before: float, now: float, elapsed_s: float) -> float | None:
    """Return by how much a counter has grown; None if it went back, or grew faster than any device can.

    A counter goes back if the driver was loaded again. What it counted before and since is not known.
    """
    grown = now - before
    if grown < 0 or grown > _FASTEST[name] * elapsed_s + COUNTER_RESOLUTION[name]:
        return None
    return grown

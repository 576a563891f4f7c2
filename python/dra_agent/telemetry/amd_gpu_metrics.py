"""Decodes `gpu_metrics`, the binary table of amdgpu's firmware in sysfs, as far as telemetry needs it.

The layouts are those of Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h, `struct gpu_metrics_v1_3` to `_v1_8`.
The kernel fills a table with ones before it writes the fields that a GPU has (smu_cmn_init_soft_gpu_metrics).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAX_BYTES = 1 << 16
_HEADER = struct.Struct("<HBB")
"""structure_size, format_revision, content_revision (`struct metrics_table_header`)."""
_JOULES_PER_UNIT = 2.0**-16
"""The header states 15.259 uJ for versions 1.4 to 1.8, and no unit for 1.3."""
_EARLY_1_6_BYTES = 384
"""The version 1.6 before it had metrics of partitions, with the fields of 1.5."""
_U32_ABSENT, _U64_ABSENT = (1 << 32) - 1, (1 << 64) - 1
_THROTTLE_STATUS_1_3 = 112
"""Offset of indep_throttle_status."""
_REASONS_1_3 = (
    ("power_cap", 0x00_00_00_FF),
    ("hardware_slowdown", 0x00_FF_00_00 | 0b11 << 46),
    ("thermal", 0b11_1111_1111_1111 << 32),
)
"""Bits of indep_throttle_status (drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h, SMU_THROTTLER_*_BIT): power 0 to 7,
current 16 to 23, temperature 32 to 45, PROCHOT 46 and 47."""
_RESIDENCIES = ("hardware_slowdown", "power_cap", "thermal", "thermal", "thermal")
"""Reasons of prochot, ppt, socket_thm, vr_thm and hbm_thm_residency_acc, which follow each other."""


class _Layout(NamedTuple):
    energy: int | None
    """Offset of energy_accumulator."""
    residencies: int | None = None
    """Offset of prochot_residency_acc."""


_LAYOUTS = {
    (1, 3): _Layout(None),
    (1, 4): _Layout(24),
    (1, 5): _Layout(88),
    (1, 6): _Layout(16, 36),
    (1, 7): _Layout(24, 44),
    (1, 8): _Layout(24, 44),
}
_EARLY_1_6 = _Layout(88, 108)


class GpuMetrics(NamedTuple):
    """The fields of one table; None: the GPU, or the version, does not have it."""

    energy_joules: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Reasons that lower the clocks now (1.3)."""
    residencies: dict[str, int] | None = None
    """By reason: a counter that grows while the reason lowers the clocks (1.6 to 1.8)."""


def decode(table: bytes) -> GpuMetrics:
    """Decode a table. Raises ValueError if its version is not known, or it is shorter than its version."""
    if len(table) < _HEADER.size:
        raise ValueError("gpu_metrics has no header")
    size, *revision = _HEADER.unpack_from(table)
    version = revision[0], revision[1]
    layout = _LAYOUTS.get(version)
    if layout is None:
        raise ValueError(f"gpu_metrics has the version {version[0]}.{version[1]}, which is not known")
    if version == (1, 6) and size == _EARLY_1_6_BYTES:
        layout = _EARLY_1_6
    try:
        return GpuMetrics(
            _energy(table, layout),
            _reasons(table) if version == (1, 3) else None,
            _residencies(table, layout),
        )
    except struct.error:
        raise ValueError(f"gpu_metrics of version {version[0]}.{version[1]} has {len(table)} bytes") from None


def _energy(table: bytes, layout: _Layout) -> float | None:
    if layout.energy is None:
        return None
    (units,) = struct.unpack_from("<Q", table, layout.energy)
    return None if units == _U64_ABSENT else units * _JOULES_PER_UNIT


def _reasons(table: bytes) -> tuple[str, ...] | None:
    (status,) = struct.unpack_from("<Q", table, _THROTTLE_STATUS_1_3)
    return None if status == _U64_ABSENT else tuple(name for name, bits in _REASONS_1_3 if status & bits)


def _residencies(table: bytes, layout: _Layout) -> dict[str, int] | None:
    if layout.residencies is None:
        return None
    totals: dict[str, int] = {}
    counters = struct.unpack_from(f"<{len(_RESIDENCIES)}I", table, layout.residencies)
    for reason, counter in zip(_RESIDENCIES, counters, strict=True):
        if counter != _U32_ABSENT:
            totals[reason] = totals.get(reason, 0) + counter
    return totals or None

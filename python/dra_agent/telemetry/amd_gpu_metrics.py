"""Decodes `gpu_metrics`, the binary table of amdgpu's firmware in sysfs, as far as telemetry needs it.

The layouts are those of Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h, `struct gpu_metrics_v1_3` to `_v1_9` and
`_v2_2` to `_v2_4`. The kernel fills a table with ones before it writes the fields that a GPU has
(smu_cmn_init_soft_gpu_metrics).

The bandwidth of PCIe is not read: the header states GB/s or, for the same field of an earlier version 1.6, Mbit/s.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MAX_BYTES = 1 << 16
_HEADER = struct.Struct("<HBB")
"""structure_size, format_revision, content_revision (`struct metrics_table_header`)."""
_JOULES_PER_UNIT = 2.0**-16
"""The header states 15.259 uJ for versions 1.4 to 1.8, and no unit for 1.3. The drivers that write 1.9 state it too
(smu_v13_0_6_ppt.c and smu_v15_0_8_ppt.c, SocketEnergyAcc)."""
_BYTES_PER_UNIT = 1024
"""The header states KiloBytes, the firmware KByte (smu_v13_0_6_pmfw.h, XgmiReadDataSizeAcc); assumed to be 1,024."""
_XGMI_LINKS = 8
"""NUM_XGMI_LINKS."""
_EARLY_1_6_BYTES = 384
"""The version 1.6 before it had metrics of partitions, with the fields of 1.5."""
_U32_ABSENT, _U64_ABSENT = (1 << 32) - 1, (1 << 64) - 1
_REASONS = (
    ("power_cap", 0x00_00_00_FF),
    ("hardware_slowdown", 0x00_FF_00_00 | 0b11 << 46),
    ("thermal", 0b11_1111_1111_1111 << 32),
)
"""Bits of indep_throttle_status (drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h, SMU_THROTTLER_*_BIT): power 0 to 7,
current 16 to 23, temperature 32 to 45, PROCHOT 46 and 47."""
_RESIDENCIES = ("hardware_slowdown", "power_cap", "thermal", "thermal", "thermal")
"""Reasons of prochot, ppt, socket_thm, vr_thm and hbm_thm_residency_acc, which follow each other."""


class _Layout(NamedTuple):
    """Offsets of fields; None: the version does not have it."""

    energy: int | None = None
    """energy_accumulator."""
    residencies: int | None = None
    """prochot_residency_acc."""
    replays: int | None = None
    """pcie_replay_count_acc."""
    xgmi: int | None = None
    """xgmi_read_data_acc, which xgmi_write_data_acc follows."""
    throttle_status: int | None = None
    """indep_throttle_status."""


_LAYOUTS = {
    **dict.fromkeys(((1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)), _Layout()),
    (1, 3): _Layout(throttle_status=112),
    (1, 4): _Layout(24, None, 88, 104),
    (1, 5): _Layout(88, None, 152, 176),
    (1, 6): _Layout(16, 36, 104, 128),
    (1, 7): _Layout(24, 44, 112, 136),
    (1, 8): _Layout(24, 44, 112, 136),
    **dict.fromkeys(((2, 2), (2, 3), (2, 4)), _Layout(throttle_status=120)),
}
"""Known versions. Those without any offset have no energy with a unit, and no throttle status that is the same for all
GPUs."""
_EARLY_1_6 = _Layout(88, 108, 176, 200)
_ATTRIBUTES = (1, 9)
"""The version that is a list of attributes."""
_ENERGY, _PROCHOT, _REPLAYS, _XGMI_READ, _XGMI_WRITE = 7, 10, 25, 29, 30
"""Attributes of 1.9 (`enum amdgpu_metrics_attr_id`)."""
_TYPES = "BbHhIiQq"
"""Formats of their types (`enum amdgpu_metrics_attr_type`)."""


class GpuMetrics(NamedTuple):
    """The fields of one table; None: the GPU, or the version, does not have it."""

    energy_joules: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Reasons that lower the clocks now (1.3, 2.2 to 2.4)."""
    residencies: dict[str, int] | None = None
    """By reason: a counter that grows while the reason lowers the clocks (1.6 to 1.9)."""
    xgmi_read_bytes: int | None = None
    """Counters of all links of XGMI together (1.4 to 1.9)."""
    xgmi_write_bytes: int | None = None
    pcie_replays: int | None = None
    """A counter (1.4 to 1.9)."""


def decode(table: bytes) -> GpuMetrics:
    """Decode a table. Raises ValueError if its version is not known, or it is shorter than its version."""
    if len(table) < _HEADER.size:
        raise ValueError("gpu_metrics has no header")
    size, *revision = _HEADER.unpack_from(table)
    version = revision[0], revision[1]
    try:
        if version == _ATTRIBUTES:
            return _of_attributes(_attributes(table))
        layout = _LAYOUTS.get(version)
        if layout is None:
            raise ValueError(f"gpu_metrics has the version {version[0]}.{version[1]}, which is not known")
        if version == (1, 6) and size == _EARLY_1_6_BYTES:
            layout = _EARLY_1_6
        return GpuMetrics(
            _energy(table, layout),
            _reasons(table, layout),
            _residencies(table, layout),
            *_xgmi(table, layout),
            _counter(table, layout.replays),
        )
    except struct.error:
        raise ValueError(f"gpu_metrics of version {version[0]}.{version[1]} has {len(table)} bytes") from None


def _energy(table: bytes, layout: _Layout) -> float | None:
    units = _counter(table, layout.energy)
    return None if units is None else units * _JOULES_PER_UNIT


def _counter(table: bytes, offset: int | None) -> int | None:
    if offset is None:
        return None
    (value,) = struct.unpack_from("<Q", table, offset)
    return None if value == _U64_ABSENT else int(value)


def _reasons(table: bytes, layout: _Layout) -> tuple[str, ...] | None:
    if layout.throttle_status is None:
        return None
    (status,) = struct.unpack_from("<Q", table, layout.throttle_status)
    return None if status == _U64_ABSENT else tuple(name for name, bits in _REASONS if status & bits)


def _residencies(table: bytes, layout: _Layout) -> dict[str, int] | None:
    if layout.residencies is None:
        return None
    counters = struct.unpack_from(f"<{len(_RESIDENCIES)}I", table, layout.residencies)
    return _by_reason([None if counter == _U32_ABSENT else counter for counter in counters])


def _by_reason(counters: Sequence[int | None]) -> dict[str, int] | None:
    totals: dict[str, int] = {}
    for reason, counter in zip(_RESIDENCIES, counters, strict=True):
        if counter is not None:
            totals[reason] = totals.get(reason, 0) + counter
    return totals or None


def _xgmi(table: bytes, layout: _Layout) -> tuple[int | None, int | None]:
    if layout.xgmi is None:
        return None, None
    links = struct.unpack_from(f"<{2 * _XGMI_LINKS}Q", table, layout.xgmi)
    read, write = (
        [units for units in way if units != _U64_ABSENT] for way in (links[:_XGMI_LINKS], links[_XGMI_LINKS:])
    )
    return _traffic(read, write)


def _traffic(read: Sequence[int], write: Sequence[int]) -> tuple[int | None, int | None]:
    """Return the bytes of all links; None if nothing was ever transferred: a GPU without links has 0 too."""
    if not any(read) and not any(write):
        return None, None
    return sum(read) * _BYTES_PER_UNIT, sum(write) * _BYTES_PER_UNIT


def _attributes(table: bytes) -> dict[int, list[int]]:
    """Return the values of each attribute of a table of version 1.9 that has any.

    `attr_count` and the attributes follow the header without padding: each is AMDGPU_METRICS_ENC_ATTR, with the number
    of instances in bits 0 to 9, the attribute in 10 to 19 and its type in 20 to 23, and then its values
    (drivers/gpu/drm/amd/pm/swsmu/smu_cmn.h, DECLARE_SMU_METRICS_CLASS).
    """
    (count,) = struct.unpack_from("<I", table, _HEADER.size)
    offset, found = _HEADER.size + 4, dict[int, list[int]]()
    for _ in range(count):
        (encoding,) = struct.unpack_from("<Q", table, offset)
        kind = encoding >> 20 & 0xF
        if kind >= len(_TYPES):
            raise ValueError(f"gpu_metrics of version 1.9 has an attribute of the type {kind}, which is not known")
        values = struct.Struct(f"<{encoding & 0x3FF}{_TYPES[kind]}")
        absent = (1 << 8 * struct.calcsize(f"<{_TYPES[kind]}")) - 1 if _TYPES[kind].isupper() else -1
        known = [value for value in values.unpack_from(table, offset + 8) if value != absent]
        if known:
            found[encoding >> 10 & 0x3FF] = known
        offset += 8 + values.size
    return found


def _of_attributes(found: Mapping[int, list[int]]) -> GpuMetrics:
    units = found.get(_ENERGY)
    return GpuMetrics(
        None if units is None else units[0] * _JOULES_PER_UNIT,
        None,
        _by_reason([found.get(_PROCHOT + number, [None])[0] for number in range(len(_RESIDENCIES))]),
        *_traffic(found.get(_XGMI_READ, []), found.get(_XGMI_WRITE, [])),
        found.get(_REPLAYS, [None])[0],
    )

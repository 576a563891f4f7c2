"""Reads the clock of an Intel GPU, and why it is lowered, from the folders of its GTs in sysfs.

xe has a folder for each GT of each tile, `tileN/gtN` (Linux, drivers/gpu/drm/xe/xe_gt_freq.c, "DOC: Xe GT Frequency
Management", and xe_gt_throttle.c, "DOC: Xe GT Throttle"), i915 `drm/cardN/gt/gtN` (drivers/gpu/drm/i915/gt/
intel_gt_sysfs_pm.c). Virtual functions have none of these files. A GT that only has media engines is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dra_agent.telemetry.hwmon import read_number

_MEGA_FACTOR = 1e6
_REASONS = {
    "power_cap": ("pl1", "pl2", "psys_pl1", "psys_pl2"),
    "thermal": ("thermal", "ratl", "vr_thermalert", "soc_thermal", "soc_avg_thermal", "mem_thermal", "vr_thermal"),
    "hardware_slowdown": ("prochot", "pl4", "psys_crit", "iccmax", "vr_tdc", "fastvmode"),
}
"""Files of each reason. PL1 and PL2 limit power; PL4, Iccmax, TDC and FastVMode current, like AMD's throttlers of
current, which are a slowdown too. RATL is the running average thermal limit. `p0_freq` is not a reason: P0 is the
highest frequency that the GPU has."""


class GtState(NamedTuple):
    """The GTs of one GPU that compute; None: the driver does not report it."""

    clock_hertz: float | None
    """The highest one, as in i915's files of the whole device; 0 while the GPU sleeps (RC6)."""
    throttle_reasons: tuple[str, ...] | None
    """Reasons of any of them."""


class _Gt(NamedTuple):
    folder: Path
    clock: str
    """The file of its clock, in MHz."""
    status: str
    """1 while any reason lowers the clock."""
    reason: str
    """The beginning of the names of files of reasons."""


def read_gts(function: Path) -> GtState:
    """Read the GTs of a GPU, whose PCI function has this folder.

    Raises:
        OSError, ValueError: A file cannot be read, or is not a number.
    """
    clocks: list[float] = []
    reasons: set[str] | None = None
    for gt in (*_xe(function), *_i915(function)):
        clock = read_number(gt.folder, gt.clock, factor=_MEGA_FACTOR)
        if clock is not None:
            clocks.append(clock)
        status = read_number(gt.folder, gt.status)
        if status is None:
            continue
        reasons = reasons or set()
        if status:
            reasons |= {
                name
                for name, files in _REASONS.items()
                if any(read_number(gt.folder, f"{gt.reason}{file}") for file in files)
            }
    return GtState(
        max(clocks, default=None), None if reasons is None else tuple(name for name in _REASONS if name in reasons)
    )


def _xe(function: Path) -> Iterator[_Gt]:
    for folder in sorted(function.glob("tile[0-9]*/gt[0-9]*")):
        # Names of classes of engines (xe_hw_engine_class_sysfs.c); the media GT has vcs and vecs.
        if any((folder / "engines" / name).is_dir() for name in ("ccs", "rcs")):
            yield _Gt(folder, "freq0/act_freq", "freq0/throttle/status", "freq0/throttle/reason_")


def _i915(function: Path) -> Iterator[_Gt]:
    # gt1 is the media GT of Meteor Lake, the only GPU of mainline i915 with two.
    for folder in function.glob("drm/card[0-9]*/gt/gt0"):
        yield _Gt(folder, "rps_act_freq_mhz", "throttle_reason_status", "throttle_reason_")

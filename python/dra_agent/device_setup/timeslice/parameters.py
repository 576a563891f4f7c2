"""What a claim or a class says of a GPU's time slices."""

from __future__ import annotations

from typing import Literal

import msgspec

Interval = Literal["Default", "Short", "Medium", "Long"]
NUMBERS: dict[Interval, int] = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
"""As nvidia-smi's `compute-policy --set-timeslice` counts them; how long each is, is the driver's to say."""


class TimeSlices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How programs on one GPU take turns."""

    interval: Interval = "Default"
    """For how long a program runs before the next one has its turn: short turns answer soon, long ones waste less."""


class GpuConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Settings of a whole NVIDIA GPU, for as long as the claim has it or a share of it."""

    time_slicing: TimeSlices

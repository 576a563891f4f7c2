"""Which claims have partitions of each AMD GPU, and in which mode: on disk before a mode is changed."""

from __future__ import annotations

import msgspec


class GpuModeHolders(msgspec.Struct, frozen=True):
    """The mode of one GPU, and for whom it is in it.

    Where it is damaged what it said is lost; the scheduler and the driver still refuse a second mode.
    """

    mode: str
    holders: tuple[str, ...]
    """Claims by uid, each with the key of its device behind a space."""

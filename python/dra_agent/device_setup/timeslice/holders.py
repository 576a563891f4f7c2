"""Who wants which time slices of each GPU, on disk before anything is set: what a crash leaves is known and undone."""

from __future__ import annotations

import msgspec

from dra_agent.device_setup.timeslice.parameters import Interval


class TimeSliceHolders(msgspec.Struct, frozen=True):
    """What is set on one GPU, and for whom.

    Where it is damaged what it said is lost; the interval is set anew.
    """

    uuid: str
    interval: Interval
    compute_mode: str
    """As it was before, to be restored."""
    holders: tuple[str, ...]
    """Claims by uid, each with the key of its device behind a space."""

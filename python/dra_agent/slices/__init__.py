"""From an inventory to the ResourceSlices that should be published, and the writes that lead there.

It publishes nothing: an API server's publisher and standalone mode's store do.
"""

from __future__ import annotations

from dra_agent.slices.desired import (
    DesiredSlices,
    Drawing,
    DrawnSlices,
    Slice,
    SliceProblem,
    Write,
    desired_slices,
    diff_slices,
    name_of,
)

__all__ = [
    "DesiredSlices",
    "Drawing",
    "DrawnSlices",
    "Slice",
    "SliceProblem",
    "Write",
    "desired_slices",
    "diff_slices",
    "name_of",
]

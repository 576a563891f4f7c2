"""From an inventory to the ResourceSlices that should be published, and the writes that lead there.

It publishes nothing: an API server's publisher and standalone mode's store do.
"""

from __future__ import annotations

from dra_agent.slices.current import CurrentSlices
from dra_agent.slices.desired import (
    DesiredSlices,
    EncodedSlices,
    Slice,
    SliceProblem,
    SliceRequest,
    Write,
    desired_slices,
    diff_slices,
    slice_name,
)

__all__ = [
    "CurrentSlices",
    "DesiredSlices",
    "SliceRequest",
    "EncodedSlices",
    "Slice",
    "SliceProblem",
    "Write",
    "desired_slices",
    "diff_slices",
    "slice_name",
]

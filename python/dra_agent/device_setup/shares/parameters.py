"""What a claim can say of a share besides its amounts, which are requests for capacity."""

from __future__ import annotations

from typing import Annotated

import msgspec


class ShareConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How a share of a GPU is used.

    What protects the others (the amount of memory, and who enforces it) is the operator's and the scheduler's to say.
    """

    active_thread_percentage: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    """MPS: the part of the GPU's multiprocessors that each process of the share may occupy at most, where that is less
    than the share of multiprocessors that the claim has asked for; 1 to 100."""

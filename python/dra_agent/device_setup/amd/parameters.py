"""What a claim or a class says of a partition of an AMD GPU: nothing yet, for the device that it gets says it all."""

from __future__ import annotations

import msgspec


class AmdPartitionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a partition."""

"""What a claim or its class may say of a MIG partition: the parameters of kind MigConfig."""

from __future__ import annotations

from typing import Annotated

import msgspec

from dra_agent.prepare.setup import API_VERSION, Kind

KIND: Kind = (API_VERSION, "MigConfig")


class MigConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """Settings of a MIG partition."""

    compute_slices: Annotated[int, msgspec.Meta(ge=1, le=7)] | None = None
    """Compute slices of the instance that computes; the rest of the partition's stay idle, its memory is unchanged.
    Not set: all that the profile has."""

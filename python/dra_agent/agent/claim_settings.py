"""The `[claims]` section of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec


class ClaimSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What follows when a prepared claim no longer exists."""

    release_gone_after: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 180.0
    """Seconds between two checks that find a prepared claim gone, after which it is released; 0: never."""

"""Times on disk: UTC of the clock of the process that wrote them, converted to this process's clock on load.

Each file names when the host booted by the writer's clock. In the same boot that is the same moment for every
process, so the difference is by how much the wall clock was stepped between the two starts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from dra_agent.clock import STEP


def by_clock_of(value: Any, wrote: datetime | None, booted: datetime) -> Any:
    """A struct with every time in it moved from the writer's clock to that of this process.

    `wrote` and `booted`: when the host booted, by each; None: an older version wrote it, by a clock not known.
    """
    by = timedelta() if wrote is None else booted - wrote
    return value if abs(by) < STEP else _moved(value, by)


def _moved(value: Any, by: timedelta) -> Any:
    if isinstance(value, datetime):
        try:
            return value + by
        except OverflowError:
            return value
    if isinstance(value, tuple):
        return tuple(_moved(one, by) for one in value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{name: _moved(getattr(value, name), by) for name in value.__struct_fields__}
        )
    return value

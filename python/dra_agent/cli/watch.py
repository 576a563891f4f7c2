"""`--watch`: prints rows again when they change, until the command is interrupted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

Item = dict[str, Any]
POLL_INTERVAL_S = 1.0
"""Between two requests for the items."""


def watch(
    fetch: Callable[[], Iterable[Item]],
    show: Callable[[list[Item]], None],
    *,
    identity: Callable[[Item], object],
    gone: Callable[[Item], Item],
    interval_s: float = POLL_INTERVAL_S,
) -> NoReturn:
    """Show all items, then the changed ones; `gone` describes a removed one.

    Raises the errors of `fetch`, for example when the agent stops.
    """
    known: dict[object, Item] = {}
    is_first = True
    while True:
        current = {identity(item): item for item in fetch()}
        changed = [item for key, item in current.items() if known.get(key) != item]
        changed += [gone(item) for key, item in known.items() if key not in current]
        if changed or is_first:
            show(changed)
            # Flushed, so that a pipe's reader gets each change at once, and a closed pipe ends the command.
            sys.stdout.flush()
        known, is_first = current, False
        time.sleep(interval_s)

"""`--watch`: prints rows or documents again when they change, until the command is interrupted."""

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
    output: str,
    identity: Callable[[Item], object],
    gone: Callable[[Item], Item],
    document: Callable[[Item], Any] = lambda item: item,
    interval_s: float = POLL_INTERVAL_S,
) -> NoReturn:
    """Show all items, then the changed ones; `gone` describes a removed one.

    `output` is the format. In JSON and YAML each item is printed as a document of a stream, which `document` makes of
    it; `show` prints the items in all other formats. Raises the errors of `fetch`, for example when the agent stops.
    """
    from dra_agent.cli.output import emit

    known: dict[object, Item] = {}
    is_first = True
    while True:
        current = {identity(item): item for item in fetch()}
        changed = [item for key, item in current.items() if known.get(key) != item]
        changed += [gone(item) for key, item in known.items() if key not in current]
        if output in ("json", "yaml"):
            for item in changed:
                emit(document(item), output, stream=True)
        elif changed or is_first:
            show(changed)
        # A pipe's reader gets each change at once, and a closed pipe ends the command.
        sys.stdout.flush()
        known, is_first = current, False
        time.sleep(interval_s)

"""What the agent found last, in a file of its state directory, for commands that ask no API server.

It decides nothing: a file that is missing or damaged is no finding.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from dra_agent import whole_file
from dra_agent.neighbours.verdict import Verdict

NAME = "neighbours.json"


class Remembered(msgspec.Struct, frozen=True):
    """What others give out too, and whether the agent publishes it all the same."""

    verdict: Verdict = Verdict()
    published: bool = False


def remember(state_dir: Path, found: Remembered) -> None:
    """Write it where it differs, whole or not at all; one that is lost is found again."""
    path = state_dir / NAME
    if recall(state_dir) == found:
        return
    with suppress(OSError):
        whole_file.put(path, msgspec.json.encode(found))


def forget(state_dir: Path) -> None:
    """Remove it: without an API server there is nobody else."""
    with suppress(OSError):
        (state_dir / NAME).unlink()


def recall(state_dir: Path) -> Remembered:
    """Read it."""
    try:
        return msgspec.json.decode((state_dir / NAME).read_bytes(), type=Remembered)
    except (OSError, msgspec.MsgspecError):
        return Remembered()

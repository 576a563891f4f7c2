"""What the agent found last, in a file of its state directory, for commands that ask no API server.

It decides nothing: a file that is missing or damaged is no finding.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.conflicts.verdict import DeviceConflicts

NAME = "neighbours.json"


class SavedConflicts(msgspec.Struct, frozen=True):
    """What others give out too, and whether the agent publishes it all the same."""

    verdict: DeviceConflicts = DeviceConflicts()
    published: bool = False


def save_conflicts(state_dir: Path, found: SavedConflicts) -> None:
    """Write it where it differs, whole or not at all; one that is lost is found again."""
    path = state_dir / NAME
    if load_conflicts(state_dir) == found:
        return
    with suppress(OSError):
        atomic_file.write(path, msgspec.json.encode(found))


def delete(state_dir: Path) -> None:
    """Remove it: without an API server there is nobody else."""
    with suppress(OSError):
        (state_dir / NAME).unlink()


def load_conflicts(state_dir: Path) -> SavedConflicts:
    """Read it."""
    try:
        return msgspec.json.decode((state_dir / NAME).read_bytes(), type=SavedConflicts)
    except (OSError, msgspec.MsgspecError):
        return SavedConflicts()

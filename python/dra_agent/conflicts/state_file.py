"""The conflicts in the state directory, for a start without the API server and for other processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.conflicts.find import DeviceConflicts
from dra_agent.json_decode import decode_json

FILE_NAME = "neighbours.json"
_MAX_BYTES = 16 << 20


class SavedConflicts(msgspec.Struct, frozen=True):
    """Devices that other drivers advertise too, and whether the agent still publishes them."""

    conflicts: DeviceConflicts = msgspec.field(name="verdict", default=DeviceConflicts())
    published: bool = False


def save_conflicts(state_dir: Path, found: SavedConflicts) -> None:
    """Write the file if its content differs. An error is ignored: the agent detects the conflicts again."""
    if load_conflicts(state_dir) == found:
        return
    with suppress(OSError):
        atomic_file.write(state_dir / FILE_NAME, msgspec.json.encode(found))


def delete_conflicts(state_dir: Path) -> None:
    """Delete the file: without an API server there are no other drivers."""
    with suppress(OSError):
        (state_dir / FILE_NAME).unlink()


def load_conflicts(state_dir: Path) -> SavedConflicts:
    """Return what was saved; no conflicts, if the file is missing or damaged."""
    try:
        return decode_json(atomic_file.read(state_dir / FILE_NAME, _MAX_BYTES), type=SavedConflicts)
    except (OSError, msgspec.DecodeError):
        return SavedConflicts()

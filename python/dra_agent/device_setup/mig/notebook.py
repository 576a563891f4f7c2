"""Keeps the notes of what the agent has made on GPUs: durable before anything is done, one file for each GPU."""

from __future__ import annotations

import msgspec

from dra_agent import atomic_file
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.nvidia.mig_ownership import FOLDER, OwnershipRecord, note_path, read_note


class OwnershipStore:
    """The notes of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def read(self, address: str) -> OwnershipRecord:
        """Give the note of a GPU; RetryableError where it cannot be read."""
        return read_note(self._host, address)

    def write(self, note: OwnershipRecord) -> None:
        """Replace the note of a GPU; on disk when it returns. RetryableError where the disk refuses."""
        if self._host.state is None:
            raise RetryableError("has no state directory to note instances in", where="this host")
        path = note_path(self._host.state, note.gpu)
        try:
            if not note.instances:
                atomic_file.remove(path, durable=True)
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_file.write(path, msgspec.json.encode(note), durable=True)
        except OSError as error:
            raise RetryableError(
                f"cannot be written: {error.strerror}", where=str(path), hint="make room for the state directory"
            ) from error

    def gpus(self) -> list[str]:
        """List the addresses of the GPUs that there are notes of."""
        if self._host.state is None:
            return []
        folder = self._host.state / FOLDER
        try:
            names = sorted(path.stem for path in folder.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RetryableError(f"cannot be read: {error.strerror}", where=str(folder)) from error
        return [address for name in names if (address := _address(name)) is not None]


def _address(name: str) -> str | None:
    domain, *rest = name.split("-")
    return ":".join((domain, *rest)) if len(rest) == 2 else None

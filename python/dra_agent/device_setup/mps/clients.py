"""Who shares each GPU through MPS, on disk before anything is done: what a crash leaves is known, and undone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dra_agent.device_setup.state_files import StateFiles
from dra_agent.errors import RetryableError


class MpsClient(msgspec.Struct, frozen=True):
    """One share of a claim."""

    memory_mib: int
    percentage: int | None = None


class SharedGpu(msgspec.Struct, frozen=True):
    """A GPU that has a control daemon."""

    uuid: str
    pci_address: str
    compute_mode: int | None
    """As it was before, to be restored; None where it is not changed (MIG)."""
    clients: dict[str, MpsClient]
    """By "UID KEY" of claim and share."""

    @property
    def largest_mib(self) -> int:
        """The largest share: what a client may have that asks for no limit."""
        return max((client.memory_mib for client in self.clients.values()), default=0)


class MpsClientStore(StateFiles[SharedGpu]):
    """A note for each GPU."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SharedGpu, mode=0o755)

    def devices(self) -> list[str]:
        """Name the devices that have a file."""
        try:
            return sorted(path.stem for path in self._folder.glob("*.json"))
        except OSError:
            return []

    def damaged(self, path: Path, error: msgspec.DecodeError) -> None:
        """Refuse: without it nobody knows which compute mode the GPU had, and a person has to look."""
        raise RetryableError(
            f"is damaged: {error}", where=str(path), hint="remove it, and check the GPU's compute mode"
        ) from error

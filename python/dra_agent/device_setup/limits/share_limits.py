"""What each claim's shares may have, and which cgroups were held to it; on disk, so that a new agent goes on."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.cdi.names import check_uid
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.errors import PermanentError


class ShareLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One share."""

    device: str
    pci_address: str
    bytes: int
    uuid: str = ""
    """Of the GPU, where its driver limits."""
    cgroups: tuple[str, ...] = ()
    """Below the unified hierarchy, of containers that were held to it by the agent."""


class ShareLimitStore(StateFiles[dict[str, ShareLimit]]):
    """A note for each claim: its shares by key."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, dict[str, ShareLimit])

    def path(self, name: str) -> Path:
        """Say where a claim's shares lie; PermanentError for a uid that could leave the folder."""
        return super().path(check_uid(name))

    def damaged(self, path: Path, error: msgspec.DecodeError) -> None:
        """Set it aside, and refuse: no container may start without its limit."""
        atomic_file.quarantine(path)
        raise PermanentError(f"is damaged: {error}", where=str(path), hint="delete the claim's pods") from error

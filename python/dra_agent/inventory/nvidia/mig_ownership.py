"""The record of the MIG instances that the agent created on a GPU: other instances are foreign.

The set-up writes it before it acts; the inventory reads it, so that every command knows the owner of an instance.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.nvidia.profiles import Placement
from dra_agent.json_decode import decode_json

FOLDER = "mig"
"""Below the state directory."""
_MAX_BYTES = 1 << 20


class OwnedInstance(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU instance that the agent has made, or is about to make or destroy."""

    device: str
    """The partition's name."""
    profile: int
    start: int
    size: int
    holders: tuple[str, ...]
    """Claims that have it, as "uid/key"; none: it is to be destroyed."""
    leaving: str = ""
    """The holder for which it is being destroyed, until it is removed."""

    @property
    def placement(self) -> Placement:
        """Return its path."""
        return Placement(self.start, self.size)


class OwnershipRecord(msgspec.Struct, frozen=True):
    """The instances that the agent created on one GPU since the host was booted; a reboot removes all instances."""

    gpu: str
    """PCI address."""
    boot: str
    instances: tuple[OwnedInstance, ...] = ()

    def owns(self, profile: int, start: int) -> bool:
        """Return True if the agent owns the instance of that profile at that placement, which is unique."""
        return any(instance.profile == profile and instance.start == start for instance in self.instances)


def note_path(state: Path, address: str) -> Path:
    """Return the path of a GPU's record."""
    return state / FOLDER / f"{address.replace(':', '-')}.json"


def read_note(host: Host, address: str) -> OwnershipRecord:
    """Read the record of a GPU; empty if missing. Raises RetryableError if it is invalid."""
    empty = OwnershipRecord(address, host.boot_id())
    if host.state is None:
        return empty
    path = note_path(host.state, address)
    try:
        note = decode_json(atomic_file.read(path, _MAX_BYTES), type=OwnershipRecord)
    except FileNotFoundError:
        return empty
    except OSError as error:
        raise RetryableError(
            f"cannot be read: {error.strerror}", where=str(path), hint="allow the agent to access its state directory"
        ) from error
    except msgspec.DecodeError as error:
        raise RetryableError(
            f"is not a record of MIG instances: {error}",
            where=str(path),
            hint="compare it with `nvidia-smi mig -lgi`, destroy unused instances, and remove the file",
        ) from error
    return note if note.boot == empty.boot else empty

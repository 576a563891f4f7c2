"""Which devices are, or are about to be, handed over to vfio-pci for a claim, and what they were before: on disk.

A file for each function, put there before its driver is taken away and removed after it is back. While it is there, the
inventory shows the device as it was published: a function without its driver tells nothing of itself.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.errors import RetryableError
from dra_agent.inventory.model import Device
from dra_agent.inventory.moved import MovedInterfaces

log = logging.getLogger(__name__)

_MOST = 1 << 20
_NAME = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\.json")


class VfioBinding(msgspec.Struct, frozen=True):
    """One function that a claim has, or is about to have, through vfio-pci."""

    address: str
    uid: str
    """Of the claim."""
    key: str
    """Of the device among those of the claim."""
    driver: str | None
    """The driver that it goes back to; None: it had none."""
    override: str | None
    """What its `driver_override` said before; None: nothing."""
    device: Device
    """As it was published."""


class VfioBindingStore:
    """The files of one state directory; whoever writes holds the lock of the function."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "vfio"
        self.moved = MovedInterfaces(state_dir)

    def all(self) -> dict[str, VfioBinding]:
        """Give them by address; RetryableError where the folder cannot be read.

        A file that says nothing usable is set aside. Who may not look into the folder, a user with a command, is told
        of none, and sees functions as the kernel shows them.
        """
        found = {}
        try:
            names = sorted(path.name for path in self.folder.iterdir())
        except (FileNotFoundError, PermissionError):
            return {}
        except OSError as error:
            raise self._error(self.folder, "cannot be read", error) from error
        for name in names:
            match = _NAME.fullmatch(name)
            handover = self.read(match[1]) if match else None
            if handover is not None:
                found[handover.address] = handover
        return found

    def read(self, address: str) -> VfioBinding | None:
        """Give that of one function; None where there is none.

        Its device is without health: what was seen of it at one moment is not so for as long as a claim has it.
        """
        path = self._path(address)
        try:
            handover = msgspec.json.decode(atomic_file.read(path, _MOST), type=VfioBinding)
            if handover.address != address:
                raise msgspec.ValidationError(f"it is about {handover.address}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(path, "cannot be read", error) from error
        except (msgspec.DecodeError, ValueError) as error:
            aside = atomic_file.quarantine(path)
            log.error("what a function was before it was handed over is damaged", extra={"file": str(aside)})
            log.error("damage", extra={"reason": str(error)})
            return None
        return msgspec.structs.replace(handover, device=_not_observed(handover.device))

    def write(self, handover: VfioBinding) -> None:
        """Keep one; durable when it returns."""
        path = self._path(handover.address)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_file.write(path, msgspec.json.encode(handover), durable=True)
        except OSError as error:
            raise self._error(path, "cannot be written", error) from error

    def forget(self, address: str) -> None:
        """The function is back, or gone for good."""
        path = self._path(address)
        try:
            atomic_file.remove(path, durable=True)
        except OSError as error:
            raise self._error(path, "cannot be removed", error) from error

    def _path(self, address: str) -> Path:
        name = f"{address}.json"
        if not _NAME.fullmatch(name):
            raise ValueError(f"{address!r} is no PCI address")
        return self.folder / name

    def _error(self, path: Path, what: str, error: OSError) -> RetryableError:
        return RetryableError(f"{what}: {error.strerror}", where=str(path), hint="see to its disk and its owner")


def _not_observed(device: Device) -> Device:
    return msgspec.structs.replace(
        device,
        taints=(),
        health="healthy",
        health_reason=None,
        ailments=(),
        memory_errors=None,
        corrected_errors=None,
        observed=False,
    )

"""What a recording contains of a vendor: `dra_agent.doctor.record.vendors.NAME.RECORDING`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dra_agent.deadline import Deadline
from dra_agent.doctor.record.identity import Replacements
from dra_agent.host import Host
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.vendors import GPU_VENDORS, vendor_module
from dra_agent.recording import Entry, Omission


@dataclass(frozen=True, slots=True)
class Tool:
    """A command that only reads."""

    name: str
    arguments: tuple[str, ...]
    file: str
    """Name of its output in the recording."""


class LibraryRecorder(Protocol):
    """Records the calls of a vendor's library; used once. One implementation for NVIDIA."""

    name: str
    """Of the library, for messages."""
    timeout_s: float
    file: str
    """Name of the calls in the recording."""

    def record(self, host: Host, settings: InventorySettings, folder: Path, deadline: Deadline) -> list[Omission]:
        """Make the calls, and keep them in a file of `folder`; return the parts that could not be read."""
        ...

    def load(self, folder: Path) -> list[Omission]:
        """Take the calls from the file, also if `record` has not returned, and remove it."""
        ...

    def learn(self, replacements: Replacements) -> None:
        """Take texts that identify hardware."""
        ...

    def replace_identity(self, replacements: Replacements) -> None:
        """Replace what identifies hardware."""
        ...

    def content(self) -> bytes:
        """Return the content of `file`; empty without calls."""
        ...


def _learn_nothing(entry: Entry, replacements: Replacements) -> None:
    del entry, replacements


def _no_programs(host: Host) -> tuple[str, ...]:
    del host
    return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class VendorRecording:
    """The parts of one vendor; patterns as in `tree.SYSFS`."""

    functions: tuple[str, ...] = ()
    """Attributes of PCI functions."""
    sysfs: tuple[str, ...] = ()
    """Files below /sys."""
    proc: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    driver_tools: frozenset[str] = frozenset()
    """Tools that are part of the driver, and found where it is: `Host.driver_tool`."""
    programs: Callable[[Host], tuple[str, ...]] = _no_programs
    """Returns the programs that the agent uses, and that the host has."""
    learn: Callable[[Entry, Replacements], None] = _learn_nothing
    """Takes what identifies hardware from a file of the tree."""
    library: Callable[[], LibraryRecorder] | None = None


def vendor_recordings() -> tuple[VendorRecording, ...]:
    """Return the parts of every vendor in the registry, in its order."""
    modules = (vendor_module("dra_agent.doctor.record.vendors", vendor.name) for vendor in GPU_VENDORS.values())
    return tuple(module.RECORDING for module in modules if module is not None)

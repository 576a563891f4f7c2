"""The set-ups of a vendor: `dra_agent.device_setup.VENDOR.make(context)` returns them.

A vendor without claims that change its devices has no such module.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dra_agent.host import Host
from dra_agent.inventory.vendors import GPU_VENDORS, vendor_module
from dra_agent.prepare.setup import DeviceSetup

if TYPE_CHECKING:
    from dra_agent.device_setup.sysfs_writer import SysfsWriter
    from dra_agent.inventory.mode_changes import ModeChanges


@dataclass(frozen=True, kw_only=True, slots=True)
class SetupContext:
    """The context from which vendors create their set-ups. Creating one touches neither host nor disk."""

    host: Host
    kernel: SysfsWriter
    """Writes to /sys of the host, also of a simulated one."""
    state_dir: Path
    library_timeout_s: float
    """Timeout of a call of a vendor's library."""
    mode_changes: ModeChanges | None = None
    """Is notified of GPUs that are being partitioned; None if no scan runs concurrently."""


class DriverLibrary(Protocol):
    """A vendor's library that has all functions of a driver open in this process: the driver waits until it is closed.

    A protocol, because set-ups of other kinds, such as `vfio`, know no vendor.
    """

    driver: str
    """The name of the driver in /sys."""

    def users(self, address: str) -> list[int]:
        """Return the processes that compute on a function, also of other pods; none if the driver does not report them.

        Raises RetryableError if the library hangs.
        """
        ...

    def released(self) -> AbstractContextManager[None]:
        """Close the library within the context, regardless of other users."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class VendorSetups:
    """The set-ups of one vendor, by the place in the order in which set-ups run for a claim."""

    creating: tuple[DeviceSetup, ...] = ()
    """Create the device of a claim: before all that configure it."""
    configuring: tuple[DeviceSetup, ...] = ()
    """Configure a device that exists."""
    libraries: tuple[DriverLibrary, ...] = ()
    """Libraries that keep a driver from being unbound."""


def all_vendors(context: SetupContext) -> list[VendorSetups]:
    """Return the set-ups of every vendor in the registry, in its order."""
    modules = (vendor_module("dra_agent.device_setup", vendor.name) for vendor in GPU_VENDORS.values())
    return [module.make(context) for module in modules if module is not None]

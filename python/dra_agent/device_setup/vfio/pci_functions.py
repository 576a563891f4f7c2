"""One PCI function as the kernel reports it: its driver, its IOMMU group with all members, and its users."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_agent.claimable.divided import divisions
from dra_agent.claimable.iommu_groups import blocks_group
from dra_agent.claimable.network import HostNetwork
from dra_agent.deadline import Deadline
from dra_agent.device_setup.interface_use import interfaces_of, refuse_published_use, refuse_use
from dra_agent.device_setup.open_files import (
    class_node,
    device_nodes,
    function_nodes,
    processes_holding,
    refuse_holders,
    require_unused,
)
from dra_agent.device_setup.sysfs_writer import TimedWriter
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.sysfs import SysfsDir

DRIVER = "vfio-pci"


@dataclass(frozen=True, slots=True)
class GroupPeer:
    """Another function of an IOMMU group."""

    address: str
    driver: str | None
    blocks_group: bool
    """The host uses it."""


class PciFunctions:
    """Reads functions below one host's /sys on each call.

    An attribute that the kernel reads under the device's lock has a deadline: driver_override_show() in
    drivers/pci/pci-sysfs.c.
    """

    def __init__(self, host: Host, accesses: TimedWriter) -> None:
        self._host = host
        self._sysfs = host.sysfs
        self._accesses = accesses

    def exists(self, address: str) -> bool:
        """Whether the function is on the bus."""
        return self._folder(address).is_dir()

    def driver(self, address: str) -> str | None:
        """Return the name of its driver."""
        return self._files(address).link("driver")

    def override(self, address: str) -> str | None:
        """Return its `driver_override`, if any. RetryableError if the kernel does not return."""
        text = self._locked(address, "driver_override")
        return None if text in ("", "(null)") else text

    def is_loaded(self, driver: str) -> bool:
        """Whether the bus has such a driver."""
        return (self._sysfs / "bus/pci/drivers" / driver).is_dir()

    def group(self, address: str) -> int | None:
        """Return the number of its IOMMU group."""
        name = self._files(address).link("iommu_group")
        return int(name) if name is not None and name.isdecimal() else None

    def group_peers(self, address: str, group: int) -> list[GroupPeer]:
        """Return the other functions of its group."""
        names = SysfsDir(self._sysfs / "kernel/iommu_groups" / str(group), []).names("devices")
        drivers = {name: self.driver(name) for name in names if name != address}
        return [
            GroupPeer(name, driver, blocks_group(driver, self._files(name).text("class") or ""))
            for name, driver in drivers.items()
        ]

    def vfio_device(self, address: str) -> str | None:
        """Return the name of its device below /dev/vfio/devices, "vfio3", if the kernel has created one."""
        return next((name for name in self._files(address).names("vfio-dev") if name.startswith("vfio")), None)

    def divisions(self, address: str) -> str | None:
        """Return its virtual functions and subfunctions, which need its driver."""
        return divisions(self._sysfs, address)

    def _locked(self, address: str, attribute: str) -> str:
        try:
            return self._accesses.read(address, f"bus/pci/devices/{address}/{attribute}").strip()
        except OSError:
            return ""

    def _files(self, address: str) -> SysfsDir:
        return SysfsDir(self._folder(address), [])

    def _folder(self, address: str) -> Path:
        return self._sysfs / "bus/pci/devices" / address


def check_group(
    functions: PciFunctions, address: str, claimed: Collection[str], others: Mapping[str, str], where: str
) -> int:
    """Return the IOMMU group of the function, after checking all of it.

    `claimed` are the functions of the claim, `others` those of other claims, with their UIDs. PermanentError names the
    group members that the host uses, RetryableError those of other claims.
    """
    group = functions.group(address)
    if group is None:
        raise PermanentError(
            "it has no IOMMU group, so it could access all memory of the host",
            where=where,
            hint="enable the IOMMU (VT-d or AMD-Vi in the firmware, intel_iommu=on on the kernel's command line)",
        )
    peers = [one for one in functions.group_peers(address, group) if one.address not in claimed]
    in_use = [one for one in peers if one.blocks_group]
    if in_use:
        named = ", ".join(f"{one.address} ({one.driver})" for one in in_use)
        raise PermanentError(
            f"the host uses other functions of its IOMMU group {group}: {named}",
            where=where,
            hint="add them to the claim, unbind their drivers, or use a slot behind a port with ACS",
        )
    taken = [f"{one.address} (claim {others[one.address]})" for one in peers if one.address in others]
    if taken:
        raise RetryableError(
            f"another claim has functions of its IOMMU group {group}, and a group belongs to one claim at a time: "
            f"{', '.join(taken)}",
            where=where,
            hint="the agent retries until that claim is released",
        )
    return group


def require_idle(
    functions: PciFunctions,
    host: Host,
    network: HostNetwork,
    device: Device,
    address: str,
    where: str,
    deadline: Deadline,
) -> None:
    """Reject a function that the host or a process uses: RetryableError, PermanentError if that use cannot end."""
    refuse_published_use(device, where=where)
    if found := functions.divisions(address):
        raise RetryableError(
            f"it has {found}, which would be removed with its driver",
            where=where,
            hint="remove them (sriov_numvfs, devlink), or request one of them instead",
        )
    refuse_use(network, interfaces_of(host.sysfs, address), device, where)
    require_unused(host, device_nodes(host, device), where, deadline)


def require_released(functions: PciFunctions, host: Host, address: str, where: str, deadline: Deadline) -> None:
    """Raise RetryableError if a virtual machine or a program has a function open: vfio-pci would wait for its end."""
    group = functions.group(address)
    nodes = function_nodes(host, address)
    if group is not None:
        nodes.append(class_node(host, "vfio", str(group), f"/dev/vfio/{group}"))
    refuse_holders(processes_holding(host, nodes, deadline), where)

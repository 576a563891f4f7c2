"""Refuses changes of network interfaces that the host uses, as it uses them at that moment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dra_agent.claimable.network import HostNetwork
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device


def interfaces_of(sysfs: Path, address: str) -> list[str]:
    """Return the names of the interfaces of a PCI device on the host."""
    folder = sysfs / "bus/pci/devices" / address
    # The interface of a virtio adapter is one level below.
    return sorted(path.name for pattern in ("net/*", "virtio*/net/*") for path in folder.glob(pattern))


def may_have_address(device: Device) -> bool:
    """Return True if a rule of the operator lets claims change an interface with an address of the host."""
    return "host_address" in device.identity


def refuse_published_use(device: Device, field: str = "", where: str | None = None) -> None:
    """Raise PermanentError if the device is published although the host uses its interface."""
    if use := device.identity.get("host_use"):
        raise PermanentError(f"{field}{use}, so a claim cannot change it", where=where, hint="request another device")


def refuse_use(network: HostNetwork, interfaces: Iterable[str], device: Device, where: str, field: str = "") -> None:
    """Raise RetryableError if the host uses an interface now, or if that is not known."""
    for interface in interfaces:
        use = network.present_use(interface, where)
        if use is not None and not (use.code == "host-address" and may_have_address(device)):
            raise RetryableError(
                f"{field}the host uses it: {use.reason}",
                where=where,
                hint="end that use, or request another device; the agent retries",
            )

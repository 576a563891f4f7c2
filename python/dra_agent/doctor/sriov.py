"""Whether physical and virtual functions fit together."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.device_setup.sysfs_writer import RealSysfsWriter, TimedWriter
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, warning
from dra_agent.errors import RetryableError
from dra_agent.topology import PciFunction

READ_TIMEOUT_S = 5.0
"""The kernel shows how many virtual functions there are only under the device's lock."""


def check(examination: CheckContext) -> Iterator[Finding]:
    """Compare what physical functions say with the virtual functions that are there."""
    topology = examination.topology
    if topology is None:
        return
    virtual = 0
    for device in topology.devices:
        if device.sriov is not None:
            yield from _check_number(examination, device)
        if device.physfn is None:
            continue
        virtual += 1
        if device.physfn not in topology.by_address:
            yield warning(
                f"is a virtual function of {device.physfn}, which is not there",
                device.pci_address,
                "it may be left of a removed card: remove it, or rescan the bus",
            )
        elif device.driver is None and device.kind.value != "other":
            yield warning(
                "a virtual function without a driver",
                device.pci_address,
                "bind it to its driver or to vfio-pci, or lower sriov_numvfs of its physical function",
            )
    if virtual:
        yield ok(f"{virtual} virtual functions")


def _check_number(examination: CheckContext, device: PciFunction) -> Iterator[Finding]:
    """Compare the number that the kernel has of a physical function with the functions that are on the bus."""
    path = f"bus/pci/devices/{device.pci_address}/sriov_numvfs"
    if not (examination.host.sysfs / path).exists():
        return
    accesses = TimedWriter(RealSysfsWriter(examination.host.sysfs), READ_TIMEOUT_S)
    try:
        text = accesses.read(device.pci_address, path).strip()
    except RetryableError as error:
        yield warning(error.message, device.pci_address, error.hint or "look at the kernel's log (dmesg)")
        return
    except OSError:
        return
    if text.isdecimal() and int(text) != len(device.virtfns):
        yield warning(
            f"says it has {text} virtual functions, {len(device.virtfns)} are there",
            device.pci_address,
            "write 0 and then the wanted number to its sriov_numvfs",
        )

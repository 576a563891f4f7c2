"""Checks of the PCI bus: IOMMU groups, SR-IOV and link speeds."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.device_setup.sysfs_writer import RealSysfsWriter, TimedWriter
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.devices import VFIO
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.errors import AgentError, RetryableError
from dra_agent.inventory.passthrough import PASSTHROUGH, VfioBindingStore
from dra_agent.topology import DeviceKind, Link, PciFunction, Topology

_BRIDGE = "0x06"


def check_iommu(context: CheckContext) -> Iterator[Finding]:
    """Check the IOMMU, and the groups of devices that are or will be bound to vfio-pci."""
    topology = context.topology
    if topology is None:
        return
    directory = context.host.sysfs / "class/iommu"
    try:
        is_on = any(directory.iterdir())
    except OSError:
        is_on = False
    is_on = is_on or any(device.iommu_group is not None for device in topology.devices)
    passed = [device for device in topology.devices if device.driver == VFIO]
    offered = _offered(context)
    if not is_on:
        for device in passed:
            yield problem(
                "is bound to vfio-pci, but the IOMMU is off",
                device.pci_address,
                "switch it on in the firmware (VT-d, AMD-Vi), and add intel_iommu=on or iommu=pt to the kernel's "
                "command line",
            )
        yield ok("the IOMMU is off: containers need none, virtual machines would")
        return
    yield ok("the IOMMU is on")
    if offered and not (context.host.sysfs / "bus/pci/drivers" / VFIO).is_dir():
        yield problem(
            f"{len(offered)} devices are offered for passthrough, and the driver vfio-pci is not loaded",
            "inventory.passthrough",
            "run `modprobe vfio-pci`, and name it in /etc/modules-load.d for the next boot",
        )
    for device in topology.devices:
        if device in passed or device.pci_address in offered:
            yield from _group(device, topology)
    yield from _left_behind(context)


def _offered(context: CheckContext) -> set[str]:
    devices = context.inventory.devices if context.inventory is not None else ()
    return {device.pci_address for device in devices if PASSTHROUGH in device.identity}


def _left_behind(context: CheckContext) -> Iterator[Finding]:
    """Name functions that are with vfio-pci for claims that hold nothing: the ledger was lost, or an agent's state."""
    if context.ledger.failure is not None:
        return
    try:
        bindings = VfioBindingStore(context.state_dir).all()
    except AgentError as error:
        yield problem(error.message, error.where or "passthrough", error.hint or "")
        return
    for address, binding in sorted(bindings.items()):
        if binding.uid not in context.ledger.claims:
            yield problem(
                f"is bound to vfio-pci for claim {binding.uid}, which holds no device",
                address,
                f"the next claim of it restores the driver; by hand: unbind it, empty its driver_override, bind it to "
                f"{binding.driver or 'no driver'}, and remove vfio/{address}.json from the state directory",
            )


def _group(device: PciFunction, topology: Topology) -> Iterator[Finding]:
    if device.iommu_group is None:
        yield problem("is for vfio-pci and has no IOMMU group", device.pci_address, "switch the IOMMU on")
        return
    # A group is given away as a whole; bridges in it do not count (kernel: Documentation/driver-api/vfio.rst).
    others = [
        other.pci_address
        for other in topology.devices
        if other.iommu_group == device.iommu_group
        and other.pci_address != device.pci_address
        and not other.class_.startswith(_BRIDGE)
        and other.driver not in (None, VFIO)
    ]
    if others:
        yield warning(
            f"shares IOMMU group {device.iommu_group} with {', '.join(others)}, which the host uses",
            device.pci_address,
            "bind them to vfio-pci too, or use a slot behind a port with ACS",
        )


READ_TIMEOUT_S = 5.0
"""The kernel shows how many virtual functions there are only under the device's lock."""


def check_sriov(context: CheckContext) -> Iterator[Finding]:
    """Compare the virtual functions that physical functions report with those that exist."""
    topology = context.topology
    if topology is None:
        return
    virtual = 0
    for device in topology.devices:
        if device.sriov is not None:
            yield from _check_number(context, device)
        if device.physfn is None:
            continue
        virtual += 1
        if device.physfn not in topology.by_address:
            yield warning(
                f"is a virtual function of {device.physfn}, which does not exist",
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


def _check_number(context: CheckContext, device: PciFunction) -> Iterator[Finding]:
    """Compare the number that the kernel has of a physical function with the functions that are on the bus."""
    path = f"bus/pci/devices/{device.pci_address}/sriov_numvfs"
    if not (context.host.sysfs / path).exists():
        return
    accesses = TimedWriter(RealSysfsWriter(context.host.sysfs), READ_TIMEOUT_S)
    try:
        text = accesses.read(device.pci_address, path).strip()
    except RetryableError as error:
        yield warning(error.message, device.pci_address, error.hint or "check the kernel log (dmesg)")
        return
    except OSError:
        return
    if text.isdecimal() and int(text) != len(device.virtfns):
        yield warning(
            f"reports {text} virtual functions, {len(device.virtfns)} exist",
            device.pci_address,
            "write 0 and then the desired number to its sriov_numvfs",
        )


def check_pcie_links(context: CheckContext) -> Iterator[Finding]:
    """Compare the PCIe link of each device with the best that it supports."""
    topology = context.topology
    if topology is None:
        return
    known = slow = 0
    for device in topology.relevant:
        if device.link is None or device.physfn is not None:
            continue
        known += 1
        # The link of a GPU to the switch inside its card is not that of the card to its slot.
        links = [link for link in (device.link, device.card_link) if link is not None]
        for finding in next(filter(None, (list(_link(device, link)) for link in links)), []):
            slow += 1
            yield finding
    if known and not slow:
        yield ok(f"{known} PCIe links run at full width and speed")


def _link(device: PciFunction, link: Link) -> Iterator[Finding]:
    if link.width and link.max_width and link.width < link.max_width:
        yield warning(
            f"its link has {link.width} of {link.max_width} lanes",
            device.pci_address,
            "reseat the card, or put it into a slot with more lanes",
        )
    if link.generation and link.max_generation and link.generation < link.max_generation:
        message = f"its link runs at generation {link.generation} of {link.max_generation}"
        if device.kind is DeviceKind.GPU:
            # An idle GPU lowers its link to save power, and raises it with the first work.
            yield ok(f"{message}, as idle GPUs do", device.pci_address)
        else:
            yield warning(message, device.pci_address, "check the slot, the riser and the firmware's PCIe settings")

"""Whether the IOMMU is on, and which devices can only be passed through together."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.devices import VFIO
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.errors import AgentError
from dra_agent.inventory.passthrough import PASSTHROUGH
from dra_agent.inventory.passthrough_bindings import VfioBindingStore
from dra_agent.topology import PciFunction, Topology

_BRIDGE = "0x06"


def check(examination: CheckContext) -> Iterator[Finding]:
    """Look at the IOMMU, and at the groups of devices that are bound to vfio-pci or will be."""
    topology = examination.topology
    if topology is None:
        return
    directory = examination.host.sysfs / "class/iommu"
    try:
        is_on = any(directory.iterdir())
    except OSError:
        is_on = False
    is_on = is_on or any(device.iommu_group is not None for device in topology.devices)
    passed = [device for device in topology.devices if device.driver == VFIO]
    offered = _offered(examination)
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
    if offered and not (examination.host.sysfs / "bus/pci/drivers" / VFIO).is_dir():
        yield problem(
            f"{len(offered)} devices are offered for passthrough, and the driver vfio-pci is not loaded",
            "inventory.passthrough",
            "run `modprobe vfio-pci`, and name it in /etc/modules-load.d for the next boot",
        )
    for device in topology.devices:
        if device in passed or device.pci_address in offered:
            yield from _group(device, topology)
    yield from _left_behind(examination)


def _offered(examination: CheckContext) -> set[str]:
    devices = examination.inventory.devices if examination.inventory is not None else ()
    return {device.pci_address for device in devices if PASSTHROUGH in device.identity}


def _left_behind(examination: CheckContext) -> Iterator[Finding]:
    """Name functions that are with vfio-pci for claims that hold nothing: the ledger was lost, or an agent's state."""
    if examination.ledger.failure is not None:
        return
    try:
        handovers = VfioBindingStore(examination.state_dir).all()
    except AgentError as error:
        yield problem(error.message, error.where or "passthrough", error.hint or "")
        return
    for address, handover in sorted(handovers.items()):
        if handover.uid not in examination.ledger.claims:
            yield problem(
                f"was handed over to vfio-pci for claim {handover.uid}, which holds nothing",
                address,
                f"the next claim that has it gives it back; by hand: unbind it, empty its driver_override, bind it to "
                f"{handover.driver or 'no driver'}, and remove vfio/{address}.json from the state directory",
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

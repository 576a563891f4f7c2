"""Whether physical and virtual functions fit together."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.doctor.examination import Examination
from dra_agent.doctor.finding import Finding, ok, warning


def check(examination: Examination) -> Iterator[Finding]:
    """Compare what physical functions say with the virtual functions that are there."""
    topology = examination.topology
    if topology is None:
        return
    virtual = 0
    for device in topology.devices:
        if device.sriov is not None and device.sriov.num_vfs != len(device.virtfns):
            yield warning(
                f"says it has {device.sriov.num_vfs} virtual functions, {len(device.virtfns)} are there",
                device.pci_address,
                "write 0 and then the wanted number to its sriov_numvfs",
            )
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

"""Whether every PCIe link runs at the width and generation that it could."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, warning
from dra_agent.topology import DeviceKind, PciFunction


def check(examination: CheckContext) -> Iterator[Finding]:
    """Compare each wanted device's link with its best."""
    topology = examination.topology
    if topology is None:
        return
    known = slow = 0
    for device in topology.wanted:
        if device.link is None or device.physfn is not None:
            continue
        known += 1
        for finding in _link(device):
            slow += 1
            yield finding
    if known and not slow:
        yield ok(f"{known} PCIe links run at full width and speed")


def _link(device: PciFunction) -> Iterator[Finding]:
    link = device.link
    assert link is not None
    if link.width and link.max_width and link.width < link.max_width:
        yield warning(
            f"its link has {link.width} of {link.max_width} lanes",
            device.pci_address,
            "reseat the card, or put it into a slot with more lanes",
        )
    if link.generation and link.max_generation and link.generation < link.max_generation:
        what = f"its link runs at generation {link.generation} of {link.max_generation}"
        if device.kind is DeviceKind.GPU:
            # An idle GPU lowers its link to save power, and raises it with the first work.
            yield ok(f"{what}, as idle GPUs do", device.pci_address)
        else:
            yield warning(what, device.pci_address, "look at the slot, the riser and the firmware's PCIe settings")

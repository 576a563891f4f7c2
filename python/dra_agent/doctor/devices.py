"""Whether the hardware is found, driven and well: what scan and inventory complain of, drivers, and NUMA."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.inventory.backend import backend_of, is_usable
from dra_agent.topology import PciFunction, Topology

_LOG = "look at the kernel's log (dmesg)"
_CURES = {
    "gpu-lost": "drain the node and reset or power-cycle the GPU",
    "reset-required": "drain the GPU, then reset it (nvidia-smi --gpu-reset)",
    "row-remap-failed": "have the GPU replaced",
    "link-down": "look at cable, transceiver and switch port",
}
NVIDIA = "0x10de"
VFIO = "vfio-pci"


def check(examination: CheckContext) -> Iterator[Finding]:
    """Look at what the scan found, and at each device's driver and NUMA node."""
    if examination.failure is not None:
        yield problem(examination.failure, "scan", "mend this first: the other checks see no devices")
    topology, inventory = examination.topology, examination.inventory
    if topology is not None:
        for scanned in topology.problems:
            yield warning(scanned.message, scanned.where, "the device is passed over; look at it with lspci -vv")
        yield from _drivers(topology, examination)
        yield from _numa(topology)
    if inventory is None:
        return
    for found in inventory.problems:
        make = problem if found.severity == "error" else warning
        yield make(found.message, found.where, found.hint or "")
    for device in inventory.devices:
        if device.health == "unhealthy":
            reason = device.health_reason or "is unhealthy"
            causes = [taint.key.partition("/")[2] for taint in device.taints]
            yield problem(reason, device.name, "; ".join(_CURES[c] for c in causes if c in _CURES) or _LOG)
    for exclusion in inventory.excluded:
        yield ok(f"not published: {exclusion.reason}", exclusion.name)
    count = len(inventory.devices)
    yield ok(f"{count} device{'' if count == 1 else 's'} can be claimed")


def _drivers(topology: Topology, examination: CheckContext) -> Iterator[Finding]:
    nvidia = False
    for device in topology.devices:
        if device.vendor_id == NVIDIA and device.driver == "nouveau":
            yield problem(
                "nouveau drives the GPU, which CUDA cannot use",
                device.pci_address,
                "blacklist nouveau and install NVIDIA's driver",
            )
        elif backend_of(device) is not None and not is_usable(device) and device.physfn is None:
            yield warning("no driver is bound to it", device.pci_address, _driver_todo(device))
        nvidia = nvidia or device.driver == "nvidia"
    if nvidia and not (examination.host.proc / "driver/nvidia/version").exists():
        yield warning(
            "the driver has GPUs but no version in procfs",
            str(examination.host.proc / "driver/nvidia/version"),
            "reload the nvidia module",
        )


def _driver_todo(device: PciFunction) -> str:
    known = {NVIDIA: "NVIDIA's driver", "0x1002": "the amdgpu driver", "0x8086": "the i915 or xe driver"}
    name = known.get(device.vendor_id, "its vendor's driver")
    return f"install or load {name}, or leave it alone if it is not meant to be used"


def _numa(topology: Topology) -> Iterator[Finding]:
    if len(topology.numa_nodes) < 2:
        return
    unknown = [device.pci_address for device in topology.wanted if device.numa_node is None]
    if unknown:
        yield warning(
            f"{len(unknown)} devices have no known NUMA node, so claims cannot place work near them",
            ", ".join(unknown[:4]) + (", ..." if len(unknown) > 4 else ""),
            "update the firmware (its _PXM entries), or expose NUMA to this virtual machine",
        )

"""Whether a function may be taken from its driver now: nobody uses it, and nobody of its IOMMU group is left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dra_agent.device_setup.open_files import nodes_of, processes_holding, require_unused
from dra_agent.device_setup.vfio.pci_functions import PciFunctions
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device


def check_group(
    functions: PciFunctions, address: str, mine: Collection[str], others: Mapping[str, str], where: str
) -> int:
    """Give the function's IOMMU group, after a look at all of it.

    `mine` are the functions that the claim has, `others` those that other claims have, with these claims' uids.
    PermanentError names the neighbours that the host uses, RetryableError those that another claim has for now.
    """
    group = functions.group(address)
    if group is None:
        raise PermanentError(
            "it has no IOMMU group, so that nothing would keep it from the host's memory",
            where=where,
            hint="switch the IOMMU on (VT-d or AMD-Vi in the firmware, intel_iommu=on on the kernel's command line)",
        )
    neighbours = [one for one in functions.neighbours(address, group) if one.address not in mine]
    in_use = [one for one in neighbours if not one.is_out_of_use]
    if in_use:
        named = ", ".join(f"{one.address} ({one.driver})" for one in in_use)
        raise PermanentError(
            f"the host uses other functions of its IOMMU group {group}: {named}",
            where=where,
            hint="let the claim have them too, take their drivers away, or use a slot behind a port with ACS",
        )
    taken = [f"{one.address} (claim {others[one.address]})" for one in neighbours if one.address in others]
    if taken:
        raise RetryableError(
            f"another claim has functions of its IOMMU group {group}, and a group is given to one at a time: "
            f"{', '.join(taken)}",
            where=where,
            hint="it is tried again until that claim is released",
        )
    return group


def require_idle(functions: PciFunctions, host: Host, device: Device, address: str, where: str) -> None:
    """Refuse a function that the host or a process uses: RetryableError, PermanentError where it cannot end."""
    if uplink := device.identity.get("uplink"):
        raise PermanentError(
            f"the host is reached through its interface {uplink}", where=where, hint="ask for another device"
        )
    if count := functions.virtual_functions(address):
        raise RetryableError(
            f"it has {count} virtual functions, which would go with its driver",
            where=where,
            hint="remove them (sriov_numvfs), or ask for one of them instead",
        )
    if interfaces := functions.interfaces_in_use(address):
        raise RetryableError(
            f"its interface {interfaces[0]} is part of a bond, a bridge or a VLAN of the host",
            where=where,
            hint="take it out of there, or ask for another device",
        )
    require_unused(host, nodes_of(host, address, device.identity.get("minor")), where)


def require_released(functions: PciFunctions, host: Host, address: str, where: str) -> None:
    """Refuse a function that a virtual machine or a program is seen to have open: vfio-pci would wait for its end.

    An agent that does not see every process goes on: the claim is released when its containers are gone, and where
    somebody is left all the same, vfio-pci waits and takes nothing away from under it (vfio_unregister_group_dev).
    """
    group = functions.group(address)
    nodes = [*nodes_of(host, address), *([f"/dev/vfio/{group}"] if group is not None else [])]
    if users := processes_holding(host, nodes):
        raise RetryableError("; ".join(map(str, users[:5])), where=where, hint="end them; it is tried again by itself")

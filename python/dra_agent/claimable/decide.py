"""Decides for each function whether it may be claimed, from what the kernel made of it and who uses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from dra_agent.claimable.codes import Code
from dra_agent.claimable.drivers import CONSOLE_VENDORS, DriverFacts, driver_facts
from dra_agent.claimable.use import HostUse
from dra_agent.topology.model import DeviceKind, PciFunction

_BY_MEANING: dict[str, Code] = {
    "reserves": "reserved",
    "user-space": "user-space-driver",
    "unusable": "unusable-driver",
    "virtualizes": "virtualized",
    "manages": "management",
    "other-platform": "unsupported-platform",
}
_NVIDIA, _NVIDIA_DRIVER = "0x10de", "nvidia"
_NEURON_DRIVER = "neuron-driver"


class Refusal(msgspec.Struct, frozen=True):
    """Why a function may not be claimed."""

    code: Code
    reason: str
    hint: str = ""
    by_rule: bool = False
    """A rule of the operator may allow it nevertheless."""
    is_shared: bool = False
    """Claims have it beside the host, for RDMA, and do not change its interface."""
    host_use: str = ""
    """What the host does with its interface; claims do not change it where a rule permits the device."""


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the host besides the function itself."""

    uses: Mapping[str, HostUse] = {}
    """By name of a network interface: how the host uses it."""
    moved: Collection[str] = frozenset()
    """PCI addresses whose interface a claim has moved into a container."""
    held: Collection[str] = frozenset()
    """PCI addresses of functions that claims have."""
    nodes: Mapping[str, Sequence[str]] = {}
    """By PCI address: names below /dev of the character devices that drivers of accelerators and FPGAs made."""
    ethernet_rdma: Collection[str] = frozenset()
    """PCI addresses of functions without an interface on the host whose RDMA ports are Ethernet, and need one."""
    divisions: Mapping[str, str] = {}
    """By PCI address of an adapter: its subfunctions, "2 subfunctions"."""
    wholes: Mapping[str, str | None] = {}
    """By PCI address of a function that only works together with another one: the address of that one; None if the
    host does not have it."""
    managing: Collection[str] = frozenset()
    """PCI addresses of functions that configure a card, whatever their driver."""
    changing_drivers: Collection[str] = frozenset()
    """PCI vendors whose driver is loaded and unloaded while claims hold its devices."""


class PlatformGpu(msgspec.Struct, frozen=True):
    """The GPU of a system on a chip that is no PCI function."""

    name: str
    """Of its platform device, "17000000.gpu"; without one, that of the chip's family."""
    board: str
    """As the device tree or the chip names it: "NVIDIA Jetson AGX Orin Developer Kit"."""
    driver: str | None


def platform_refusal(gpu: PlatformGpu) -> Refusal:
    """Return why such a GPU may not be claimed."""
    driver = "" if gpu.driver is None else f" with driver {gpu.driver}"
    return Refusal(
        "unsupported-platform",
        f"it is the GPU of a Tegra chip ({gpu.board}){driver}, a platform device instead of a PCI function, which this"
        " agent does not support",
        "run its containers with NVIDIA's container toolkit (nvidia-ctk cdi generate --mode=csv)",
    )


def refusal(function: PciFunction, facts: HostFacts) -> Refusal | None:
    """Return why this function may not be claimed; None if it may.

    Only functions of the kinds that claims can hold are asked for.
    """
    found = _of_function(function, facts)
    if function.kind is DeviceKind.NIC and function.physfn in facts.held and (found is None or found.is_shared):
        return Refusal(
            "physical-function",
            f"a claim has its physical function {function.physfn}, which it works through",
            "wait until that claim is released, or allow both by a rule of inventory.host_interfaces",
            by_rule=True,
            host_use="" if found is None else found.reason,
        )
    return found


def _of_function(function: PciFunction, facts: HostFacts) -> Refusal | None:
    if function.pci_address in facts.wholes:
        whole = facts.wholes[function.pci_address]
        of = f"the device at {whole}" if whole is not None else "a card whose other function is missing"
        return Refusal("part-of-device", f"it is a part of {of}")
    if function.pci_address in facts.managing:
        return Refusal("management", "the whole card is configured through it", "claim the card's user function")
    if function.driver is None and not _has_anything(function, facts):
        if function.vendor_id in facts.changing_drivers and function.physfn is None:
            return None
        return Refusal(
            "no-driver",
            f"no driver is bound to this {function.kind.value} ({function.vendor_id}:{function.device_id}), so nothing"
            " can use it",
            "load its driver, or bind it to vfio-pci",
        )
    known = driver_facts(function.driver, function.kind) if function.driver is not None else None
    if known is not None:
        return _of_known(function, known)
    if function.kind is DeviceKind.GPU:
        return _of_gpu(function)
    if function.kind is DeviceKind.NIC:
        return _of_nic(function, facts)
    return None if _has_anything(function, facts) else _nothing(function)


def _of_known(function: PciFunction, driver: DriverFacts) -> Refusal | None:
    if driver.meaning != "passes-through":
        return Refusal(_BY_MEANING[driver.meaning], f"{function.driver} {driver.reason}", driver.hint)
    if function.noiommu:
        return Refusal(
            "vfio-noiommu",
            f"{function.driver} has it without an IOMMU, so a container could reach all memory of the host",
            "give the virtual machine a virtual IOMMU, or enable the host's, and load vfio without"
            " enable_unsafe_noiommu_mode",
        )
    if function.iommu_group is None:
        return Refusal(
            "no-iommu-group",
            f"{function.driver} has no IOMMU group for it, so there is no node to give",
            "enable the IOMMU (VT-d or AMD-Vi in the firmware, intel_iommu=on on the kernel's command line)",
        )
    return _with_virtual_functions(function, by_rule=function.kind is DeviceKind.NIC)


def _of_gpu(function: PciFunction) -> Refusal | None:
    if function.vendor_id == _NVIDIA and function.driver == _NVIDIA_DRIVER:
        # Only NVIDIA's build for hosts of virtual machines binds virtual functions (kernel-open/nvidia/nv-pci.c).
        if function.physfn is not None:
            return Refusal(
                "virtualized",
                f"it is a vGPU of the GPU at {function.physfn}, which this host gives to virtual machines",
                "claim GPUs inside the virtual machine, or disable virtual functions (sriov_numvfs)",
            )
        return _with_virtual_functions(function, by_rule=False)
    render = function.drm.render if function.drm is not None else None
    if render is None and function.kfd is None and not function.accel:
        if function.drm is not None:
            return Refusal(
                "display",
                f"{function.drm.card} shows a screen and has no render node, as the display of a management controller",
            )
        return _nothing(function)
    if render is None and function.kfd is not None:
        return Refusal(
            "half-made",
            f"{function.driver} made a node for compute and no render node, and ROCm opens both",
            "check the kernel log (dmesg)",
        )
    if function.vendor_id in CONSOLE_VENDORS:
        return Refusal(
            "console",
            "it is the display of this virtual machine, whether or not a GPU is behind it",
            "allow it by a rule of inventory.displays if containers are to render with it",
            by_rule=True,
        )
    return None


def _of_nic(function: PciFunction, facts: HostFacts) -> Refusal | None:
    if not (function.net or function.infiniband or function.pci_address in facts.moved):
        return Refusal(
            "no-interface",
            f"{function.driver} made no network interface and no RDMA device for it in the host's network",
            "it may be in a container's network, or be a function that has none",
        )
    if not function.net and function.pci_address in facts.ethernet_rdma and function.pci_address not in facts.moved:
        return Refusal(
            "no-interface",
            f"{', '.join(function.infiniband)} is RDMA over Ethernet, and its network interface is not in the host's"
            " network",
            "another pod may have the interface, by a network plugin; claim another NIC",
        )
    uses = {facts.uses[name].code: facts.uses[name] for name in function.net if name in facts.uses}
    if (use := uses.get("host-interface")) is not None:
        return _used(use)
    divided = _with_virtual_functions(function, by_rule=True)
    if divided is None and (divisions := facts.divisions.get(function.pci_address)) is not None:
        divided = _divided(divisions, "claim another NIC, or remove them (devlink port del)", by_rule=True)
    if divided is not None:
        return divided
    if (use := uses.get("host-address")) is not None:
        # RDMA works beside the host's address; without it, nothing is left that a claim could have.
        return _used(use, is_shared=bool(function.infiniband))
    return None


def _used(use: HostUse, *, is_shared: bool = False) -> Refusal:
    return Refusal(
        use.code,
        f"the host uses it: {use.reason}",
        "claim another NIC, or allow it by a rule of inventory.host_interfaces",
        by_rule=True,
        is_shared=is_shared,
    )


def _with_virtual_functions(function: PciFunction, *, by_rule: bool) -> Refusal | None:
    count = function.sriov.num_vfs if function.sriov is not None else 0
    if not count:
        return None
    return _divided(f"{count} virtual functions", "claim those, or remove them (sriov_numvfs)", by_rule=by_rule)


def _divided(parts: str, hint: str, *, by_rule: bool) -> Refusal:
    return Refusal("physical-function", f"it has {parts}, which work through it", hint, by_rule=by_rule)


def _has_anything(function: PciFunction, facts: HostFacts) -> bool:
    drm = function.drm
    return bool(
        function.net
        or function.infiniband
        or function.accel
        or function.kfd is not None
        or (drm is not None and (drm.render is not None or drm.card is not None))
        or facts.nodes.get(function.pci_address)
        # Its nodes have no place in /sys: only the driver itself can tell which one belongs to a function.
        or function.driver == _NEURON_DRIVER
    )


def _nothing(function: PciFunction) -> Refusal:
    return Refusal(
        "no-node",
        f"{function.driver} made no device node for it, so a container would get nothing",
        "check the kernel log (dmesg); bind it to vfio-pci if a virtual machine is to have it",
    )

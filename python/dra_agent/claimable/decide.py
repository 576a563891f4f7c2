"""Decides for each function whether it may be claimed, from what the kernel made of it and who uses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from dra_agent.claimable.codes import Code
from dra_agent.claimable.drivers import CONSOLE_VENDORS, DISPLAY_VENDORS, NEURON_DRIVER, TEGRA_HINT, driver_facts
from dra_agent.claimable.use import HostUse
from dra_agent.claimable.vendor_nodes import DriverNodes
from dra_agent.topology.model import DeviceKind, PciFunction

_BY_MEANING: dict[str, Code] = {
    "reserves": "reserved",
    "unusable": "unusable-driver",
    "virtualizes": "virtualized",
    "manages": "management",
    "other-platform": "unsupported-platform",
}
_NVIDIA, _NVIDIA_DRIVER = "0x10de", "nvidia"
_INTEL = "0x8086"


class Refusal(msgspec.Struct, frozen=True):
    """Why a function may not be claimed."""

    code: Code
    reason: str
    hint: str = ""
    by_rule: bool = False
    """A rule of the operator may allow it nevertheless."""
    is_shared: bool = False
    """Claims use it alongside the host, for RDMA, and do not change its interface."""
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
    nodes: Mapping[str, DriverNodes] = {}
    """By PCI address: nodes that the scan does not read."""
    group_users: Mapping[str, Sequence[str]] = {}
    """By PCI address: other functions of its IOMMU group that the host uses, each with its driver."""
    ethernet_rdma: Collection[str] = frozenset()
    """PCI addresses of functions without an interface on the host whose RDMA ports are Ethernet, and need their own."""
    wireless: Collection[str] = frozenset()
    """Names of wireless network interfaces."""
    divisions: Mapping[str, str] = {}
    """By PCI address of an adapter: its subfunctions, "2 subfunctions"."""
    wholes: Mapping[str, str | None] = {}
    """By PCI address of a function that only works together with another one: the address of that one; None if the
    host does not have it."""
    managing: Collection[str] = frozenset()
    """PCI addresses of functions that configure a card, whatever their driver."""
    changing_drivers: Collection[str] = frozenset()
    """PCI vendors whose driver is loaded and unloaded while claims hold its devices."""


class PlatformDevice(msgspec.Struct, frozen=True):
    """A GPU or an accelerator of a system on a chip that is not a PCI function."""

    family: Literal["gpu", "accelerator"]
    name: str
    """Of its platform device, "17000000.gpu"; without one, that of the chip's family."""
    driver: str | None
    node: str = ""
    """Path of its node, "/dev/accel/accel0"; empty for a Tegra's GPU."""
    tegra: str | None = None
    """The board of a Tegra, as the device tree or the chip names it: "NVIDIA Jetson AGX Orin Developer Kit"."""


def platform_refusal(device: PlatformDevice) -> Refusal:
    """Return why such a device may not be claimed."""
    driver = "" if device.driver is None else f" with driver {device.driver}"
    if device.tegra is not None:
        what = f"the GPU of a Tegra chip ({device.tegra})"
        hint = TEGRA_HINT
    else:
        what = f"the {device.family} of a system on a chip ({device.node})"
        hint = "use a device plugin that allocates its node"
    return Refusal(
        "unsupported-platform",
        f"it is {what}{driver}, a platform device instead of a PCI function, which this agent does not support",
        hint,
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
            "nothing: it is the display of a management controller or of a virtual machine"
            if function.kind is DeviceKind.GPU and function.vendor_id in DISPLAY_VENDORS
            else "load its driver, or bind it to vfio-pci",
        )
    if (virtualized := _virtualized(function)) is not None:
        return virtualized
    if function.uio:
        return Refusal(
            "user-space-driver",
            f"{function.driver} gives it to programs by /dev/{function.uio[0]}, without the protection of an IOMMU",
            "bind it to vfio-pci if containers or virtual machines are to have it",
        )
    if function.is_vfio:
        return _of_vfio(function, facts)
    known = driver_facts(function.driver, function.kind) if function.driver is not None else None
    if known is not None:
        return Refusal(_BY_MEANING[known.meaning], f"{function.driver} {known.reason}", known.hint)
    if function.kind is DeviceKind.GPU:
        return _of_gpu(function, facts)
    if function.kind is DeviceKind.NIC:
        return _of_nic(function, facts)
    if (divided := _with_virtual_functions(function, by_rule=False)) is not None:
        return divided
    if (incomplete := _incomplete(function, facts)) is not None:
        return incomplete
    return None if _has_anything(function, facts) else _nothing(function)


def _virtualized(function: PciFunction) -> Refusal | None:
    if function.mdevs:
        return Refusal(
            "virtualized",
            f"it has {len(function.mdevs)} mediated devices, which are parts of it for virtual machines",
            "remove them (/sys/bus/mdev/devices/UUID/remove)",
        )
    # NVIDIA's driver only has types of them in its build for hosts of virtual machines (vgpu-vfio-mdev.c), which CUDA
    # cannot use. Other drivers, i915 with GVT-g for example, serve the host as before until a device is made.
    if function.mdevs is not None and function.driver == _NVIDIA_DRIVER:
        return Refusal(
            "virtualized",
            "its driver divides it for virtual machines (mdev_supported_types)",
            "claim GPUs inside the virtual machine, or install NVIDIA's driver for compute",
        )
    return None


def _of_vfio(function: PciFunction, facts: HostFacts) -> Refusal | None:
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
            f"{function.driver} has no IOMMU group for it, so it has no device node",
            "enable the IOMMU (VT-d or AMD-Vi in the firmware, intel_iommu=on on the kernel's command line)",
        )
    if users := facts.group_users.get(function.pci_address):
        return Refusal(
            "iommu-group",
            f"the host uses other functions of its IOMMU group {function.iommu_group}: {', '.join(users)}",
            "unbind their drivers, bind them to vfio-pci, too, or use a slot behind a port with ACS",
        )
    return _with_virtual_functions(function, by_rule=function.kind is DeviceKind.NIC)


def _of_gpu(function: PciFunction, facts: HostFacts) -> Refusal | None:
    if function.vendor_id == _NVIDIA and function.driver == _NVIDIA_DRIVER:
        # Only NVIDIA's build for hosts of virtual machines binds virtual functions (kernel-open/nvidia/nv-pci.c).
        if function.physfn is not None:
            return Refusal(
                "virtualized",
                f"it is a vGPU of the GPU at {function.physfn}, which this host gives to virtual machines",
                "claim GPUs inside the virtual machine, or disable virtual functions (sriov_numvfs)",
            )
        return _with_virtual_functions(function, by_rule=False)
    # The back end of Intel's GPUs describes virtual functions with what they take from the physical one.
    if function.vendor_id != _INTEL and (divided := _with_virtual_functions(function, by_rule=False)) is not None:
        return divided
    if (incomplete := _incomplete(function, facts)) is not None:
        return incomplete
    render = function.drm.render if function.drm is not None else None
    has_nodes = bool(function.accel or _own_nodes(function, facts))
    if render is None and function.kfd is None and not has_nodes:
        if function.drm is not None:
            return Refusal(
                "display",
                f"{function.drm.card} shows a screen and has no render node, as the display of a management controller",
            )
        return _nothing(function)
    if render is None and function.kfd is not None:
        return Refusal(
            "incomplete-nodes",
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
    has_interface = function.net or function.infiniband or _own_nodes(function, facts)
    if not (has_interface or function.pci_address in facts.moved):
        return Refusal(
            "no-interface",
            f"{function.driver} made no network interface and no RDMA device for it in the host's network",
            "it may be in a container's network, or be a function that has none",
        )
    # The pod of a claim may have got the interface, too, by a network plugin.
    is_claimed = function.pci_address in facts.moved or function.pci_address in facts.held
    if not function.net and function.pci_address in facts.ethernet_rdma and not is_claimed:
        return Refusal(
            "no-interface",
            f"{', '.join(function.infiniband)} is RDMA over Ethernet, and its network interface is not in the host's"
            " network",
            "another pod may have the interface, by a network plugin; claim another NIC",
        )
    if any(name in facts.wireless for name in function.net):
        return Refusal("wireless", "it is a wireless adapter, whose connection and keys only the host has")
    uses = {facts.uses[name].code: facts.uses[name] for name in function.net if name in facts.uses}
    if (use := uses.get("host-interface")) is not None:
        return _used(use)
    divided = _with_virtual_functions(function, by_rule=True)
    if divided is None and (divisions := facts.divisions.get(function.pci_address)) is not None:
        divided = _divided(divisions, "claim another NIC, or remove them (devlink port del)", by_rule=True)
    if divided is not None:
        return divided
    if (use := uses.get("host-address")) is not None:
        # RDMA works alongside the host's address; without it, nothing is left that a claim could have.
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


def _own_nodes(function: PciFunction, facts: HostFacts) -> tuple[str, ...]:
    return facts.nodes.get(function.pci_address, DriverNodes()).own


def _has_anything(function: PciFunction, facts: HostFacts) -> bool:
    drm = function.drm
    return bool(
        function.net
        or function.infiniband
        or function.accel
        or function.kfd is not None
        or (drm is not None and (drm.render is not None or drm.card is not None))
        or _own_nodes(function, facts)
        # Only the driver itself can report which node belongs to a function.
        or function.driver == NEURON_DRIVER
    )


def _incomplete(function: PciFunction, facts: HostFacts) -> Refusal | None:
    """Return why a container cannot use what the driver made of a function."""
    nodes = facts.nodes.get(function.pci_address, DriverNodes())
    if nodes.unrelated is not None:
        return Refusal(
            "node-unknown",
            f"{function.driver} made nodes such as /dev/{nodes.unrelated}, and /sys relates none to this function",
            "use a version of its driver that gives its nodes a parent device, or the vendor's device plugin",
        )
    if nodes.missing:
        named = ", ".join(f"/dev/{name}" for name in nodes.missing)
        return Refusal(
            "incomplete-nodes",
            f"{function.driver} made no {named}, without which its vendor's libraries do not work",
            "check the kernel log (dmesg), and that all modules of its driver are loaded",
        )
    return None


def _nothing(function: PciFunction) -> Refusal:
    return Refusal(
        "no-node",
        f"{function.driver} made no device node that /sys relates to it and that a container could use",
        "check the kernel log (dmesg); bind it to vfio-pci if a virtual machine is to have it",
    )

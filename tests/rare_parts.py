"""Parts of hosts that no profile has: functions of tests, made like those of `dra_simulate.parts`."""

from __future__ import annotations

from dataclasses import replace

from dra_simulate.machine import Bar, Function, LinkState, PciId, Sriov
from dra_simulate.parts import bridges
from dra_simulate.parts.bridges import guid, mac
from dra_simulate.parts.network import connectx6dx
from dra_simulate.roles.amd import AmdGpu
from dra_simulate.roles.drm import AccelNodes, DrmNodes
from dra_simulate.roles.network import Interface, RdmaDevice
from dra_simulate.roles.vendor import MediatedDevices, UioDevice, VendorNode, VgpuFunction, VirtualDevice

_ETHERNET, _VGA = 0x020000, 0x030000
_PROCESSING, _MEMORY, _UNASSIGNED = 0x120000, 0x058000, 0xFF0000
_GOOGLE, _AMAZON = 0x1AE0, 0x1D0F
_MIB, _GIB = 1 << 20, 1 << 30
_FIRST_RENDER = 128


def xdna(address: str, number: int) -> Function:
    """The NPU of a Strix Halo under amdxdna: class 1180, signal processing, and a node as accelerators have."""
    return Function(
        address,
        PciId(0x1022, 0x17F0, 0x118000, 0x1022, 0x17F0, 0x11),
        driver="amdxdna",
        bars=(Bar(512 << 10, prefetchable=True),),
        roles=(AccelNodes(number),),
        attributes={"device_type": 0, "vbnv": "RyzenAI-npu5"},
    )


def coral(address: str, number: int) -> Function:
    """A Coral Edge TPU under gasket's apex; the kernel corrects its class to that of a system peripheral."""
    return Function(
        address,
        PciId(0x1AC1, 0x089A, 0x088000, 0x1AC1, 0x089A),
        driver="apex",
        link=LinkState(2, 1),
        bars=(Bar(16 << 10, prefetchable=True), Bar(1 * _MIB, prefetchable=True)),
        roles=(VendorNode(f"apex/apex_{number}", "apex", number, in_class="apex"),),
    )


def hailo(address: str, number: int) -> Function:
    """A Hailo-8 under hailo_pci, with the class of a coprocessor."""
    return Function(
        address,
        PciId(0x1E60, 0x2864, 0x0B4000, 0x1E60, 0x2864, 0x01),
        driver="hailo",
        link=LinkState(3, 4),
        bars=(Bar(16 << 10, prefetchable=True), Bar(4 << 10, prefetchable=True)),
        roles=(VendorNode(f"hailo_chardev/hailo{number}", "hailo", number, in_class="hailo_chardev"),),
    )


def tpu_v4(address: str, number: int) -> Function:
    """A TPU v4 under Google's driver, whose class is named as the kernel's accel class, and whose nodes are in /dev."""
    return Function(
        address,
        PciId(_GOOGLE, 0x005E, _UNASSIGNED, _GOOGLE, 0x005E),
        driver="tpu_v4",
        link=LinkState(3, 16),
        bars=(Bar(64 * _MIB, prefetchable=True),),
        roles=(VendorNode(f"accel/accel{number}", "accel", number, in_class="accel"),),
    )


def tpu_v5e(address: str) -> Function:
    """A TPU v5e as a machine starts; Google's images bind it to vfio-pci, which is how applications use it."""
    return Function(
        address,
        PciId(_GOOGLE, 0x0063, _UNASSIGNED, _GOOGLE, 0x0063),
        link=LinkState(4, 16),
        bars=(Bar(64 * _MIB, prefetchable=True),),
    )


def aws_f2(slot: str) -> tuple[Function, Function]:
    """An FPGA of AWS F2 ("0000:9f:00"): its application, which programs map without a driver, and its management."""
    application = Function(
        f"{slot}.0",
        PciId(_AMAZON, 0xF010, _MEMORY, _AMAZON, 0x0103),
        bars=(Bar(64 * _MIB), Bar(128 * _GIB, prefetchable=True)),
    )
    management = Function(f"{slot}.1", PciId(_AMAZON, 0x9248, _MEMORY, _AMAZON, 0x9248), bars=(Bar(16 << 10),))
    return application, management


def qat_of_vendor(address: str, first: int, bundles: int = 2) -> Function:
    """A QuickAssist under the driver of Intel's package, which gives programs its bundles: /dev/uioN from `first`."""
    roles = tuple(UioDevice(first + bundle, "4xxx") for bundle in range(bundles))
    return replace(qat(address), roles=(*qat(address).roles, *roles))


def hailo_4_22(address: str, number: int) -> Function:
    """The same card under hailo_pci 4.22 and earlier, whose nodes have no parent, and the PCI address as attribute."""
    role = VirtualDevice(
        f"hailo{number}",
        "hailo_chardev",
        "hailo",
        number,
        attributes={"board_location": address, "device_id": "1e60:2864"},
    )
    return replace(hailo(address, number), roles=(role,))


def memryx(address: str, number: int) -> Function:
    """A MemryX MX3, whose nodes have neither a parent nor an address."""
    return Function(
        address,
        PciId(0x1FE9, 0x0100, _PROCESSING, 0x1FE9, 0x0000),
        driver="memx_pcie_ai_chip",
        link=LinkState(3, 2),
        bars=(Bar(16 * _MIB),),
        roles=(VirtualDevice(f"memx{number}", "memx_cdev", "memx", number),),
    )


def hygon(address: str, card: int) -> Function:
    """A Hygon K100 under hydcu: DRM nodes of its own, and two nodes for all of them."""
    return Function(
        address,
        PciId(0x1D94, 0x62B7, 0x0B4000, 0x1D94, 0x62B7, 0x01),
        driver="hydcu",
        link=LinkState(4, 16),
        bars=(Bar(64 * _GIB, prefetchable=True),),
        roles=(
            DrmNodes(card, 128 + card),
            VirtualDevice("kfd", "kfd", "kfd", 0),
            VirtualDevice("mkfd", "mkfd", "mkfd", 0),
        ),
    )


def metax(address: str, card: int) -> Function:
    """A MetaX C500: DRM nodes of its own, and one node for all of them."""
    return Function(
        address,
        PciId(0x9999, 0x4001, 0x038000, 0x9999, 0x4001),
        driver="metax",
        link=LinkState(5, 16),
        bars=(Bar(64 * _GIB, prefetchable=True),),
        roles=(DrmNodes(card, 128 + card), VirtualDevice("mxcd", "mxcd", "mxcd", 0)),
    )


def moore_threads(address: str, card: int) -> Function:
    """An MTT S4000 under mtgpu, whose node beside those of DRM is assumed to have no parent."""
    return Function(
        address,
        PciId(0x1ED5, 0x0323, 0x030200, 0x1ED5, 0x0323),
        driver="mtgpu",
        link=LinkState(5, 16),
        bars=(Bar(64 * _GIB, prefetchable=True),),
        roles=(DrmNodes(card, 128 + card), VirtualDevice(f"mtgpu.{card}", "mtgpu", "mtgpu", card)),
    )


def pac_n3000_divided(address: str, number: int) -> Function:
    """An Intel PAC N3000 whose port was released to a virtual function: its own has the management engine only."""
    virtual = Function(
        f"{address.rpartition('.')[0]}.1",
        PciId(0x8086, 0x0B31, _PROCESSING, 0x8086, 0x0000),
        driver="dfl-pci",
        bars=(Bar(512 << 10, prefetchable=True),),
        roles=(VendorNode(f"fpga_region/region{number + 1}/dfl-port.{number}", "dfl", 2 * number + 1),),
    )
    return Function(
        address,
        PciId(0x8086, 0x0B30, _PROCESSING, 0x8086, 0x0000),
        driver="dfl-pci",
        link=LinkState(3, 16),
        bars=(Bar(512 << 10, prefetchable=True),),
        roles=(VendorNode(f"fpga_region/region{number}/dfl-fme.{number}", "dfl", 2 * number),),
        sriov=Sriov(1, 0x0B31, functions=(virtual,)),
    )


def qat(address: str, *, virtual: int = 0) -> Function:
    """A QuickAssist 4xxx, which the kernel uses: one control node for all, and nothing of a single device.

    `virtual` functions have no driver.
    """
    stem = address.rpartition(".")[0]
    functions = tuple(
        Function(f"{stem}.{number}", PciId(0x8086, 0x4941, 0x0B4000, 0x8086, 0x0000, 0x40))
        for number in range(1, virtual + 1)
    )
    return Function(
        address,
        PciId(0x8086, 0x4940, 0x0B4000, 0x8086, 0x0000, 0x40),
        driver="4xxx",
        bars=(Bar(256 << 10, prefetchable=True), Bar(4 * _MIB, prefetchable=True)),
        roles=(VirtualDevice("qat_adf_ctl", "qat_adf_ctl", "qat_adf_ctl", 0),),
        sriov=Sriov(16, 0x4941, functions=functions),
    )


def virtio_gpu(address: str, card: int, bus_device: str | None = None) -> Function:
    """The display of a virtual machine of QEMU; it has a render node with and without a GPU behind it.

    `bus_device`: the directory of virtio's bus ("virtio1") in which older kernels make the nodes.
    """
    roles = (DrmNodes(card, _FIRST_RENDER + card, bus_device=bus_device),)
    return Function(
        address,
        PciId(0x1AF4, 0x1050, _VGA, 0x1AF4, 0x1100, 0x01),
        driver="virtio-pci",
        bars=(Bar(8 * _MIB, prefetchable=True),),
        roles=roles,
    )


def amd_igpu(address: str, card: int, *, machine: str) -> Function:
    """The GPU of a Raphael CPU: two compute units, and memory that firmware carves out of the host's."""
    role = AmdGpu(
        card=card,
        render=_FIRST_RENDER + card,
        name="AMD Radeon Graphics",
        unique_id=bridges.number(machine, "igpu", card),
        memory_bytes=512 * _MIB,
        compute_units=2,
        dies=1,
        gfx_version=100306,
        vbios="102-RAPHAEL-008",
        memory_vendor="unknown",
    )
    return Function(
        address,
        PciId(0x1002, 0x164E, _VGA, 0x1002, 0x164E, 0xC1),
        driver="amdgpu",
        bars=(Bar(256 * _MIB, prefetchable=True),),
        roles=(DrmNodes(card, role.render), role),
    )


def without_driver(function: Function) -> Function:
    """The function before a driver is loaded."""
    return replace(function, driver=None, roles=(), attributes={})


def with_mediated_devices(function: Function, *uuids: str) -> Function:
    """A GPU without virtual functions whose driver offers parts of it to virtual machines, which have those `uuids`."""
    types = {"i915-GVTg_V5_4": "GVTg_V5_4"} if function.driver == "i915" else {"nvidia-222": "GRID T4-1B"}
    return replace(function, roles=(*function.roles, MediatedDevices(types, uuids)))


def vgpu_host(function: Function, types: tuple[int, ...], *, total: int = 16) -> Function:
    """An NVIDIA GPU on a vGPU host: its driver has the virtual functions, one for each of `types` (0: not used)."""
    slot = function.address.rpartition(":")[0]
    pci = function.id
    functions = tuple(
        Function(
            # The GPU's first VF offset is 4 (seen on H200), and ARI counts on into the device number.
            f"{slot}:{(4 + which) >> 3:02x}.{(4 + which) & 7}",
            PciId(pci.vendor, pci.device, pci.class_code, pci.subsystem_vendor, pci.subsystem_device, pci.revision),
            driver="nvidia",
            roles=(VgpuFunction(vgpu_type),),
        )
        for which, vgpu_type in enumerate(types)
    )
    return replace(function, sriov=Sriov(total, pci.device, offset=4, functions=functions))


def slingshot(address: str, number: int, name: str, index: int, *, machine: str) -> Function:
    """A Slingshot Cassini, which libfabric uses by a node of its own."""
    return Function(
        address,
        PciId(0x17DB, 0x0501, _ETHERNET, 0x17DB, 0x0000),
        driver="cxi_ss1",
        link=LinkState(4, 16),
        bars=(Bar(1 * _MIB, prefetchable=True),),
        roles=(
            Interface(name, mac(machine, 100 + index, "02:00:00"), index, speed=200_000),
            VendorNode(f"cxi_user/cxi{number}", "cxi_user", number, in_class="cxi_user"),
        ),
    )


def omni_path(address: str, number: int, *, machine: str) -> Function:
    """An Omni-Path adapter: libraries use a node that has no parent and the number of the RDMA device."""
    name = f"hfi1_{number}"
    return Function(
        address,
        PciId(0x8086, 0x24F0, 0x020800, 0x8086, 0x2628, 0x11),
        driver="hfi1",
        link=LinkState(3, 16),
        bars=(Bar(64 * _MIB, prefetchable=True),),
        roles=(
            RdmaDevice(name, guid(machine, number), number, own_protocol=True, hca_type="", board=""),
            VirtualDevice(name, "hfi1_user", "hfi1_user", number),
        ),
    )


def erdma(address: str, number: int, *, machine: str) -> Function:
    """An elastic RDMA interface of Alibaba: its network interface is that of a virtio adapter with the same MAC."""
    return Function(
        address,
        PciId(0x1DED, 0x107F, 0x00FF00, 0x1DED, 0x107F),
        driver="erdma",
        bars=(Bar(16 << 10),),
        roles=(_rdma_of_another_interface(f"erdma_{number}", number, machine),),
    )


def pvrdma(address: str, number: int, *, machine: str) -> Function:
    """VMware's paravirtual RDMA: its network interface is that of the vmxnet3 at function 0 of its slot."""
    return Function(
        address,
        PciId(0x15AD, 0x0820, 0x028000, 0x15AD, 0x0820, 0x01),
        driver="vmw_pvrdma",
        bars=(Bar(16 << 10),),
        roles=(_rdma_of_another_interface(f"rocep{number}s0f1", number, machine),),
    )


def _rdma_of_another_interface(name: str, number: int, machine: str) -> RdmaDevice:
    return RdmaDevice(name, guid(machine, number), number, ethernet=True, speed=100_000, hca_type="", board="")


def wifi(address: str, name: str, index: int, *, machine: str) -> Function:
    """An AX210."""
    return Function(
        address,
        PciId(0x8086, 0x2725, 0x028000, 0x8086, 0x0024, 0x1A),
        driver="iwlwifi",
        link=LinkState(2, 1),
        bars=(Bar(16 << 10, prefetchable=True),),
        roles=(Interface(name, mac(machine, 100 + index, "02:00:01"), index, speed=-1, wireless=True),),
    )


def roce_lag(slot: str, number: int, names: tuple[str, str], index: int, *, machine: str) -> tuple[Function, Function]:
    """The two ports of a ConnectX-6 Dx in a bond: one RDMA device, at the first function, has both."""
    first, second = (
        connectx6dx(f"{slot}.{which}", number, name, index + which, machine=machine) for which, name in enumerate(names)
    )
    bonded = tuple(
        replace(role, name=f"mlx5_bond_{number}") if isinstance(role, RdmaDevice) else role for role in first.roles
    )
    interfaces = tuple(
        replace(role, mac=mac(machine, index + 1)) for role in second.roles if isinstance(role, Interface)
    )
    return replace(first, roles=bonded), replace(second, roles=interfaces)

"""AWS: Neuron devices, and network adapters of EC2 (ENA, EFA) as PCI functions."""

from __future__ import annotations

from dataclasses import dataclass

from dra_simulate.machine import Bar, Function, LinkState, PciId
from dra_simulate.parts.bridges import guid, mac
from dra_simulate.roles.network import Interface, RdmaDevice
from dra_simulate.roles.nvme import NvmeController
from dra_simulate.roles.vendor import VirtualDevice

_AMAZON = 0x1D0F
_PERIPHERAL, _ETHERNET = 0x088000, 0x020000
_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class NeuronModel:
    """A chip: its PCI device id, its name in sysfs, and its physical NeuronCores."""

    device: int
    name: str
    cores: int
    memory_gib: int


# aws-neuron-driver fca19f7: neuron_device.h, v2 and v3 address_map.h, neuron_dhal_v2.c and neuron_dhal_v3.c.
TRAINIUM = NeuronModel(0x7164, "Trainium1", 2, 32)
TRAINIUM2 = NeuronModel(0x7364, "Trainium2", 8, 96)


def neuron(
    address: str,
    number: int,
    model: NeuronModel,
    connected: tuple[int, ...] = (),
    link: LinkState | None = None,
) -> Function:
    """A Neuron device; `number`: of its device node; `connected`: the numbers of its NeuronLink neighbors.

    The class is that of a system peripheral, as lspci prints it on EC2.
    """
    attributes: dict[str, str | int] = {
        "core_count": model.cores,
        "connected_devices": ", ".join(map(str, connected)),
        "info/architecture/device_name": model.name,
        "stats/hardware/mem_ecc_uncorrected": 0,
        "stats/hardware/sram_ecc_uncorrected": 0,
    }
    device = VirtualDevice(f"neuron{number}", "neuron_device", "neuron", number, linked=True, attributes=attributes)
    return Function(
        address,
        PciId(_AMAZON, model.device, _PERIPHERAL, _AMAZON, model.device),
        driver="neuron-driver",
        link=link or LinkState(5, 16),
        bars=(Bar(64 * _MIB, prefetchable=True), Bar(2 * _GIB, prefetchable=True)),
        roles=(device,),
    )


def ena(address: str, name: str, index: int, *, machine: str) -> Function:
    """An Elastic Network Adapter."""
    return Function(
        address,
        PciId(_AMAZON, 0xEC20, _ETHERNET, _AMAZON, 0xEC20),
        driver="ena",
        bars=(Bar(16 << 10),),
        roles=(Interface(name, mac(machine, index, "02:a1:5c"), index, speed=-1, mtu=9001),),
    )


def efa(address: str, number: int, *, machine: str, device: int = 0xEFA1) -> Function:
    """An Elastic Fabric Adapter without an interface; its RDMA device is named by bus and slot, as udev does."""
    bus, slot = address.split(":")[1], address.split(":")[2].partition(".")[0]
    name = f"rdmap{int(bus, 16)}s{int(slot, 16)}"
    return Function(
        address,
        PciId(_AMAZON, device, _ETHERNET, _AMAZON, device),
        driver="efa",
        link=LinkState(3, 16),
        bars=(Bar(16 << 10, prefetchable=True), Bar(4 * _MIB, prefetchable=True)),
        roles=(
            RdmaDevice(name, guid(machine, number), number, own_protocol=True, speed=100_000, hca_type="", board=""),
        ),
    )


def instance_store(address: str, number: int) -> Function:
    """A local drive of an instance."""
    return _drive(address, 0xCD01, number, "Amazon EC2 NVMe Instance Storage", f"AWS{number:017d}")


def elastic_block_store(address: str, number: int) -> Function:
    """A volume of EBS."""
    return _drive(address, 0x8061, number, "Amazon Elastic Block Store", f"vol{number:017d}")


def _drive(address: str, device: int, number: int, model: str, serial: str) -> Function:
    return Function(
        address,
        PciId(_AMAZON, device, 0x010802, _AMAZON, device),
        driver="nvme",
        bars=(Bar(16 << 10),),
        roles=(NvmeController(number, model, serial),),
    )

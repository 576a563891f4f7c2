"""Each row of the table of other managers: what it covers, and how its devices are recognized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_agent.conflicts import DeviceConflicts, find_conflicts, foreign_devices, observe
from dra_agent.conflicts.managers import (
    DRIVERS,
    ENFLAME,
    FURIOSA,
    HAILO,
    HPE_CRAY,
    HYGON,
    IBM,
    ILUVATAR,
    KUNLUN,
    METAX,
    REBELLIONS,
    RESOURCE_NAMES,
    covers,
    resource_name,
)
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device, Family
from dra_agent.inventory.vendors import _VENDORS, GPU_VENDORS

NODE = "node-1"


def device(family: Family, vendor: str, number: int, *, identity: Any = None, **attributes: Any) -> Device:
    address = f"0000:{number:02x}:00.0"
    name = f"{family}-{vendor}-{number}"
    known = {key: Attribute.of(value) for key, value in attributes.items()}
    return Device(name, family, vendor, address, attributes=known, identity=identity or {})


GPU = device("gpu", "nvidia", 0x1B, identity={"uuid": "GPU-1B"})
MIG = device("gpu", "nvidia", 0x43, identity={"uuid": "MIG-9"}, parentUUID="GPU-43")
AMD = device("gpu", "amd", 0x05)
INTEL = device("gpu", "intel", 0x03)
ADAPTER = device("nic", "mellanox", 0x18, identity={"ifname": "eth7", "rdma": "mlx5_3"}, rdma=True, isSriovVf=False)
PLAIN = device("nic", "broadcom", 0x19, rdma=False, isSriovVf=False)
VF = device("nic", "intel", 0x3B, rdma=False, isSriovVf=True)
EFA = device("nic", "amazon", 0xC9, rdma=True, isSriovVf=False)
ERDMA = device("nic", "alibaba", 0xCA, rdma=True, isSriovVf=False)
IONIC = device("nic", "pensando", 0xCB, rdma=False, isSriovVf=False)
CXI = device("nic", HPE_CRAY, 0xCC, rdma=False, isSriovVf=False)
NICS = (ADAPTER, PLAIN, VF, EFA, ERDMA, IONIC, CXI)
ALVEO = device("fpga", "xilinx", 0xAF)
STRATIX = device("fpga", "intel", 0xAE)
GAUDI = device("accelerator", "habana", 0x71)
QAT = device("accelerator", "intel", 0x72, identity={"driver": "vfio-pci"})
NPU = device("accelerator", "intel", 0x73, identity={"driver": "intel_vpu"})
XDNA = device("accelerator", "amd", 0x74)
ASCEND = device("accelerator", "huawei", 0x75)
TPU = device("accelerator", "google", 0x76)
TRAINIUM = device("accelerator", "amazon", 0x77)
MLU = device("accelerator", "cambricon", 0x78)
WORMHOLE = device("accelerator", "tenstorrent", 0x79)
QAIC = device("accelerator", "qualcomm", 0x7A)
DCU = device("gpu", HYGON, 0x7B)
SPYRE = device("accelerator", IBM, 0x7C)
RNGD = device("accelerator", FURIOSA, 0x7D)
ATOM = device("accelerator", REBELLIONS, 0x7E)
HAILO_8 = device("accelerator", HAILO, 0x7F)
METAX_GPU = device("gpu", METAX, 0x80)
MTT = device("gpu", "moorethreads", 0x81)
ILUVATAR_GPU = device("accelerator", ILUVATAR, 0x82)
GCU = device("accelerator", ENFLAME, 0x83)
XPU = device("accelerator", KUNLUN, 0x84)
PPU = device("gpu", "alibaba", 0x85)
UNNAMED = device("accelerator", "0x1234", 0x86)
GPUS = (GPU, MIG, AMD, INTEL, DCU, METAX_GPU, MTT, PPU)
ACCELERATORS = (
    *(GAUDI, QAT, NPU, XDNA, ASCEND, TPU, TRAINIUM, MLU, WORMHOLE, QAIC, SPYRE, RNGD, ATOM, HAILO_8),
    *(ILUVATAR_GPU, GCU, XPU, UNNAMED),
)
ALL = (*GPUS, *NICS, ALVEO, STRATIX, *ACCELERATORS)


def found(driver: str, name: str, /, **attributes: str | bool | int) -> DeviceConflicts:
    kinds = {str: "string", bool: "bool", int: "int"}
    published = {key: {kinds[type(value)]: value} for key, value in attributes.items()}
    spec = {"driver": driver, "nodeName": NODE, "devices": [{"name": name, "attributes": published}]}
    return find_conflicts(ALL, observe(node={}, foreign=foreign_devices([{"spec": spec}], driver="ours", node=NODE)))


STANDARD = "resource.kubernetes.io/pciBusID"
MATCHING: tuple[tuple[str, str, dict[str, Any], Device], ...] = (
    ("gpu.nvidia.com", "gpu-0", {STANDARD: "0000:1b:00.0"}, GPU),
    ("gpu.nvidia.com", "gpu-0", {"pcieBusID": "00000000:1B:00.0"}, GPU),
    ("gpu.nvidia.com", "gpu-0", {"uuid": "gpu-1b"}, GPU),
    ("gpu.nvidia.com", "gpu-0", {"gpu.nvidia.com/uuid": "GPU-1B"}, GPU),
    ("gpu.nvidia.com", "gpu-1", {"uuid": "GPU-43"}, MIG),
    ("gpu.nvidia.com", "gpu-1-mig-9", {"uuid": "MIG-1", "parentUUID": "GPU-43"}, MIG),
    ("hami-core-gpu.project-hami.io", "hami-gpu-0", {"pcieBusID": "0000:1b:00.0", "minor": 0}, GPU),
    ("hami-core-gpu.project-hami.io", "hami-gpu-0", {"uuid": "GPU-1B"}, GPU),
    ("dra.hygon.com", "hcu-0000-7b-00-0", {"uuid": "T1"}, DCU),
    ("gpu.amd.com", "gpu-1-129", {"pciAddr": "0000:05:00.0"}, AMD),
    ("gpu.intel.com", "0000-03-00-0-0x56c0", {"model": "0x56c0"}, INTEL),
    ("gpu.intel.com", "x", {"pciAddress": "0000:03:00.0"}, INTEL),
    ("gaudi.intel.com", "0000-71-00-0-0x1020", {"model": "Gaudi2", "healthy": True}, GAUDI),
    ("qat.intel.com", "qatvf-0000-72-00-0", {"services": "sym"}, QAT),
    ("dra.net", "eth0", {"dra.net/pciAddress": "0000:18:00.0"}, ADAPTER),
    ("dra.net", "pci-0000-18-00-0", {"dra.net/rdma": True}, ADAPTER),
    ("dra.net", "eth7", {"dra.net/virtual": False}, ADAPTER),
    ("dra.net", "x", {"dra.net/ifName": "eth7"}, ADAPTER),
    ("dra.net", "x", {"dra.net/rdmaDevice": "mlx5_3"}, ADAPTER),
    (
        "dra.net",
        "gpu6rdma0",
        {
            "dra.net/pciAddressDomain": "0000",
            "dra.net/pciAddressBus": "c9",
            "dra.net/pciAddressDevice": "00",
            "dra.net/pciAddressFunction": "0",
        },
        EFA,
    ),
    ("dra.networking.k8s.aws", "efa-0", {STANDARD: "0000:c9:00.0"}, EFA),
    ("sriovnetwork.k8snetworkplumbingwg.io", "0000-3b-00-0", {"vfID": 0}, VF),
    ("sriovnetwork.k8snetworkplumbingwg.io", "x", {"pciAddress": "0000:3b:00.0", "PFName": "eth7"}, VF),
    ("npu.rebellions.ai", "rbln0", {STANDARD: "0000:7e:00.0", "sid": "1"}, ATOM),
    ("tenstorrent.com", "tt-0", {"pciAddress": "0000:79:00.0"}, WORMHOLE),
    ("spyre.ibm.com", "x", {"pciAddress": "0000:7c:00.0", "pfPciAddress": "0000:1b:00.0"}, SPYRE),
)
"""Devices as the drivers publish them, and the device of this host."""

UNMATCHED: tuple[tuple[str, str, dict[str, Any], tuple[Device, ...]], ...] = (
    ("gpu.nvidia.com", "gpu-0", {"pciAddress": "0000:1b:00.0"}, (GPU, MIG)),
    ("gpu.nvidia.com", "gpu-0000-1b-00-0", {}, (GPU, MIG)),
    ("hami-core-gpu.project-hami.io", "hami-gpu-0", {"minor": 0}, (GPU, MIG)),
    ("ascend.project-hami.io", "npu-0-0", {"index": 0, "uuid": "node-1-0"}, (ASCEND,)),
    ("dra.hygon.com", "hcu-0", {"uuid": "T1"}, (DCU,)),
    ("gpu.amd.com", "gpu-1-129", {"pciAddress": "0000:05:00.0"}, (AMD,)),
    ("gpu.intel.com", "card0", {}, (INTEL,)),
    ("gaudi.intel.com", "accel0", {"serial": "1"}, (GAUDI,)),
    ("qat.intel.com", "qatvf-4", {}, (QAT,)),
    ("neuron.aws.com", "neuron-device-0", {"resource.aws.com/devicegroup1_id": "0000:c9:00.0"}, (TRAINIUM,)),
    ("dra.net", "eth99", {"dra.net/ifName": "eth99"}, NICS),
    ("dra.networking.k8s.aws", "efa-0", {"resource.aws.com/devicegroup1_id": "0000:18:00.0"}, (EFA,)),
    ("sriovnetwork.k8snetworkplumbingwg.io", "x", {"PFName": "eth7"}, (VF,)),
    ("tpu.google.com", "accel0", {"index": 0, "uuid": "0a1b", "tpuGen": "v5e"}, (TPU,)),
    ("npu.rebellions.ai", "rbln0", {"sid": "1", "resource.kubernetes.io/pcieRoot": "pci0000:7e"}, (ATOM,)),
    ("tenstorrent.com", "tt-0", {"uniqueID": "1"}, (WORMHOLE,)),
    ("spyre.ibm.com", "x", {"pfPciAddress": "0000:1b:00.0"}, (SPYRE,)),
    ("npu.furiosa.ai", "npu0", {"uuid": "A1B2"}, (RNGD,)),
)
"""Devices that name no device of this host, and all devices that the driver covers."""

UNRELATED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("compute-domain.nvidia.com", "channel-0", {"id": 0}),
    ("dra.net", "dummy0", {"dra.net/ifName": "dummy0", "dra.net/virtual": True}),
    ("ovsdpdk.k8snetworkplumbingwg.io", "port-0", {}),
    ("dra.cpu", "cpudev000", {"dra.cpu/numaNode": 0}),
    ("dra.memory", "memory-0", {}),
    ("dra.nvme", "nvme0", {STANDARD: "0000:fe:00.0"}),
    ("dra.rockchip.com", "npu-0", {}),
    ("composite.dra.example.io", "pair-0", {"members": "gpu-0,nic-0"}),
    ("gpu.example.com", "gpu-0", {"uuid": "gpu-18db0e85"}),
)
"""Devices of drivers that have none of this agent's, or are not PCI devices."""


def test_each_driver_of_the_table_has_a_matching_and_another_example() -> None:
    covering = {row.name for row in DRIVERS if row.covers}
    by_index = {"ascend.project-hami.io", "neuron.aws.com", "npu.furiosa.ai", "tpu.google.com"}
    assert {driver for driver, *_ in MATCHING} == covering - by_index
    assert {driver for driver, *_ in UNMATCHED} == covering
    assert {row.name for row in DRIVERS} - covering <= {driver for driver, *_ in UNRELATED}


@pytest.mark.parametrize(("driver", "name", "attributes", "conflicting"), MATCHING)
def test_a_device_of_another_driver_is_identified(
    driver: str, name: str, attributes: dict[str, Any], conflicting: Device
) -> None:
    assert found(driver, name, **attributes) == DeviceConflicts({conflicting.name: f"driver {driver}"})


@pytest.mark.parametrize(("driver", "name", "attributes", "withheld"), UNMATCHED)
def test_a_known_driver_with_a_device_that_cannot_be_matched_withholds_its_family(
    driver: str, name: str, attributes: dict[str, Any], withheld: tuple[Device, ...]
) -> None:
    conflicts = found(driver, name, **attributes)
    assert conflicts.managers == dict.fromkeys((device.name for device in withheld), f"driver {driver}")
    assert set(conflicts.unmatched) == set(conflicts.managers) and not conflicts.unjudged


@pytest.mark.parametrize(("driver", "name", "attributes"), UNRELATED)
def test_drivers_of_other_devices_withhold_nothing(driver: str, name: str, attributes: dict[str, Any]) -> None:
    assert found(driver, name, **attributes) == DeviceConflicts()


RESOURCES: tuple[tuple[str, tuple[Device, ...]], ...] = (
    ("gpu.intel.com/i915_monitoring", ()),
    ("gpu.intel.com/monitoring", ()),
    ("device.gpustack.ai/nvidia.visibility", ()),
    ("networking.gke.io.networks/rdma-0.IP", ()),
    ("vpc.amazonaws.com/pod-eni", ()),
    ("aliyun/member-eni", ()),
    ("sgx.intel.com/epc", ()),
    ("devices.kubevirt.io/kvm", ()),
    ("nvidia.com/gpumem", ()),
    ("amd.com/gpucores", ()),
    ("hygon.com/dcumem", ()),
    ("squat.ai/serial", ()),
    ("smarter-devices/apex_0", ()),
    ("nvidia.com/gpu", (GPU, MIG)),
    ("nvidia.com/gpu.shared", (GPU, MIG)),
    ("nvidia.com/mig-1g.10gb", (GPU, MIG)),
    ("nvidia.com/GA102GL_A10", (GPU, MIG)),
    ("nvidia.com/GA102_vfio", (GPU, MIG)),
    ("nvidia.com/hostdev", (ADAPTER,)),
    ("nvidia.com/mlnxnics", (ADAPTER,)),
    ("nvidia.com/rdma_shared_device_a", (ADAPTER,)),
    ("nvidia.com/sriov-rdma-vf", (VF,)),
    ("volcano.sh/vgpu-number", (GPU, MIG)),
    ("volcano.sh/vgpu-memory", (GPU, MIG)),
    ("aliyun.com/gpu-mem", (GPU, MIG)),
    ("aliyun.com/gpu-core.percentage", (GPU, MIG)),
    ("tencent.com/vcuda-core", (GPU, MIG)),
    ("k8s.amazonaws.com/vgpu", (GPU, MIG)),
    ("koordinator.sh/gpu-memory-ratio", GPUS),
    ("koordinator.sh/rdma", (ADAPTER, EFA, ERDMA)),
    ("koordinator.sh/batch-cpu", ()),
    ("device.gpustack.ai/rdma.shared", (ADAPTER, EFA, ERDMA)),
    ("device.gpustack.ai/nvidia", (GPU, MIG)),
    ("device.gpustack.ai/amd.sliced", (AMD,)),
    ("device.gpustack.ai/ascend", (*GPUS, *ACCELERATORS)),
    ("microsoft.com/directx", GPUS),
    ("amd.com/gpu", (AMD,)),
    ("amd.com/cpx_nps4", (AMD,)),
    ("amd.com/nic", (IONIC,)),
    ("amd.com/vnic", (IONIC,)),
    ("amd.com/npu", (XDNA,)),
    ("amd.com/xilinx_u250_gen3x16_xdma_4_1_202210_1-0", (ALVEO,)),
    ("amd.com/ama_u30", (ALVEO,)),
    ("xilinx.com/fpga-xilinx_u200", (ALVEO,)),
    ("gpu.intel.com/i915", (INTEL,)),
    ("gpu.intel.com/xe", (INTEL,)),
    ("gpu.intel.com/millicores", (INTEL,)),
    ("npu.intel.com/accel", (NPU,)),
    ("qat.intel.com/sym-asym", (QAT,)),
    ("dlb.intel.com/vf", (QAT,)),
    ("fpga.intel.com/af-d8424dc4", (STRATIX,)),
    ("habana.ai/gaudi", (GAUDI,)),
    ("huawei.com/Ascend910", (ASCEND,)),
    ("huawei.com/Ascend310P-4c", (ASCEND,)),
    ("huawei.com/npu", (ASCEND,)),
    ("google.com/tpu", (TPU,)),
    ("cloud-tpus.google.com/v3", (TPU,)),
    ("aws.amazon.com/neuron", (TRAINIUM,)),
    ("aws.amazon.com/neuroncore", (TRAINIUM,)),
    ("cambricon.com/mlu370", (MLU,)),
    ("tenstorrent.com/n300", (WORMHOLE,)),
    ("qualcomm.com/qaic", (QAIC,)),
    ("aliyun.com/ppu", (PPU,)),
    ("mthreads.com/vgpu", (MTT,)),
    ("hygon.com/dcunum", (DCU,)),
    ("metax-tech.com/sgpu", (METAX_GPU,)),
    ("iluvatar.ai/BI-V150-vgpu", (ILUVATAR_GPU,)),
    ("iluvatar.com/gpu", (ILUVATAR_GPU,)),
    ("enflame.com/shared-gcu", (GCU,)),
    ("kunlunxin.com/vxpu", (XPU,)),
    ("baidu.com/xpu", (XPU,)),
    ("rebellions.ai/ATOM_CA25_PT", (ATOM,)),
    ("furiosa.ai/rngd", (RNGD,)),
    ("beta.furiosa.ai/npu", (RNGD,)),
    ("ibm.com/spyre_vf", (SPYRE,)),
    ("hailo.ai/npu", (HAILO_8,)),
    ("birentech.com/1-2-gpu", (UNNAMED,)),
    ("vastaitech.com/va", (UNNAMED,)),
    ("vpc.amazonaws.com/efa", (EFA,)),
    ("aliyun/erdma", (ERDMA,)),
    ("networking.gke.io.networks/rdma-0", NICS),
    ("beta.hpe.com/cxi", (CXI,)),
    ("rdma/hca_shared_devices_a", (ADAPTER, EFA, ERDMA)),
    ("rdma/ib", (ADAPTER, EFA, ERDMA)),
    ("intel.com/intel_sriov_netdevice", (VF,)),
    ("mellanox.com/cx5_a", (VF,)),
    ("openshift.io/mlx_vf", (VF,)),
    ("example.com/sriov_net_a", (VF,)),
    ("example.com/foo", ()),
    ("hugepages-2Mi", ()),
    ("dra-agent.internal/gpu", ()),
)


@pytest.mark.parametrize(("resource", "covered"), RESOURCES)
def test_a_device_plugin_covers_the_devices_of_its_kind(resource: str, covered: tuple[Device, ...]) -> None:
    node = {"status": {"capacity": {"cpu": "8", resource: "2"}}}
    conflicts = find_conflicts(ALL, observe(node=node, foreign=()))
    assert conflicts.managers == {device.name: f"device plugin {resource}" for device in covered}


def test_each_row_of_resource_names_has_an_example() -> None:
    used = [resource_name(resource) for resource, _ in RESOURCES]
    assert [row.pattern.pattern for row in RESOURCE_NAMES if row not in used] == []


def test_the_page_lists_every_driver_and_domain_of_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/devices/conflicts.md").read_text()
    assert [row.name for row in DRIVERS if f"`{row.name}`" not in page] == []
    domains = {resource.partition("/")[0] for resource, _ in RESOURCES if resource_name(resource) is not None}
    examples = {"example.com"}
    assert [domain for domain in sorted(domains - examples) if domain not in page] == []


FAMILIES_OF: dict[str, tuple[Family, ...]] = {
    "alibaba": ("gpu", "accelerator", "nic"),
    "altera": ("fpga",),
    "amazon": ("accelerator", "nic"),
    "amd": ("gpu", "accelerator", "nic"),
    "broadcom": ("nic",),
    "cambricon": ("gpu", "accelerator"),
    "chelsio": ("nic",),
    "cisco": ("nic",),
    "google": ("accelerator", "nic"),
    "habana": ("accelerator",),
    "huawei": ("accelerator", "nic"),
    "intel": ("gpu", "accelerator", "fpga", "nic"),
    "mellanox": ("nic",),
    "microsoft": ("nic",),
    "moorethreads": ("gpu",),
    "nec": ("accelerator",),
    "nvidia": ("gpu",),
    "pensando": ("nic",),
    "qlogic": ("nic",),
    "qualcomm": ("accelerator",),
    "realtek": ("nic",),
    "solarflare": ("nic",),
    "tenstorrent": ("accelerator",),
    "virtio": ("nic",),
    "xilinx": ("fpga", "accelerator", "nic"),
}
"""Families in which devices of a vendor with a short name are published."""

NONE_KNOWN = {("nec", "accelerator")}
"""Vendor and family of which no plugin is known."""


def test_each_vendor_and_family_has_the_names_of_its_plugins() -> None:
    assert set(FAMILIES_OF) == {*_VENDORS.values(), *(vendor.name for vendor in GPU_VENDORS.values())}
    for vendor, families in FAMILIES_OF.items():
        for family in families:
            if family == "nic":
                # Plugins of adapters serve all vendors: RDMA devices and virtual functions.
                for attributes in ({"rdma": True}, {"isSriovVf": True}):
                    adapter = device("nic", vendor, 1, **attributes)
                    assert any(covers(row.covers, adapter) for row in RESOURCE_NAMES)
                continue
            named = any(
                vendor in coverage.vendors and family in coverage.families
                for row in RESOURCE_NAMES
                for coverage in row.covers
            )
            assert named is ((vendor, family) not in NONE_KNOWN), (vendor, family)

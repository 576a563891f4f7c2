"""The other managers of devices that are known: DRA drivers and device plugins, what each covers, and how it names it.

This is the only table of them. A driver of the table whose devices cannot be matched withholds all that it covers, so
its row must name the attributes exactly as the driver publishes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dra_agent.inventory.model import Device, Family

STANDARD_ADDRESS = "resource.kubernetes.io/pciBusID"
"""The attribute of Kubernetes for a device's PCI address, which any driver may publish."""

HYGON = "0x1d94"
IBM = "0x1014"
KUNLUN = "0x1d22"
ENFLAME = "0x1e36"
ILUVATAR = "0x1e3e"
HAILO = "0x1e60"
FURIOSA = "0x1ed2"
REBELLIONS = "0x1eff"
HPE_CRAY = "0x17db"
METAX = "0x9999"
"""PCI ids of vendors without a short name in inventory.vendors, which are the value of their `vendor`."""
_NAMED_BY_ID = frozenset({HYGON, IBM, KUNLUN, ENFLAME, ILUVATAR, HAILO, FURIOSA, REBELLIONS, HPE_CRAY, METAX})


Condition = Callable[[Device], bool]
"""What limits a manager to some devices of a family."""


def _is_true(device: Device, name: str) -> bool:
    attribute = device.attributes.get(name)
    return attribute is not None and attribute.value is True


def _has_rdma(device: Device) -> bool:
    return _is_true(device, "rdma")


def _is_virtual_function(device: Device) -> bool:
    return _is_true(device, "isSriovVf")


def _is_npu(device: Device) -> bool:
    return device.identity.get("driver") == "intel_vpu"


def _is_no_npu(device: Device) -> bool:
    return not _is_npu(device)


def _has_unlisted_vendor(device: Device) -> bool:
    return device.vendor.startswith("0x") and device.vendor not in _NAMED_BY_ID


@dataclass(frozen=True, slots=True)
class Coverage:
    """Devices that a manager can allocate."""

    families: tuple[Family, ...]
    vendors: tuple[str, ...] = ()
    """Values of `Device.vendor`; empty: all."""
    only: Condition | None = None

    def covers(self, device: Device) -> bool:
        """Return True if the manager can allocate the device."""
        return (
            device.family in self.families
            and (not self.vendors or device.vendor in self.vendors)
            and (self.only is None or self.only(device))
        )


def _gpus(*vendors: str) -> Coverage:
    return Coverage(("gpu",), vendors)


def _accelerators(*vendors: str, only: Condition | None = None) -> Coverage:
    return Coverage(("accelerator",), vendors, only)


def _compute(*vendors: str) -> Coverage:
    """Devices whose PCI class may be that of a display or of an accelerator."""
    return Coverage(("gpu", "accelerator"), vendors)


def _nics(*vendors: str, only: Condition | None = None) -> Coverage:
    return Coverage(("nic",), vendors, only)


def _fpgas(*vendors: str) -> Coverage:
    return Coverage(("fpga",), vendors)


@dataclass(frozen=True, slots=True)
class KnownDriver:
    """A DRA driver, and how its slices identify a device besides STANDARD_ADDRESS.

    Attributes of the driver's own domain are named without it. A driver without any names its devices by an index.
    """

    name: str
    covers: tuple[Coverage, ...] = ()
    """Empty: none of its devices is one that this agent publishes."""
    addresses: tuple[str, ...] = ()
    """Attributes with the PCI address."""
    address_parts: tuple[str, str, str, str] | None = None
    """Attributes with domain, bus, device and function."""
    uuids: tuple[str, ...] = ()
    """Attributes with the UUID of the device, or of the GPU that it is a partition of."""
    interfaces: tuple[str, ...] = ()
    """Attributes with the name of the network interface."""
    rdma_devices: tuple[str, ...] = ()
    """Attributes with the name of the RDMA device."""
    names: tuple[str, ...] = ()
    """Forms of the device's name: "pci-{address}" is pci-0000-3b-00-0, "{interface}" is eth1."""
    elsewhere: str = ""
    """A bool attribute that is true for devices which are not PCI devices."""


DRIVERS = (
    KnownDriver(
        "gpu.nvidia.com",
        (_gpus("nvidia"),),
        addresses=("pcieBusID", "pciBusID"),
        uuids=("uuid", "parentUUID"),
    ),
    KnownDriver("compute-domain.nvidia.com"),  # channels and daemons of IMEX
    KnownDriver("hami-core-gpu.project-hami.io", (_gpus("nvidia"),), addresses=("pcieBusID",), uuids=("uuid",)),
    KnownDriver("ascend.project-hami.io", (_accelerators("huawei"),)),
    KnownDriver("dra.hygon.com", (_compute(HYGON),), uuids=("uuid",), names=("hcu-{address}",)),
    KnownDriver("gpu.amd.com", (_gpus("amd"),), addresses=("pciAddr",)),
    KnownDriver(
        "gpu.intel.com", (_gpus("intel"),), addresses=("pciAddress",), names=("{address}-0x[0-9a-f]+", "{address}")
    ),
    KnownDriver("gaudi.intel.com", (_accelerators("habana"),), names=("{address}-0x[0-9a-f]+", "{address}")),
    KnownDriver("qat.intel.com", (_accelerators("intel", only=_is_no_npu),), names=("qatvf-{address}",)),
    KnownDriver("neuron.aws.com", (_accelerators("amazon"),)),
    KnownDriver(
        "dra.net",
        (_nics(),),
        addresses=("pciAddress",),
        address_parts=("pciAddressDomain", "pciAddressBus", "pciAddressDevice", "pciAddressFunction"),
        interfaces=("ifName",),
        rdma_devices=("rdmaDevice",),
        names=("pci-{address}", "{interface}"),
        elsewhere="virtual",
    ),
    KnownDriver("dra.networking.k8s.aws", (_nics("amazon"),)),
    KnownDriver(
        "sriovnetwork.k8snetworkplumbingwg.io",
        (_nics(only=_is_virtual_function),),
        addresses=("pciAddress",),
        names=("{address}",),
    ),
    KnownDriver("ovsdpdk.k8snetworkplumbingwg.io"),
    KnownDriver("dra.cpu"),
    KnownDriver("dra.memory"),
    KnownDriver("dra.nvme"),
    KnownDriver("tpu.google.com", (_accelerators("google"),)),
    KnownDriver("npu.rebellions.ai", (_compute(REBELLIONS),), uuids=("uuid",)),
    KnownDriver("tenstorrent.com", (_accelerators("tenstorrent"),), addresses=("pciAddress",)),
    KnownDriver("spyre.ibm.com", (_accelerators(IBM),), addresses=("pciAddress",)),
    KnownDriver("npu.furiosa.ai", (_accelerators(FURIOSA),)),
    KnownDriver("dra.rockchip.com"),  # platform devices
    KnownDriver("composite.dra.example.io"),  # combines devices of other drivers, which publish them
    KnownDriver("gpu.example.com"),  # the example of Kubernetes, without hardware
)
"""By name of the driver. One that is not here is judged by STANDARD_ADDRESS and common attributes only."""

_BY_NAME = {driver.name: driver for driver in DRIVERS}


def known_driver(name: str) -> KnownDriver | None:
    """Return the row of a driver; None if it is not known."""
    return _BY_NAME.get(name)


@dataclass(frozen=True, slots=True)
class ResourceName:
    """A pattern of names of extended resources. The first row that matches a name counts."""

    pattern: re.Pattern[str]
    covers: tuple[Coverage, ...]
    """Empty: the resource allocates no device of this agent."""
    is_opaque: bool = field(default=False, kw_only=True)
    """The operator chooses the name and the devices, so that the name does not show which."""


def _resource(pattern: str, *covers: Coverage, is_opaque: bool = False) -> ResourceName:
    return ResourceName(re.compile(pattern), covers, is_opaque=is_opaque)


_ALL_COMPUTE = Coverage(("gpu", "accelerator"))
_UNNAMED_COMPUTE = Coverage(("gpu", "accelerator"), only=_has_unlisted_vendor)

RESOURCE_NAMES = (
    # Names that allocate nothing: for monitoring, of addresses, and amounts that a scheduler counts next to the device.
    _resource(r"gpu\.intel\.com/([^/]+_)?monitoring"),
    _resource(r"device\.gpustack\.ai/[^/]+\.visibility"),
    _resource(r"networking\.gke\.io\.networks/[^/]+\.IP"),
    _resource(r"vpc\.amazonaws\.com/(pod-eni|PrivateIPv4Address|CIDRBlock|SecurityGroup)"),
    _resource(r"aliyun/(eni|member-eni)"),
    _resource(r"sgx\.intel\.com/.+"),
    _resource(r"devices\.kubevirt\.io/.+"),
    _resource(r"(nvidia|amd)\.com/(gpumem|gpumem-percentage|gpucores|priority)"),
    _resource(r"hygon\.com/(dcumem|dcucores)"),
    # Names that operators choose freely.
    _resource(r"(squat\.ai|smarter-devices|akri\.sh)/.+", is_opaque=True),
    # GPUs of NVIDIA, and network adapters with NVIDIA's domain.
    _resource(r"(nvidia|mellanox)\.com/[^/]*(sriov|_vfs?(?![a-z]))[^/]*", _nics(only=_is_virtual_function)),
    _resource(r"(nvidia|mellanox)\.com/[^/]*(rdma|roce|hostdev|hca|mlnx)[^/]*", _nics("mellanox")),
    # gpu, gpu.shared, mig-1g.10gb, and names of products for virtual machines (GA102GL_A10).
    _resource(r"nvidia\.com/.+", _gpus("nvidia")),
    _resource(r"volcano\.sh/v?gpu-[^/]+", _gpus("nvidia")),
    _resource(r"aliyun\.com/gpu-[^/]+", _gpus("nvidia")),
    _resource(r"tencent\.com/vcuda-[^/]+", _gpus("nvidia")),
    _resource(r"(k8s\.amazonaws|4paradigm)\.com/vgpu[^/]*", _gpus("nvidia")),
    # Koordinator and the GPUStack operator serve several vendors.
    _resource(r"koordinator\.sh/rdma", _nics(only=_has_rdma)),
    _resource(r"koordinator\.sh/[^/]*gpu[^/]*", _gpus()),
    _resource(r"device\.gpustack\.ai/rdma(\.[^/]+)?", _nics(only=_has_rdma)),
    _resource(r"device\.gpustack\.ai/nvidia(\.[^/]+)?", _gpus("nvidia")),
    _resource(r"device\.gpustack\.ai/amd(\.[^/]+)?", _gpus("amd")),
    _resource(r"device\.gpustack\.ai/[^/]+", _ALL_COMPUTE),
    _resource(r"microsoft\.com/directx", _gpus()),
    # AMD: GPUs and their partitions (cpx_nps4), adapters, NPUs, and the cards of Xilinx.
    _resource(r"amd\.com/v?nic", _nics("pensando", "amd")),
    _resource(r"amd\.com/npu", _accelerators("amd")),
    _resource(r"(amd\.com/(xilinx|ama)_|xilinx\.com/).*", _fpgas("xilinx"), _accelerators("xilinx")),
    _resource(r"amd\.com/.+", _gpus("amd")),
    # Intel.
    _resource(r"gpu\.intel\.com/.+", _gpus("intel")),
    _resource(r"npu\.intel\.com/.+", _accelerators("intel", only=_is_npu)),
    _resource(r"(qat|dsa|iaa|dlb)\.intel\.com/.+", _accelerators("intel", only=_is_no_npu)),
    _resource(r"fpga\.intel\.com/.+", _fpgas("intel", "altera")),
    # Accelerators, and GPUs of other vendors.
    _resource(r"habana\.ai/.+", _accelerators("habana")),
    _resource(r"huawei\.com/.+", _accelerators("huawei")),
    _resource(r"(cloud-tpus\.)?google\.com/.+", _accelerators("google")),
    _resource(r"aws\.amazon\.com/neuron.*", _accelerators("amazon")),
    _resource(r"cambricon\.com/.+", _compute("cambricon")),
    _resource(r"tenstorrent\.com/.+", _accelerators("tenstorrent")),
    _resource(r"qualcomm\.com/.+", _accelerators("qualcomm")),
    _resource(r"aliyun\.com/ppu[^/]*", _compute("alibaba")),
    _resource(r"mthreads\.com/.+", _compute("moorethreads")),
    _resource(r"hygon\.com/.+", _compute(HYGON)),
    _resource(r"metax-tech\.com/.+", _compute(METAX)),
    _resource(r"iluvatar\.(com|ai)/.+", _compute(ILUVATAR)),
    _resource(r"enflame\.com/.+", _compute(ENFLAME)),
    _resource(r"(kunlunxin|baidu)\.com/.+", _compute(KUNLUN)),
    _resource(r"rebellions\.ai/.+", _compute(REBELLIONS)),
    _resource(r"((alpha|beta)\.)?furiosa\.ai/.+", _accelerators(FURIOSA)),
    _resource(r"ibm\.com/spyre_.+", _accelerators(IBM)),
    _resource(r"hailo\.ai/.+", _accelerators(HAILO)),
    # Their PCI ids are not public.
    _resource(r"(birentech|vastaitech)\.com/.+", _UNNAMED_COMPUTE),
    # Network adapters.
    _resource(r"vpc\.amazonaws\.com/efa", _nics("amazon")),
    _resource(r"aliyun/erdma", _nics("alibaba")),
    _resource(r"networking\.gke\.io\.networks/.+", _nics()),
    _resource(r"beta\.hpe\.com/cxi", _nics(HPE_CRAY)),
    # k8s-rdma-shared-dev-plugin: rdma/hca_shared_devices_a.
    _resource(r"rdma/.+", _nics(only=_has_rdma)),
    # The SR-IOV plugin: users choose the domain, often that of the vendor; most names show the type.
    _resource(r"(intel|mellanox|broadcom|openshift)\.(com|io)/.+", _nics(only=_is_virtual_function)),
    _resource(r"[^/]+/[^/]*(sriov|netdev|_vfs?(?![a-z]))[^/]*", _nics(only=_is_virtual_function)),
)
"""Device plugins, by the names of their extended resources."""


def resource_name(name: str) -> ResourceName | None:
    """Return the row of an extended resource's name; None if it is not known."""
    return next((row for row in RESOURCE_NAMES if row.pattern.fullmatch(name)), None)


def covers(coverages: Iterable[Coverage], device: Device) -> bool:
    """Return True if any of the coverages covers the device."""
    return any(coverage.covers(device) for coverage in coverages)


SOCKET_WORDS = {
    "nvidia": ("nvidia",),
    "amd": ("amd",),
    "intel": ("intel",),
    "habana": ("habana", "gaudi"),
    "xilinx": ("xilinx", "fpga"),
    "mellanox": ("rdma", "sriov", "mellanox"),
    "amazon": ("neuron", "efa"),
    "google": ("tpu",),
    "huawei": ("ascend", "davinci", "huawei"),
    "cambricon": ("cambricon",),
    "qualcomm": ("qaic", "qualcomm"),
    "tenstorrent": ("tenstorrent",),
    "moorethreads": ("mthreads",),
    "alibaba": ("erdma", "aliyun"),
    HYGON: ("hygon", "dcu"),
    METAX: ("metax",),
    ILUVATAR: ("iluvatar", "ix-device"),
    ENFLAME: ("enflame", "gcu"),
    KUNLUN: ("kunlun", "xpu"),
    REBELLIONS: ("rebellions", "rbln"),
    FURIOSA: ("furiosa",),
}
"""Parts of the names of device plugins' sockets by vendor: nvidia-gpu.sock, amd.com_gpu."""

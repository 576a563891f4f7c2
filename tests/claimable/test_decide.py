"""May a function be claimed: one table, from functions as scans of real hosts show them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_agent.claimable.decide import HostFacts, Refusal, refusal
from dra_agent.claimable.use import HostUse
from dra_agent.claimable.vendor_nodes import DriverNodes
from dra_agent.topology.model import DeviceKind, Drm, PciFunction, Sriov

ADDRESS = "0000:3b:00.0"
PHYSICAL = "0000:3b:00.4"
NVIDIA, AMD, INTEL, MELLANOX = "0x10de", "0x1002", "0x8086", "0x15b3"
GPU, NIC, FPGA, ACCELERATOR = DeviceKind.GPU, DeviceKind.NIC, DeviceKind.FPGA, DeviceKind.ACCELERATOR


def function(kind: DeviceKind, vendor: str, driver: str | None, **facts: Any) -> PciFunction:
    values: dict[str, Any] = {
        "pci_address": ADDRESS,
        "kind": kind,
        "class_": "0x030200",
        "vendor_id": vendor,
        "device_id": "0x0001",
        "subsystem_vendor": None,
        "subsystem_device": None,
        "revision": None,
        "numa_node": 0,
        "numa_source": "device",
        "pcie_root": "pci0000:3a",
        "parents": (),
        "pcie_switch": None,
        "driver": driver,
        "iommu_group": 17,
        "link": None,
        "sriov": None,
        "physfn": None,
        "virtfns": (),
        "net": (),
        "infiniband": (),
        "uverbs": (),
        "drm": None,
        "accel": (),
        "kfd": None,
        "vfio": None,
        "card_link": None,
        "noiommu": False,
        "uio": (),
        "mdevs": None,
        "invalid_names": (),
    }
    return PciFunction(**values | facts)


def rendering(card: str | None = "card0", render: str | None = "renderD128") -> Drm:
    return Drm(card, render)


BOND = HostUse("host-interface", "ens1 is a port of bond0")
RAIL = HostUse("host-address", "ens1 has the address 10.1.2.3/24")
DIVIDED = Sriov(16, 4)
UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
AMD_DIVIDED = function(GPU, AMD, "amdgpu", drm=rendering(), kfd=1, sriov=DIVIDED)

GPUS: list[tuple[str, PciFunction, str | None]] = [
    ("NVIDIA's driver makes nodes without an entry in /sys", function(GPU, NVIDIA, "nvidia"), None),
    ("with nvidia-drm", function(GPU, NVIDIA, "nvidia", drm=rendering()), None),
    ("nouveau renders, and CUDA cannot use it", function(GPU, NVIDIA, "nouveau", drm=rendering()), "unusable-driver"),
    ("nova", function(GPU, NVIDIA, "NovaCore", drm=rendering()), "unusable-driver"),
    ("nova under its module's name", function(GPU, NVIDIA, "nova_core", drm=rendering()), "unusable-driver"),
    ("no driver", function(GPU, NVIDIA, None), "no-driver"),
    ("no driver, AMD", function(GPU, AMD, None), "no-driver"),
    ("reserved at boot", function(GPU, NVIDIA, "pci-stub"), "reserved"),
    ("for a Xen guest", function(GPU, NVIDIA, "pciback"), "reserved"),
    ("in user space", function(GPU, NVIDIA, "uio_pci_generic", uio=("uio0",)), "user-space-driver"),
    ("a vGPU on the host of a virtual machine", function(GPU, NVIDIA, "nvidia", physfn=PHYSICAL), "virtualized"),
    ("that host's GPU", function(GPU, NVIDIA, "nvidia", sriov=DIVIDED), "physical-function"),
    ("a GPU that could be divided", function(GPU, NVIDIA, "nvidia", sriov=Sriov(16, 0)), None),
    ("a vGPU on vfio-pci", function(GPU, NVIDIA, "vfio-pci", physfn=PHYSICAL), None),
    ("a Tesla T4 on the host of virtual machines", function(GPU, NVIDIA, "nvidia", mdevs=()), "virtualized"),
    ("a virtual machine has a part of it", function(GPU, NVIDIA, "nvidia", mdevs=(UUID,)), "virtualized"),
    ("a vGPU before VFIO had variants", function(GPU, NVIDIA, "nvidia", physfn=PHYSICAL, mdevs=()), "virtualized"),
    ("vfio-pci", function(GPU, NVIDIA, "vfio-pci", vfio="vfio0"), None),
    ("a driver that is not VFIO's", function(GPU, NVIDIA, "nvidia-vgpu-vfio"), "no-node"),
    ("vfio-pci without an IOMMU", function(GPU, NVIDIA, "vfio-pci", iommu_group=None), "no-iommu-group"),
    ("vfio-pci in its unsafe mode", function(GPU, NVIDIA, "vfio-pci", noiommu=True), "vfio-noiommu"),
    ("Grace's variant of it", function(GPU, NVIDIA, "nvgrace_gpu_vfio_pci"), None),
    ("Intel's variant of it", function(GPU, INTEL, "xe-vfio-pci", physfn=PHYSICAL), None),
    ("Thor's GPU on Tegra's driver", function(GPU, NVIDIA, "nvgpu"), "unsupported-platform"),
    ("amdgpu", function(GPU, AMD, "amdgpu", drm=rendering(), kfd=1), None),
    ("amdgpu without a DRM node", function(GPU, AMD, "amdgpu", kfd=1), "incomplete-nodes"),
    (
        "amdgpu without a render node",
        function(GPU, AMD, "amdgpu", kfd=1, drm=rendering(render=None)),
        "incomplete-nodes",
    ),
    ("amdgpu that failed to start", function(GPU, AMD, "amdgpu"), "no-node"),
    ("radeon", function(GPU, AMD, "radeon", drm=rendering()), "unusable-driver"),
    ("AMD's host driver of virtual machines", function(GPU, AMD, "gim"), "virtualized"),
    ("i915", function(GPU, INTEL, "i915", drm=rendering()), None),
    ("i915 with GVT-g that nobody uses", function(GPU, INTEL, "i915", drm=rendering(), mdevs=()), None),
    (
        "GVT-g of which a virtual machine has a part",
        function(GPU, INTEL, "i915", drm=rendering(), mdevs=(UUID,)),
        "virtualized",
    ),
    ("xe", function(GPU, INTEL, "xe", drm=rendering("card2", "renderD130")), None),
    ("AMD's physical function beside its virtual ones", AMD_DIVIDED, "physical-function"),
    ("Intel's, which its back end divides", function(GPU, INTEL, "xe", drm=rendering(), sriov=DIVIDED), None),
    ("a GPU of a vendor without a back end", function(GPU, "0x0731", "mwv207", drm=rendering()), None),
    ("one of them without a render node", function(GPU, "0x0731", "mwv207"), "no-node"),
    (
        "one of them beside its virtual functions",
        function(GPU, "0x0731", "mwv207", drm=rendering(), sriov=DIVIDED),
        "physical-function",
    ),
    ("the GPU of a Windows host, in WSL2", function(GPU, "0x1414", "dxgkrnl"), "unsupported-platform"),
    ("ASPEED", function(GPU, "0x1a03", "ast", drm=rendering(render=None)), "display"),
    ("Matrox", function(GPU, "0x102b", "mgag200", drm=rendering(render=None)), "display"),
    ("Huawei's iBMC", function(GPU, "0x19e5", "hibmc-drm", drm=rendering(render=None)), "display"),
    ("QEMU's standard display", function(GPU, "0x1234", "bochs-drm", drm=rendering(render=None)), "display"),
    ("a display chip nobody has heard of", function(GPU, "0xabcd", "newbmc", drm=rendering(render=None)), "display"),
    ("a display chip without a driver", function(GPU, "0x1a03", None), "no-driver"),
    ("Hyper-V's, whose card hangs elsewhere", function(GPU, "0x1414", "hyperv_drm"), "no-node"),
    ("virtio-gpu", function(GPU, "0x1af4", "virtio-pci", drm=rendering()), "console"),
    ("VMware's", function(GPU, "0x15ad", "vmwgfx", drm=rendering()), "console"),
]

NICS: list[tuple[str, PciFunction, str | None]] = [
    ("an interface", function(NIC, MELLANOX, "mlx5_core", net=("ens9",)), None),
    ("with RDMA", function(NIC, MELLANOX, "mlx5_core", net=("ens9",), infiniband=("mlx5_0",)), None),
    ("RDMA only, as AWS EFA", function(NIC, "0x1d0f", "efa", infiniband=("rdmap0",), uverbs=("uverbs0",)), None),
    ("no interface, as some functions of a T6", function(NIC, "0x1425", "cxgb4"), "no-interface"),
    ("a port of a bond", function(NIC, MELLANOX, "mlx5_core", net=("ens1",)), "host-interface"),
    (
        "a port of a bond with RDMA",
        function(NIC, MELLANOX, "mlx5_core", net=("ens1",), infiniband=("mlx5_bond_0",)),
        "host-interface",
    ),
    ("one of its two ports is in a bond", function(NIC, MELLANOX, "mlx4_core", net=("a", "ens1")), "host-interface"),
    ("an address without RDMA", function(NIC, INTEL, "ice", net=("rail1",)), "host-address"),
    (
        "an address on a rail",
        function(NIC, MELLANOX, "mlx5_core", net=("rail1",), infiniband=("mlx5_1",)),
        "host-address",
    ),
    ("it has virtual functions", function(NIC, INTEL, "ice", net=("ens9",), sriov=DIVIDED), "physical-function"),
    ("it could have some", function(NIC, INTEL, "ice", net=("ens9",), sriov=Sriov(64, 0)), None),
    ("a virtual function", function(NIC, INTEL, "iavf", net=("ens9v0",), physfn=PHYSICAL), None),
    ("a virtual function without a driver", function(NIC, INTEL, None, physfn=PHYSICAL), "no-driver"),
    ("vfio-pci", function(NIC, INTEL, "vfio-pci", physfn=PHYSICAL), None),
    (
        "its virtual functions are not its driver's",
        function(NIC, INTEL, "vfio-pci", sriov=DIVIDED),
        "physical-function",
    ),
    ("mlx5_vfio_pci", function(NIC, MELLANOX, "mlx5_vfio_pci", physfn=PHYSICAL), None),
    ("DPDK's igb_uio", function(NIC, INTEL, "igb_uio", uio=("uio0",)), "user-space-driver"),
    ("a mediated device of a NIC", function(NIC, MELLANOX, "mlx5_core", net=("ens9",), mdevs=(UUID,)), "virtualized"),
    ("pci-stub", function(NIC, INTEL, "pci-stub"), "reserved"),
    ("a driver that is not known, without an interface", function(NIC, "0xabcd", "newnic"), "no-interface"),
]

DIVIDED_QAT = function(ACCELERATOR, INTEL, "4xxx", sriov=DIVIDED)
OTHERS: list[tuple[str, PciFunction, str | None]] = [
    ("Gaudi", function(ACCELERATOR, "0x1da3", "habanalabs", accel=("accel0",)), None),
    ("Gaudi on pci-stub", function(ACCELERATOR, "0x1da3", "pci-stub"), "reserved"),
    ("Gaudi whose driver failed", function(ACCELERATOR, "0x1da3", "habanalabs"), "no-node"),
    ("Trainium, whose nodes are not in /sys", function(ACCELERATOR, "0x1d0f", "neuron-driver"), None),
    ("QAT, which works through virtual functions", function(ACCELERATOR, INTEL, "4xxx"), "no-node"),
    ("QAT of Intel's own driver", function(ACCELERATOR, INTEL, "4xxx", uio=("uio0", "uio1")), "user-space-driver"),
    (
        "an Ascend of which a virtual machine has a part",
        function(ACCELERATOR, "0x19e5", "x", mdevs=(UUID,)),
        "virtualized",
    ),
    ("TPU v4", function(ACCELERATOR, "0x1ae0", "tpu_v4", accel=("accel0",)), None),
    ("TPU v5e", function(ACCELERATOR, "0x1ae0", "vfio-pci"), None),
    ("an NPU without a driver", function(ACCELERATOR, "0x1022", None), "no-driver"),
    ("QAT's physical function beside its virtual ones", DIVIDED_QAT, "physical-function"),
    ("a virtual function of QAT", function(ACCELERATOR, INTEL, "vfio-pci", physfn=PHYSICAL), None),
    ("an NPU", function(ACCELERATOR, AMD, "amdxdna", accel=("accel0",)), None),
    ("Alveo", function(FPGA, "0x10ee", "xocl", drm=rendering()), None),
    ("Alveo's management function", function(FPGA, "0x10ee", "xclmgmt"), "management"),
    ("Alveo on pci-stub", function(FPGA, "0x10ee", "pci-stub"), "reserved"),
    (
        "an FPGA beside its virtual functions",
        function(FPGA, "0x10ee", "xocl", drm=rendering(), sriov=DIVIDED),
        "physical-function",
    ),
    ("an FPGA that is not configured", function(FPGA, INTEL, "dfl-pci"), "no-node"),
    ("no driver", function(FPGA, "0x10ee", None), "no-driver"),
]

FACTS = HostFacts(uses={"ens1": BOND, "rail1": RAIL})


@pytest.mark.parametrize(
    ("given", "code"), [pytest.param(given, code, id=name) for name, given, code in [*GPUS, *NICS, *OTHERS]]
)
def test_a_function_is_claimable_or_has_a_reason(given: PciFunction, code: str | None) -> None:
    found = refusal(given, FACTS)
    assert (found.code if found is not None else None) == code
    if found is not None:
        assert found.reason and not found.reason.endswith(".")


def test_only_an_address_beside_rdma_is_shared_with_the_host() -> None:
    shared = [name for name, given, _ in NICS if (found := refusal(given, FACTS)) and found.is_shared]
    assert shared == ["an address on a rail"]
    divided = function(NIC, MELLANOX, "mlx5_core", net=("rail1",), infiniband=("mlx5_1",), sriov=DIVIDED)
    assert _code(refusal(divided, FACTS)) == "physical-function"


@pytest.mark.parametrize("driver", ["iavf", "vfio-pci"])
def test_a_virtual_function_goes_with_its_physical_one(driver: str | None) -> None:
    virtual = function(NIC, INTEL, driver, net=("ens9v0",), physfn=PHYSICAL)
    found = refusal(virtual, HostFacts(held={PHYSICAL}))
    assert found is not None and found.by_rule and PHYSICAL in found.reason
    assert refusal(virtual, HostFacts(held={ADDRESS})) != found


@pytest.mark.parametrize(
    "given", [pytest.param(given, id=name) for name, given, _ in NICS if given.sriov is None or not given.sriov.num_vfs]
)
def test_a_held_physical_function_hides_no_other_reason(given: PciFunction) -> None:
    """A rule for the physical function permits this reason alone."""
    virtual = msgspec.structs.replace(given, physfn=PHYSICAL)
    alone = refusal(virtual, FACTS)
    found = refusal(virtual, msgspec.structs.replace(FACTS, held={PHYSICAL}))
    if alone is None or alone.is_shared:
        assert found is not None and (found.code, found.by_rule, found.is_shared) == ("physical-function", True, False)
        assert found.host_use == ("" if alone is None else alone.reason)
    else:
        assert found == alone


@pytest.mark.parametrize("held", [(), (PHYSICAL,)])
def test_rdma_over_ethernet_without_its_interface_is_in_use_elsewhere(held: tuple[str, ...]) -> None:
    """Another plugin has moved the interface into a pod; in the shared mode of RDMA, its device stays on the host."""
    roce = function(NIC, MELLANOX, "mlx5_core", infiniband=("mlx5_2",), uverbs=("uverbs2",), physfn=PHYSICAL)
    away = HostFacts(held=held, ethernet_rdma={ADDRESS})
    found = refusal(roce, away)
    assert found is not None and (found.code, found.by_rule) == ("no-interface", False)
    assert _code(refusal(roce, msgspec.structs.replace(away, moved={ADDRESS}))) == (
        "physical-function" if held else None
    )
    assert refusal(msgspec.structs.replace(roce, net=("ens9",)), HostFacts(ethernet_rdma={ADDRESS})) is None


def test_a_claim_keeps_rdma_whose_interface_a_network_plugin_has_moved() -> None:
    """Its own pod may have the interface."""
    roce = function(NIC, MELLANOX, "mlx5_core", infiniband=("mlx5_2",), uverbs=("uverbs2",))
    assert refusal(roce, HostFacts(held={ADDRESS}, ethernet_rdma={ADDRESS})) is None
    assert _code(refusal(roce, HostFacts(held={PHYSICAL}, ethernet_rdma={ADDRESS}))) == "no-interface"
    assert _code(refusal(function(NIC, MELLANOX, "mlx5_core"), HostFacts(held={ADDRESS}))) == "no-interface"


def test_an_interface_that_a_claim_has_moved_is_not_missing() -> None:
    moved = function(NIC, MELLANOX, "mlx5_core")
    assert refusal(moved, HostFacts(moved={ADDRESS})) is None
    assert refusal(moved, HostFacts(moved={PHYSICAL})) is not None


def test_a_driver_that_comes_and_goes_keeps_its_devices() -> None:
    unloaded = function(GPU, NVIDIA, None)
    assert refusal(unloaded, HostFacts(changing_drivers={NVIDIA})) is None
    assert refusal(unloaded, HostFacts(changing_drivers={AMD})) is not None
    assert refusal(function(GPU, NVIDIA, None, physfn=PHYSICAL), HostFacts(changing_drivers={NVIDIA})) is not None


def test_nodes_of_an_unknown_accelerator_are_enough() -> None:
    hailo = function(ACCELERATOR, "0x1e60", "hailo")
    assert _code(refusal(hailo, HostFacts())) == "no-node"
    assert refusal(hailo, HostFacts(nodes={ADDRESS: DriverNodes(own=("hailo0",))})) is None


def test_nodes_of_an_unknown_gpu_are_enough() -> None:
    gpu = function(GPU, "0x0731", "jmgpu")
    assert refusal(gpu, HostFacts(nodes={ADDRESS: DriverNodes(own=("jmgpu0",))})) is None
    display = function(GPU, "0x0731", "jmgpu", drm=rendering(render=None))
    assert refusal(display, HostFacts(nodes={ADDRESS: DriverNodes(own=("jmgpu0",))})) is None


@pytest.mark.parametrize(
    "given",
    [function(GPU, "0x9999", "metax", drm=rendering()), function(ACCELERATOR, "0x1d94", "hydcu", drm=rendering())],
    ids=["gpu", "accelerator"],
)
def test_a_device_without_the_node_that_all_of_its_vendor_share_has_incomplete_nodes(given: PciFunction) -> None:
    found = refusal(given, HostFacts(nodes={ADDRESS: DriverNodes(missing=("mxcd",))}))
    assert found is not None and found.code == "incomplete-nodes" and "/dev/mxcd" in found.reason
    assert refusal(given, HostFacts(nodes={PHYSICAL: DriverNodes(missing=("mxcd",))})) is None


@pytest.mark.parametrize("drm", [None, rendering()])
def test_a_node_without_a_place_in_sys_is_not_denied(drm: Drm | None) -> None:
    for given in (function(GPU, "0x1ed5", "mtgpu", drm=drm), function(ACCELERATOR, "0x1fe9", "memx_pcie_ai_chip")):
        found = refusal(given, HostFacts(nodes={ADDRESS: DriverNodes(unrelated="memx0")}))
        assert found is not None and found.code == "node-unknown" and "/dev/memx0" in found.reason


@pytest.mark.parametrize("kind", [GPU, NIC])
def test_a_group_with_a_function_that_the_host_uses_is_not_given(kind: DeviceKind) -> None:
    bound = function(kind, NVIDIA, "vfio-pci", vfio="vfio0")
    found = refusal(bound, HostFacts(group_users={ADDRESS: ("0000:3b:00.1 (snd_hda_intel)",)}))
    assert found is not None and found.code == "iommu-group" and not found.by_rule
    assert "17" in found.reason and "0000:3b:00.1 (snd_hda_intel)" in found.reason
    assert refusal(bound, HostFacts(group_users={PHYSICAL: ("0000:3b:00.1 (snd_hda_intel)",)})) is None


def test_a_wireless_adapter_stays_with_the_host() -> None:
    wifi = function(NIC, INTEL, "iwlwifi", class_="0x028000", net=("wlan0",))
    assert _code(refusal(wifi, HostFacts(wireless={"wlan0"}))) == "wireless"
    assert refusal(wifi, HostFacts(wireless={"wlan1"})) is None, "ConnectX-3 may have the class of Wi-Fi"


@pytest.mark.parametrize("vendor", ["0x1a03", "0x102b", "0x1234"])
def test_nobody_is_to_bind_the_display_of_a_management_controller(vendor: str) -> None:
    found = refusal(function(GPU, vendor, None), HostFacts())
    assert found is not None and found.code == "no-driver"
    assert "vfio" not in found.hint and "management controller" in found.hint
    other = refusal(function(GPU, NVIDIA, None), HostFacts())
    assert other is not None and "vfio-pci" in other.hint


def test_a_part_of_another_device_names_it() -> None:
    found = refusal(function(FPGA, "0x10ee", "qdma-pf"), HostFacts(wholes={ADDRESS: PHYSICAL}))
    assert found is not None and found.code == "part-of-device" and PHYSICAL in found.reason
    found = refusal(function(FPGA, "0x10ee", "qdma-pf"), HostFacts(wholes={ADDRESS: None}))
    assert found is not None and found.code == "part-of-device" and "missing" in found.reason


def test_a_rule_may_allow_what_the_host_uses_and_nothing_that_gives_nothing() -> None:
    allowed = {
        found.code for _, given, _ in [*GPUS, *NICS, *OTHERS] if (found := refusal(given, FACTS)) and found.by_rule
    }
    assert allowed == {"host-interface", "host-address", "console", "physical-function"}


def test_the_reason_of_a_use_is_the_worst_one() -> None:
    both = function(NIC, MELLANOX, "mlx4_core", net=("rail1", "ens1"))
    found = refusal(both, FACTS)
    assert found is not None and found.code == "host-interface" and "bond0" in found.reason


def _code(found: Refusal | None) -> str | None:
    return None if found is None else found.code

"""Every function that a claim could hold is published or excluded, also where its back end describes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.claimable.codes import Code
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.amd.backend import AmdBackend
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.passthrough import VfioBinding, VfioBindingStore
from dra_agent.topology import DeviceKind, Drm, PciFunction, Topology

Make = Callable[..., PciFunction]
Write = Callable[[str, object], None]
TopologyOf = Callable[..., Topology]

KFD = "sys/class/kfd/kfd/topology/nodes"
ADDRESS = "0000:0c:00.0"
GPU, NIC, FPGA, ACCELERATOR = DeviceKind.GPU, DeviceKind.NIC, DeviceKind.FPGA, DeviceKind.ACCELERATOR


def collect(host: Host, topology: Topology, bindings: VfioBindingStore | None = None) -> Inventory:
    collector = Collector(host, bindings=bindings)
    try:
        return collector.collect(topology)
    finally:
        collector.close()


FUNCTIONS: list[tuple[DeviceKind, str, str, dict[str, Any], str, Code]] = [
    (GPU, "0x1002", "0x74a1", {"driver": "amdgpu", "kfd": 1}, "", "incomplete-nodes"),
    (GPU, "0x1002", "0x74a1", {"driver": "amdgpu", "drm": Drm("card0", "renderD128")}, "amd.backend", "unreadable"),
    (GPU, "0x8086", "0x56c0", {"driver": "i915", "drm": Drm("card0", "renderD128")}, "intel.backend", "unreadable"),
    (GPU, "0x10de", "0x2330", {"driver": "nvidia"}, "nvidia.backend", "unreadable"),
    (GPU, "0x0731", "0x9100", {"driver": "mwv207", "drm": Drm("card0", "renderD128")}, "generic", "unreadable"),
    (NIC, "0x15b3", "0x1021", {"driver": "mlx5_core", "net": ("ens1",)}, "nic", "unreadable"),
    (
        ACCELERATOR,
        "0x1da3",
        "0x1020",
        {"driver": "habanalabs", "accel": ("accel0",)},
        "accelerator",
        "unreadable",
    ),
    (ACCELERATOR, "0x1d0f", "0x7364", {"driver": "neuron-driver"}, "", "node-unknown"),
    (FPGA, "0x10ee", "0x5001", {"driver": "xocl", "drm": Drm("card0", "renderD128")}, "fpga", "unreadable"),
    (FPGA, "0x10ee", "0x50b6", {"driver": "slash_ctl"}, "", "part-of-device"),
]


@pytest.mark.parametrize("failure", [RetryableError("the library is gone"), ValueError("a defect")], ids=type)
@pytest.mark.parametrize(("kind", "vendor", "device", "facts", "backend", "code"), FUNCTIONS)
def test_a_back_end_that_fails_leaves_nothing_unexplained(
    kind: DeviceKind,
    vendor: str,
    device: str,
    facts: dict[str, Any],
    backend: str,
    code: Code,
    failure: Exception,
    host: Host,
    function: Make,
    topology_of: TopologyOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if code == "unreadable":

        def make(*_: object) -> None:
            raise failure

        monkeypatch.setattr(f"dra_agent.inventory.{backend}.make", make)
    inventory = collect(host, topology_of(function(ADDRESS, kind, vendor, device, **facts)))
    assert inventory.devices == ()
    (excluded,) = inventory.excluded
    assert (excluded.pci_address, excluded.code) == (ADDRESS, code)
    assert excluded.name == f"{kind.value}-0000-0c-00-0"
    if code == "unreadable":
        assert str(failure) in excluded.reason and inventory.excluded_by_reason() == []


def test_a_partition_without_a_render_node_is_excluded(host: Host, write: Write, function: Make) -> None:
    gpu = function(ADDRESS, GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card0", "renderD128"), kfd=1)
    write(f"sys/bus/pci/devices/{ADDRESS}/available_compute_partition", "SPX, DPX")
    write(f"sys/bus/pci/devices/{ADDRESS}/current_compute_partition", "DPX")
    for node, render in ((1, 128), (2, 0)):
        write(
            f"{KFD}/{node}/properties",
            f"simd_count 608\nsimd_per_cu 4\nlocation_id {3072 + node - 1}\nvendor_id 4098\nnum_xcc 4\n"
            f"unique_id 77\ndrm_render_minor {render}",
        )
    backend = AmdBackend(host)
    (device,) = backend.devices([gpu], [])
    assert device.identity["render"] == "renderD128"
    (excluded,) = backend.withheld()
    assert (excluded.name, excluded.code) == ("gpu-0000-0c-00-0-dpx-1", "incomplete-nodes")


def test_a_part_of_a_card_that_a_claim_has_is_excluded(
    host: Host, write: Write, function: Make, topology_of: TopologyOf, tmp_path: Path
) -> None:
    whole, part = (
        function(f"0000:81:00.{number}", FPGA, "0x10ee", f"0x50b{number + 4}", driver=driver, iommu_group=7)
        for number, driver in ((1, "slash_qdma"), (2, "slash_ctl"))
    )
    write("sys/bus/pci/devices/0000:81:00.1/misc/qdma/dev", "10:1")
    write("sys/bus/pci/devices/0000:81:00.1/misc/qdma/uevent", "MAJOR=10\nMINOR=1\nDEVNAME=qdma1")
    (device,) = collect(host, topology_of(whole, part)).devices
    bindings = VfioBindingStore(tmp_path / "state")
    bindings.write(_binding(device))
    bound = msgspec.structs.replace(whole, driver="vfio-pci")
    inventory = collect(host, topology_of(bound, part), bindings)
    assert [one.name for one in inventory.devices] == [device.name]
    assert [(one.pci_address, one.code) for one in inventory.excluded] == [("0000:81:00.2", "part-of-device")]


def _binding(device: Device) -> VfioBinding:
    return VfioBinding(device.pci_address, "uid", "key", "slash_qdma", None, device)

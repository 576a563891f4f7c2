from __future__ import annotations

from collections.abc import Callable

from dra_agent.host import Host
from dra_agent.inventory.intel import IntelBackend
from dra_agent.topology import Device as Function
from dra_agent.topology import Drm, Kind, Sriov

Write = Callable[[str, object], None]
PCI = "sys/bus/pci/devices"


def test_memory_is_what_the_driver_tells_and_never_guessed(
    host: Host, write: Write, function: Callable[..., Function]
) -> None:
    xe = function("0000:03:00.0", Kind.GPU, "0x8086", "0xe20b", driver="xe", drm=Drm("card0", "renderD128"))
    i915 = function("0000:04:00.0", Kind.GPU, "0x8086", "0x56a0", driver="i915", drm=Drm("card1", "renderD129"))
    flex = function("0000:05:00.0", Kind.GPU, "0x8086", "0x56c0", driver="i915", drm=Drm("card2", "renderD130"))
    built_in = function("0000:00:02.0", Kind.GPU, "0x8086", "0x46a6", driver="i915", drm=Drm("card3", "renderD131"))
    write(f"{PCI}/0000:03:00.0/tile0/physical_vram_size_bytes", f"{12 << 30:#x}")
    write(f"{PCI}/0000:04:00.0/drm/card1/lmem_total_bytes", 16 << 30)
    devices = IntelBackend(host).devices([built_in, xe, i915, flex], [])
    assert [device.capacity.get("memory") and device.capacity["memory"].value for device in devices] == [
        None,
        "12Gi",
        "16Gi",
        "16Gi",
    ]
    assert [node.path for node in devices[1].nodes] == ["/dev/dri/card0", "/dev/dri/renderD128"]
    assert devices[3].attributes["productName"].value == "Intel Data Center GPU Flex 170"
    assert devices[3].attributes["brand"].value == "Flex"
    assert "productName" not in devices[0].attributes


def test_a_divided_gpu_is_published_as_its_virtual_functions(
    host: Host, write: Write, function: Callable[..., Function]
) -> None:
    virtual = ("0000:03:00.1", "0000:03:00.2")
    physical = function("0000:03:00.0", Kind.GPU, "0x8086", "0x56c0", driver="xe", sriov=Sriov(31, 2), virtfns=virtual)
    ones = [function(a, Kind.GPU, "0x8086", "0x56c0", driver="xe", physfn="0000:03:00.0") for a in virtual]
    write(f"{PCI}/0000:03:00.0/sriov_admin/vf2/profile/vram_quota", 4 << 30)
    first, second = IntelBackend(host).devices([physical, *ones], [])
    assert [first.name, second.name] == ["gpu-0000-03-00-1", "gpu-0000-03-00-2"]
    for device in (first, second):
        assert device.attributes["type"].value == "vf"
        assert device.attributes["memoryEnforcement"].value == "vf"
        assert device.identity["parent"] == "gpu-0000-03-00-0"
    assert "memory" not in first.capacity, "the board's memory is not the virtual function's"
    assert second.capacity["memory"].value == "4Gi"


def test_a_gpu_that_could_be_divided_and_is_not_stays_whole(host: Host, function: Callable[..., Function]) -> None:
    physical = function("0000:03:00.0", Kind.GPU, "0x8086", "0x56c0", driver="xe", sriov=Sriov(31, 0))
    (device,) = IntelBackend(host).devices([physical], [])
    assert device.attributes["type"].value == "gpu"
    assert "memoryEnforcement" not in device.attributes

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.amd.backend import AmdBackend
from dra_agent.inventory.amd.kfd import gpu_nodes
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, device_name
from dra_agent.inventory.rules import PartitionRules
from dra_agent.inventory.settings import PartitionRule
from dra_agent.topology import DeviceKind, Drm, PciFunction, scan

Write = Callable[[str, object], None]
KFD = "sys/class/kfd/kfd/topology/nodes"
MI300_ID, MI300_HIVE = 10742250994841122465, 11731509807327854913
"""Of the first GPU of the recording kfd-mi300-cpx, in which identifiers are replaced."""


@pytest.mark.parametrize("recorded_host", ["kfd-mi300-cpx"], indirect=True)
def test_a_recorded_mi300_host_in_cpx_mode_has_its_63_partitions(recorded_host: Host) -> None:
    problems: list[Diagnostic] = []
    nodes = gpu_nodes(recorded_host, problems)
    assert problems == []
    assert len(nodes) == 8
    assert [len(of_gpu) for of_gpu in nodes.values()] == [8] * 7 + [7]
    assert all(address.endswith(".0") for address in nodes)
    first = nodes["0000:05:00.0"]
    assert [node.render_minor for node in first] == list(range(128, 136))
    assert {node.compute_units for of_gpu in nodes.values() for node in of_gpu} == {38}
    assert {node.isa for node in first} == {"gfx942"}
    assert {node.unique_id for node in first} == {MI300_ID}


@pytest.mark.parametrize("recorded_host", ["kfd-mi210"], indirect=True)
def test_a_recorded_mi210_host_has_eight_whole_gpus_in_two_hives(recorded_host: Host) -> None:
    nodes = gpu_nodes(recorded_host, [])
    # location_id 25344 is 0x6300, and so on: bus << 8, in the order of the nodes.
    assert list(nodes) == [f"0000:{bus:02x}:00.0" for bus in (0x63, 0x43, 0x03, 0x26, 0xE3, 0xC3, 0x83, 0xA3)]
    assert {len(of_gpu) for of_gpu in nodes.values()} == {1}
    assert {node.compute_units for (node,) in nodes.values()} == {104}
    assert {node.isa for (node,) in nodes.values()} == {"gfx90a"}
    assert len({node.hive_id for (node,) in nodes.values()}) == 2


@pytest.mark.parametrize("recorded_host", ["kfd-mi300-cpx"], indirect=True)
def test_each_partition_becomes_a_device(recorded_host: Host, function: Callable[..., PciFunction]) -> None:
    gpu = function("0000:05:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card1", "renderD128"))
    problems: list[Diagnostic] = []
    devices = AmdBackend(recorded_host).devices([gpu], problems)
    assert [device.name for device in devices] == [f"gpu-0000-05-00-0-cpx-{n}" for n in range(8)]
    third = devices[3]
    assert {name: value.value for name, value in third.attributes.items()} == {
        "type": "partition",
        "vendor": "amd",
        "vendorID": "0x1002",
        "deviceID": "0x74a1",
        "driver": "amdgpu",
        "resource.kubernetes.io/pcieRoot": "pci0000:05",
        "resource.kubernetes.io/pciBusID": "0000:05:00.0",
        "resource.kubernetes.io/numaNode": 0,
        "profile": "cpx",
        "parentUUID": f"GPU-{MI300_ID:016x}",
        "memoryEnforcement": "none",
        "productName": "AMD Instinct MI300X",
        "brand": "Instinct",
        "computePartition": "CPX",
        "architecture": "gfx942",
        "fabricDomain": f"{MI300_HIVE:016x}",
        "interconnectGroup": "0000:05:00.0",
    }
    assert third.capacity["computeUnits"].value == "38"
    assert [node.path for node in third.nodes] == ["/dev/kfd", "/dev/dri/renderD131"]
    assert [node.path for node in devices[0].nodes] == ["/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128"]
    assert {device.identity["parent"] for device in devices} == {"gpu-0000-05-00-0"}
    assert "uuid" not in third.attributes
    assert problems == []


@pytest.mark.parametrize("recorded_host", ["kfd-mi300-cpx"], indirect=True)
def test_gpus_of_a_recorded_host_can_be_repartitioned_except_one_with_a_hidden_die(
    recorded_host: Host, function: Callable[..., PciFunction]
) -> None:
    gpus = [
        function(address, DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu")
        for address in gpu_nodes(recorded_host, [])
    ]
    for gpu in gpus:
        folder = recorded_host.sysfs / "bus/pci/devices" / gpu.pci_address
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "available_compute_partition").write_text("SPX, DPX, QPX, CPX\n")
    backend = AmdBackend(recorded_host)
    backend.partition_by(PartitionRules([PartitionRule("true", "amd")], "dra-agent.internal"))
    problems: list[Diagnostic] = []
    devices = backend.devices(gpus, problems)
    assert len(backend.counter_sets()) == 7
    assert len(devices) == 7 * 15 + 7, "seven in every mode, and the partitions of the last as they are"
    whole = devices[0]
    assert whole.capacity["computeUnits"].value == "304"
    assert {name: counter.value for name, counter in whole.consumes_counters[0].counters.items()}["dies"] == "8"
    assert whole.attributes["computePartition"].value == "SPX", "as it will be, while it is in CPX"
    (problem,) = [one for one in problems if "dies" in one.message]
    assert (problem.where, problem.severity) == (device_name("gpu", gpus[-1].pci_address), "warning")
    assert "7 of its 8 dies" in problem.message


@pytest.mark.parametrize("recorded_host", ["kfd-mi210"], indirect=True)
def test_gpus_of_one_die_are_never_divided(recorded_host: Host, function: Callable[..., PciFunction]) -> None:
    gpus = [
        function(address, DeviceKind.GPU, "0x1002", "0x740f", driver="amdgpu")
        for address in gpu_nodes(recorded_host, [])
    ]
    backend = AmdBackend(recorded_host)
    backend.partition_by(PartitionRules([PartitionRule("true", "amd")], "dra-agent.internal"))
    devices = backend.devices(gpus, [])
    assert [device.attributes["type"].value for device in devices] == ["gpu"] * 8
    assert all(not device.consumes_counters for device in devices) and not backend.counter_sets()


def test_a_whole_gpu_is_described_from_amdgpu_and_kfd(
    host: Host, write: Write, function: Callable[..., PciFunction]
) -> None:
    gpu = function("0000:0c:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card0", "renderD128"))
    pci = "sys/bus/pci/devices/0000:0c:00.0"
    write(f"{pci}/mem_info_vram_total", 192 << 30)
    write(f"{pci}/current_compute_partition", "SPX")
    write(f"{pci}/current_memory_partition", "NPS1")
    write(f"{pci}/unique_id", "e3a9e53e1ca2d131")
    write("sys/module/amdgpu/version", "6.12.12")
    write(f"{KFD}/0/properties", "cpu_cores_count 96\nsimd_count 0")
    write(
        f"{KFD}/1/properties",
        "simd_count 1216\nsimd_per_cu 4\nlocation_id 3072\ndomain 0\ngfx_target_version 90402\nnum_xcc 8\n"
        "drm_render_minor 128\nunique_id 16404946649897475377\nhive_id 1",
    )
    device = only(AmdBackend(host).devices([gpu], []))
    assert device.name == "gpu-0000-0c-00-0"
    values = {name: value.value for name, value in device.attributes.items()}
    assert values["type"] == "gpu"
    assert values["uuid"] == f"GPU-{16404946649897475377:016x}", "the id of KFD selects it, not the one of the board"
    assert values["computePartition"] == "SPX"
    assert values["memoryPartition"] == "NPS1"
    assert device.attributes["driverVersion"].version == "6.12.12"
    assert "memoryEnforcement" not in values
    assert {name: value.value for name, value in device.capacity.items()} == {"memory": "192Gi", "computeUnits": "304"}


def test_memory_comes_from_kfd_where_the_driver_has_no_file(
    host: Host, write: Write, function: Callable[..., PciFunction]
) -> None:
    gpu = function("0000:0c:00.0", DeviceKind.GPU, "0x1002", "0xffff", driver="amdgpu")
    write(f"{KFD}/1/properties", "simd_count 4\nsimd_per_cu 2\nlocation_id 3072\ndomain 0\nmem_banks_count 2")
    write(f"{KFD}/1/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {16 << 30}\nflags 0")
    write(f"{KFD}/1/mem_banks/1/properties", "heap_type 3\nsize_in_bytes 65536")
    device = only(AmdBackend(host).devices([gpu], []))
    assert device.capacity["memory"].value == "16Gi"
    assert "productName" not in device.attributes


def apu(write: Write, version: int, bank: int | None, carve_out: int | None) -> None:
    """Write the files of a GPU at 0000:0c:00.0; sizes in MiB."""
    write(f"{KFD}/0/properties", "cpu_cores_count 32\nsimd_count 0")
    write(
        f"{KFD}/1/properties",
        f"simd_count 80\nsimd_per_cu 2\nlocation_id 3072\ndomain 0\ngfx_target_version {version}\nmem_banks_count 1\n"
        "vendor_id 4098\ndrm_render_minor 128",
    )
    if bank is not None:
        write(f"{KFD}/1/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {bank << 20}\nflags 0")
    if carve_out is not None:
        write("sys/bus/pci/devices/0000:0c:00.0/mem_info_vram_total", carve_out << 20)


GIB = 1 << 10
"""In MiB."""


@pytest.mark.parametrize(
    ("version", "device", "bank", "carve_out", "integrated", "memory"),
    [
        # Strix Halo with the firmware's default of 512 MiB, and with most of the memory set aside.
        (110501, "0x1586", 62 * GIB, 512, True, "62Gi"),
        (110501, "0x1586", 96 * GIB, 96 * GIB, True, "96Gi"),
        # A carve-out that is larger than what TTM allows: KFD's number is what compute gets.
        (110501, "0x1586", 60 * GIB, 64 * GIB, True, "60Gi"),
        # Raphael under a kernel that counts the carve-out only.
        (100306, "0x164e", 2 * GIB, 2 * GIB, True, "2Gi"),
        (110501, "0x1586", None, 512, True, "512Mi"),
        # An instruction set that this version does not know.
        (130500, "0xffff", 62 * GIB, 512, True, "62Gi"),
        (130500, "0xffff", 16 * GIB, 16 * GIB, None, "16Gi"),
        (130500, "0xffff", 16 * GIB, None, None, "16Gi"),
        # MI300A and MI300X have one instruction set.
        (90402, "0x74a0", 60 * GIB, 0, True, "60Gi"),
        (90402, "0x74a1", 192 * GIB, 192 * GIB, False, "192Gi"),
        (90402, "0xffff", 60 * GIB, 0, None, "60Gi"),
        (120001, "0x7551", 32 * GIB, 32 * GIB, False, "32Gi"),
    ],
)
def test_an_apu_has_the_memory_that_compute_gets(
    version: int,
    device: str,
    bank: int | None,
    carve_out: int | None,
    integrated: bool | None,
    memory: str,
    host: Host,
    write: Write,
    function: Callable[..., PciFunction],
) -> None:
    gpu = function("0000:0c:00.0", DeviceKind.GPU, "0x1002", device, driver="amdgpu", drm=Drm("card0", "renderD128"))
    apu(write, version, bank, carve_out)
    found = only(AmdBackend(host).devices([gpu], []))
    attribute = found.attributes.get("integrated")
    assert (attribute and attribute.value) is integrated
    assert found.capacity["memory"].value == memory


@pytest.mark.parametrize("recorded_host", ["igpu-next-to-dgpu"], indirect=True)
def test_a_recorded_host_with_the_graphics_of_its_processor_next_to_two_cards(recorded_host: Host) -> None:
    gpus = collect(recorded_host, scan(recorded_host)).family("gpu")
    found = {gpu.pci_address: (gpu.attributes["integrated"].value, gpu.capacity["memory"].value) for gpu in gpus}
    assert found == {
        "0000:03:00.0": (False, "32624Mi"),
        "0000:06:00.0": (False, "32624Mi"),
        "0000:0f:00.0": (True, "2Gi"),
    }


def test_a_controller_that_counts_the_carve_out_does_not_limit_an_apu(
    host: Host, write: Write, function: Callable[..., PciFunction]
) -> None:
    gpu = function("0000:0c:00.0", DeviceKind.GPU, "0x1002", "0x1586", driver="amdgpu")
    write("sys/fs/cgroup/dmem.capacity", "drm/0000:0c:00.0/vram 536870912")
    apu(write, 110501, 62 * GIB, 512)
    found = only(AmdBackend(host).devices([gpu], []))
    assert "host's memory" in found.memory_limits["dmem"] and "dmem" not in found.identity
    apu(write, 110501, 96 * GIB, 96 * GIB)
    found = only(AmdBackend(host).devices([gpu], []))
    assert found.memory_limits["dmem"] == "" and found.identity["dmem"] == "drm/0000:0c:00.0/vram"


def test_nonsense_from_the_driver_costs_one_fact_and_is_reported(
    host: Host, write: Write, function: Callable[..., PciFunction]
) -> None:
    gpu = function("0000:0c:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu")
    write("sys/bus/pci/devices/0000:0c:00.0/mem_info_vram_total", "lots")
    write("sys/module/amdgpu/version", "unknown")
    write(f"{KFD}/1/properties", "\0\xff garbage\nsimd_count many")
    problems: list[Diagnostic] = []
    device = only(AmdBackend(host).devices([gpu], problems))
    assert device.capacity == {}
    assert "driverVersion" not in device.attributes
    assert [problem.message for problem in problems] == [
        "driverVersion is left out: 'unknown' is not a version",
        "expected a number, found 'lots'",
    ]


def only(devices: list[Device]) -> Device:
    (device,) = devices
    return device


@pytest.mark.parametrize("recorded_host", ["kfd-mi300-cpx"], indirect=True)
def test_errors_of_a_gpu_are_those_of_every_partition(
    recorded_host: Host, function: Callable[..., PciFunction]
) -> None:
    gpu = function("0000:05:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card1", "renderD128"))
    ras = recorded_host.sysfs / "bus/pci/devices/0000:05:00.0/ras"
    ras.mkdir(parents=True)
    (ras / "umc_err_count").write_text("ue: 1\nce: 5\n")
    devices = AmdBackend(recorded_host).devices([gpu], [])
    assert [(device.memory_errors, device.corrected_errors) for device in devices] == [(1, 5)] * 8


@pytest.mark.parametrize("recorded_host", ["kfd-mi300-cpx"], indirect=True)
def test_values_that_the_driver_does_not_know_are_omitted(
    recorded_host: Host, function: Callable[..., PciFunction]
) -> None:
    # amdgpu_gfx_compute_mode_desc and amdgpu_gmc.c print UNKNOWN; a board without an id has a file of zeros.
    gpu = function("0000:05:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card1", "renderD128"))
    folder = recorded_host.sysfs / "bus/pci/devices/0000:05:00.0"
    folder.mkdir(parents=True)
    (folder / "current_compute_partition").write_text("UNKNOWN\n")
    (folder / "current_memory_partition").write_text("UNKNOWN\n")
    (folder / "unique_id").write_text("0000000000000000\n")
    (folder / "mem_info_vram_total").write_text("0\n")
    devices = AmdBackend(recorded_host).devices([gpu], [])
    assert [device.name for device in devices] == [f"gpu-0000-05-00-0-cpx-{n}" for n in range(8)]
    for device in devices:
        values = {name: attribute.value for name, attribute in device.attributes.items()}
        assert (values["computePartition"], values["profile"]) == ("CPX", "cpx"), "by the dies of each"
        assert "memoryPartition" not in values and "memory" not in device.capacity
        assert values["parentUUID"] == f"GPU-{MI300_ID:016x}", "what its partitions share"
